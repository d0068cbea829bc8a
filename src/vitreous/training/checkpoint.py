"""Checkpoints: what a training needs to resume exactly where it was, complete or not there at all.

A checkpoint is a folder `step-00000120` with safetensors files, `state.json` and a manifest of SHA-256 sums. It is
written under another name, fsynced, and renamed when complete. The two newest are kept; a damaged one is skipped
by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.storage.files import new_folder, remove_folder, remove_unfinished
from vitreous.storage.manifest import check_manifest
from vitreous.training.parallel import shard_like

if TYPE_CHECKING:
    from vitreous.training.sharded_checkpoint import ShardedSaver

MAX_CHECKPOINTS = 2
FILES = ("module", "optimizers", "ema")
START, SHARDS = "start", "shards"

ReadTensors = Callable[[Path], dict[str, dict[str, Tensor]]]


@dataclass
class Checkpoint:
    """A point in a training."""

    step: int
    module: dict[str, Tensor]
    optimizers: dict[str, Tensor]
    ema: dict[str, Tensor]
    best: dict[str, dict[str, Tensor]]
    """Of the network and of what is saved beside it, the tensors at the best evaluation so far; empty before that."""
    metadata: dict[str, Any] = field(default_factory=dict)  # what else the loop remembers, as JSON


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    final = step_folder(folder, checkpoint.step)
    remove_damaged(final)
    with new_folder(final) as place:
        for name in FILES:
            _save(place / f"{name}.safetensors", getattr(checkpoint, name))
        save_state(place, checkpoint)
    prune(folder)
    return final


def step_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def save_state(place: Path, checkpoint: Checkpoint) -> None:
    """What a checkpoint has beside the tensors of FILES: the best weights so far in one file, and numbers."""
    named = ((module, name, tensor) for module, found in checkpoint.best.items() for name, tensor in found.items())
    _save(place / "best.safetensors", {f"{module}|{name}": tensor for module, name, tensor in named})
    (place / "state.json").write_text(json.dumps({"step": checkpoint.step, **checkpoint.metadata}, indent=1))


def _save(file: Path, tensors: dict[str, Tensor]) -> None:
    if tensors:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, file)


def _load(file: Path) -> dict[str, Tensor]:
    return load_file(file) if file.exists() else {}


def prune(folder: Path) -> None:
    for old in _folders(folder)[:-MAX_CHECKPOINTS]:
        remove_folder(old)


def read_tensors(path: Path) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint that has been found whole, however many processes wrote it."""
    if not (path / SHARDS).is_dir():
        return {name: _load(path / f"{name}.safetensors") for name in FILES}
    from vitreous.training.sharded_checkpoint import read_shards

    return read_shards(path)


def load_newest(folder: Path, read: ReadTensors = read_tensors) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, if any, and a sentence about each damaged one that was skipped. read: what
    reads the tensors of one that has been found whole."""
    damaged: list[str] = []
    for path in reversed(_folders(folder)):
        try:
            check_manifest(path)
            metadata = json.loads((path / "state.json").read_text())
            files = read(path)
            best: dict[str, dict[str, Tensor]] = {}
            for key, tensor in _load(path / "best.safetensors").items():
                module, name = key.split("|")
                best.setdefault(module, {})[name] = tensor
            return Checkpoint(step=metadata.pop("step"), metadata=metadata, best=best, **files), damaged
        except (UserError, OSError, ValueError, KeyError) as error:
            damaged.append(f"{path}: damaged, the one before is used ({error})")
    return None, damaged


def has_checkpoint(folder: Path) -> bool:
    for path in _folders(folder):
        with suppress(UserError):
            check_manifest(path)
            return True
    return False


def remove_damaged(path: Path) -> None:
    """Forget a checkpoint that is not whole: the training has come to it again."""
    try:
        check_manifest(path)
    except UserError:
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
    parameters = dict(module.named_parameters())
    owner = {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for name, value in packed.items():
        parameter_name, key = name.split("|")
        parameter = parameters[parameter_name]
        if parameter in owner:  # else it is frozen now, which LoRA in frozen layers once was not
            owner[parameter].state[parameter][key] = shard_like(value, parameter)


LoadedCheckpoint = tuple[Checkpoint | None, list[str], dict[str, Tensor]]
"""A checkpoint of whole tensors, what was skipped, and the weights before the first step."""


class Saver:
    """The checkpoints of a run. Whatever wrote one, any number of processes can go on from it."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self._sharded: ShardedSaver | None = None
        if world.sharded:
            from vitreous.training.sharded_checkpoint import ShardedSaver  # half a second that few need

            self._sharded = ShardedSaver(world)

    def save(self, point: Checkpoint, start: dict[str, Tensor]) -> None:
        """Write a checkpoint; before the first, the weights that the result is blended with: they do not change."""
        if start and self.world.is_main and not _folders(self.folder):
            remove_damaged(self.folder / START)
            with new_folder(self.folder / START) as place:
                _save(place / f"{START}.safetensors", start)
        if self._sharded is not None:
            self._sharded.save(self.folder, point)
        elif self.world.is_main:
            save_checkpoint(self.folder, point)

    def finish(self) -> None:
        if self._sharded is not None:
            self._sharded.finish()

    def load(self, with_start: bool) -> LoadedCheckpoint:
        """The newest checkpoint that is whole, in every process; `with_start`: the weights at the start too. One
        process reads, and sends tensor by tensor: in one piece, they would be there several times for a while."""
        if self.world.size == 1:
            return self._find(with_start)
        read: list[LoadedCheckpoint] = []

        def outline() -> LoadedCheckpoint:
            read.append(self._find(with_start))
            return _mapped(read[0], lambda tensor: tensor.to("meta"))

        outlined = self.world.on_main(outline)
        return _mapped(read[0] if read else outlined, self.world.broadcast)

    def _find(self, with_start: bool) -> LoadedCheckpoint:
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.folder)
        point, remarks = load_newest(self.folder)
        if point is None or not with_start:
            return point, remarks, {}
        check_manifest(self.folder / START)
        return point, remarks, load_file(self.folder / START / f"{START}.safetensors")


def _mapped(found: LoadedCheckpoint, function: Callable[[Tensor], Tensor]) -> LoadedCheckpoint:
    """The same, with what the function makes of each tensor, in a fixed order."""

    def each(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: function(tensor) for name, tensor in tensors.items()}

    point, remarks, start = found
    if point is not None:
        parts = {name: each(getattr(point, name)) for name in FILES}
        best = {module: each(tensors) for module, tensors in point.best.items()}
        point = Checkpoint(step=point.step, metadata=point.metadata, best=best, **parts)
    return point, remarks, each(start)
