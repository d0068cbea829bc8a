"""Checkpoints: what a training needs to go on exactly where it was, complete or not there at all.

A checkpoint is a folder `step-00000120` with safetensors files, `state.json` and a manifest of SHA-256 sums. It is
written under another name, fsynced, and renamed when complete. The two newest are kept; a damaged one is passed over
by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.weights.files import new_folder, remove_folder
from vitreous.weights.manifest import check_manifest

KEPT = 2
FILES = ("module", "optimizers", "ema", "best")
START = "start"


@dataclass
class Checkpoint:
    """A point in a training."""

    step: int
    module: dict[str, Tensor]
    optimizers: dict[str, Tensor]
    ema: dict[str, Tensor]
    best: dict[str, dict[str, Tensor]]
    """Of the network and of what is saved beside it, the tensors at the best evaluation so far; empty before that."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the loop remembers, as JSON."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `folder`, then remove those that are no longer needed."""
    final = folder / f"step-{checkpoint.step:08d}"
    best = {f"{module}|{name}": tensor for module, found in checkpoint.best.items() for name, tensor in found.items()}
    _remove_damaged(final)
    with new_folder(final) as place:
        for name in FILES:
            tensors = best if name == "best" else getattr(checkpoint, name)
            if tensors:
                save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, place / f"{name}.safetensors")
        (place / "state.json").write_text(json.dumps({"step": checkpoint.step, **checkpoint.facts}, indent=1))
    for old in _folders(folder)[:-KEPT]:
        remove_folder(old)
    return final


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, if any, and a sentence about each damaged one that was passed over."""
    damaged: list[str] = []
    for path in reversed(_folders(folder)):
        try:
            check_manifest(path)
            facts = json.loads((path / "state.json").read_text())
            files = {}
            for name in FILES:
                file = path / f"{name}.safetensors"
                files[name] = load_file(file) if file.exists() else {}
            best: dict[str, dict[str, Tensor]] = {}
            for key, tensor in files.pop("best").items():
                module, name = key.split("|")
                best.setdefault(module, {})[name] = tensor
            return Checkpoint(step=facts.pop("step"), facts=facts, best=best, **files), damaged
        except (UserError, OSError, ValueError, KeyError) as error:
            damaged.append(f"{path}: damaged, the one before is used ({error})")
    return None, damaged


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one that is whole, by its digests."""
    for path in _folders(folder):
        with suppress(UserError):
            check_manifest(path)
            return True
    return False


def save_start(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Keep the network's tensors before the first step, once: they do not change."""
    if _folders(folder):
        return
    _remove_damaged(folder / START)
    with new_folder(folder / START) as place:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, place / f"{START}.safetensors")


def load_start(folder: Path) -> dict[str, Tensor]:
    """What `save_start` kept."""
    check_manifest(folder / START)
    return load_file(folder / START / f"{START}.safetensors")


def _remove_damaged(path: Path) -> None:
    """Forget a checkpoint that is not whole: the training has come to it again."""
    try:
        check_manifest(path)
    except UserError:
        remove_folder(path)


def remove_partial(folder: Path) -> None:
    """Forget what a save left behind that was killed."""
    for path in folder.glob(".*.new"):
        remove_folder(path)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def pack_optimizers(optimizers: Sequence[torch.optim.Optimizer], module: nn.Module) -> dict[str, Tensor]:
    """All state of the optimizers as named tensors: "parameter|key"."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    packed = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                packed[f"{names[parameter]}|{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return packed


def unpack_optimizers(
    packed: dict[str, Tensor], optimizers: Iterable[torch.optim.Optimizer], module: nn.Module
) -> None:
    """Give the optimizers their state back."""
    parameters = dict(module.named_parameters())
    owner = {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for name, value in packed.items():
        parameter_name, key = name.split("|")
        parameter = parameters[parameter_name]
        owner[parameter].state[parameter][key] = value.to(parameter.device, copy=True)
