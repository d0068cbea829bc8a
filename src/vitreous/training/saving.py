"""Who writes a checkpoint and who reads it: the first process, or of a sharded training every one its part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from vitreous.distributed.world import World
from vitreous.storage.files import remove_unfinished
from vitreous.training.state import (
    FILES,
    SHARDS,
    Checkpoint,
    load_newest,
    load_start,
    read_files,
    save_checkpoint,
    save_start,
)

if TYPE_CHECKING:
    from vitreous.training.sharded_state import ShardedSaver

Found = tuple[Checkpoint | None, list[str], dict[str, Tensor]]
"""A checkpoint of whole tensors, what was passed over, and the weights before the first step."""


class Saver:
    """The checkpoints of a run. Whatever wrote one, any number of processes can go on from it."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self._sharded: ShardedSaver | None = None
        if world.sharded:
            from vitreous.training.sharded_state import ShardedSaver  # half a second that few need

            self._sharded = ShardedSaver(world)

    def save(self, point: Checkpoint, start: dict[str, Tensor]) -> None:
        """Write a checkpoint; before the first, the weights that the result is blended with."""
        if start and self.world.is_main:
            save_start(self.folder, start)
        if self._sharded is not None:
            self._sharded.save(self.folder, point)
        elif self.world.is_main:
            save_checkpoint(self.folder, point)

    def finish(self) -> None:
        """Return when all that was saved is on the disk."""
        if self._sharded is not None:
            self._sharded.finish()

    def load(self, with_start: bool) -> Found:
        """The newest checkpoint that is whole, in every process; `with_start`: the weights at the start too.

        One process reads, and sends tensor by tensor: in one piece, they would be there several times for a while.
        """
        if self.world.size == 1:
            return self._find(with_start)
        read: list[Found] = []

        def outline() -> Found:
            read.append(self._find(with_start))
            return _mapped(read[0], lambda tensor: tensor.to("meta"))

        outlined = self.world.on_main(outline)
        return _mapped(read[0] if read else outlined, self.world.broadcast)

    def _find(self, with_start: bool) -> Found:
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.folder)
        point, remarks = load_newest(self.folder, _read)
        return point, remarks, load_start(self.folder) if point is not None and with_start else {}


def _mapped(found: Found, function: Callable[[Tensor], Tensor]) -> Found:
    """The same, with what the function makes of each tensor, in a fixed order."""

    def each(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: function(tensor) for name, tensor in tensors.items()}

    point, remarks, start = found
    if point is not None:
        parts = {name: each(getattr(point, name)) for name in FILES}
        best = {module: each(tensors) for module, tensors in point.best.items()}
        point = Checkpoint(step=point.step, facts=point.facts, best=best, **parts)
    return point, remarks, each(start)


def _read(path: Path) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint that has been found whole."""
    if not (path / SHARDS).is_dir():
        return read_files(path)
    from vitreous.training.sharded_state import read_shards

    return read_shards(path)
