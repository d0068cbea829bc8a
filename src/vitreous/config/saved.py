"""A training as JSON, in both directions: what a run folder's config.json keeps."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitreous.config.data import Augment, Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.train import Optimizer, Training
from vitreous.errors import UserError

_PARTS = {"model": ViTConfig, "preprocess": Preprocess, "augment": Augment, "optimizer": Optimizer}


def training_to_json(training: Training) -> dict[str, Any]:
    """Every field, for `json.dumps`."""
    return asdict(training)


def training_from_json(fields: dict[str, Any], where: Path) -> Training:
    """The same training again; `where` is the file that it comes from."""
    try:
        return Training(**{name: _PARTS[name](**value) if name in _PARTS else value for name, value in fields.items()})
    except TypeError:
        raise UserError(
            f"{where}: its training has other fields than this version of vitreous knows; go on with the version that "
            "began it, or give another --out."
        ) from None
