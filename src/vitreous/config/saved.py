"""A training as JSON, in both directions: what a run folder's config.json keeps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vitreous.config.data import Augment, Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.train import Optimizer, Training

_PARTS = {"model": ViTConfig, "preprocess": Preprocess, "augment": Augment, "optimizer": Optimizer}


def training_to_json(training: Training) -> dict[str, Any]:
    """Every field, for `json.dumps`."""
    return asdict(training)


def training_from_json(fields: dict[str, Any]) -> Training:
    """The same training again."""
    return Training(**{name: _PARTS[name](**value) if name in _PARTS else value for name, value in fields.items()})
