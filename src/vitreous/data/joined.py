"""Several sources as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.decode import Header
from vitreous.data.rng import Index, derived_seed
from vitreous.data.source import Source


class JoinedSource(Source):
    """The images of several sources, one source after the other; some may come several times."""

    def __init__(self, parts: Sequence[Source]) -> None:
        """parts: all with the same classes. If one has soft targets, all do: another's are its labels."""
        self.parts, self.classes = tuple(parts), parts[0].classes
        assert all(part.classes == self.classes for part in parts)
        self.labels = np.concatenate([part.labels for part in parts])
        if any(part.soft is not None for part in parts):
            certain = np.eye(len(self.classes), dtype=np.float32)
            self.soft = np.concatenate([certain[part.labels] if part.soft is None else part.soft for part in parts])
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self._rows = np.arange(self._starts[-1])

    def _locate(self, indices: Index) -> tuple[Index, Index]:
        """(n,) the parts that hold images, and (n,) their numbers there."""
        rows = self._rows[indices]
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        return owners, rows - self._starts[owners]

    def _one(self, index: int) -> tuple[Source, int]:
        (owner,), (own,) = self._locate(np.array([index]))
        return self.parts[owner], int(own)

    @property
    def total(self) -> int:
        return sum(part.total for part in self.parts)

    def name(self, index: int) -> str:
        part, own = self._one(index)
        return part.name(own)

    def key(self, index: int) -> str:
        """The number of its source, and its key there: two sources may have the same names."""
        (owner,), (own,) = self._locate(np.array([index]))
        return f"{owner}/{self.parts[owner].key(int(own))}"

    def read(self, index: int, *, channels: int = 3, at_least: int | None = None) -> Image.Image:
        part, own = self._one(index)
        return part.read(own, channels=channels, at_least=at_least)

    def header(self, index: int) -> Header:
        part, own = self._one(index)
        return part.header(own)

    def content(self, index: int) -> bytes:
        part, own = self._one(index)
        return part.content(own)

    def encoded(self, index: int) -> bytes:
        part, own = self._one(index)
        return part.encoded(own)

    def size(self, index: int) -> int:
        part, own = self._one(index)
        return part.size(own)

    @property
    def shape(self) -> tuple[int, int, int] | None:
        shapes = {part.shape for part in self.parts}
        return shapes.pop() if len(shapes) == 1 else None

    def gather(self, indices: Index) -> Tensor:
        assert self.shape is not None
        owners, own = self._locate(indices)
        found = torch.empty((len(owners), *self.shape), dtype=torch.uint8)
        for number, part in enumerate(self.parts):
            mine = owners == number
            found[torch.from_numpy(mine)] = part.gather(own[mine])
        return found

    @property
    def has_own_order(self) -> bool:
        return any(part.has_own_order for part in self.parts)

    def order(self, seed: int, epoch: int) -> Index:
        """Which source is next is random; the images of each come in its own order."""
        mixed = super().order(seed, epoch)
        if not self.has_own_order:
            return mixed
        owners, own = self._locate(np.arange(len(self)))
        found = np.empty_like(mixed)
        for number, part in enumerate(self.parts):
            mine = np.flatnonzero(owners == number)
            found[owners[mixed] == number] = mine[part.subset(own[mine]).order(derived_seed(seed, number), epoch)]
        return found

    def expect(self, indices: Index, keep_pending: bool = False) -> None:
        """Tell each source which of its own are read next, in the order of all."""
        owners, own = self._locate(indices)
        for run in np.split(np.arange(len(owners)), np.flatnonzero(np.diff(owners)) + 1):
            if len(run):
                self.parts[owners[run[0]]].expect(own[run], keep_pending)
                keep_pending = True

    def damage(self) -> dict[str, str]:
        return {name: why for part in self.parts for name, why in part.damage().items()}
