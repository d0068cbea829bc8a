"""A training as JSON, in both directions: what a run folder's config.json keeps; and what lies beside its bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.config.data import Augment, Preprocess
from vitreous.config.model import model_to_json
from vitreous.config.train import Optimizer, Training
from vitreous.errors import UserError
from vitreous.model.family import config_from_json
from vitreous.objectives.build import objective_from_json, objective_to_json
from vitreous.storage.files import new_folder, write_tensors


def training_to_json(training: Training) -> dict[str, Any]:
    """Every field, for `json.dumps`."""
    return {
        **asdict(training),
        "model": model_to_json(training.model),
        "objective": objective_to_json(training.objective),
    }


def training_from_json(fields: dict[str, Any], where: Path) -> Training:
    """The same training again; `where` is the file that it comes from."""
    readers: dict[str, Callable[[Any], Any]] = {
        "model": config_from_json,
        "objective": objective_from_json,
        "preprocess": lambda found: Preprocess(**found),
        "augment": lambda found: Augment(**found),
        "optimizer": lambda found: Optimizer(**found),
    }
    try:
        if missing := sorted(readers.keys() - fields.keys()):
            raise KeyError(missing[0])
        return Training(**{name: readers[name](value) if name in readers else value for name, value in fields.items()})
    except (TypeError, KeyError, AttributeError):
        raise UserError(
            f"{where}: its training has other fields than this version of vitreous knows; go on with the version that "
            "began it, or write the run to another folder."
        ) from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def save_extra(folder: Path, tensors: Mapping[str, Tensor], training: Training) -> None:
    """Keep what belongs to a training's objective and not to its network in a folder of that name."""
    with new_folder(folder) as place:
        write_tensors(place / f"{folder.name}.safetensors", {key: t.contiguous() for key, t in tensors.items()})
        described = {"seed": training.seed, "objective": objective_to_json(training.objective)}
        (place / "config.json").write_text(json.dumps(described, indent=2) + "\n")
