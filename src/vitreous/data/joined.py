"""Several sources as one: images that people labelled, and images that a model did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.chance import Index
from vitreous.data.decode import Header
from vitreous.data.making import Gathers
from vitreous.data.source import Labels, Shares, Source


class JoinedSource(Source):
    """The images of several sources, one source after the other; some may come several times."""

    def __init__(
        self,
        parts: Sequence[Source],
        labels: Labels,
        classes: tuple[str, ...],
        soft: Shares | None = None,
        rows: Labels | None = None,
    ) -> None:
        """rows (n,): which of all images, counted through the parts, None for all; labels (n,); soft (n, K)."""
        self.parts, self.labels, self.classes, self.soft = tuple(parts), labels, classes, soft
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self._rows = np.arange(self._starts[-1]) if rows is None else rows

    def _place(self, index: int) -> tuple[int, int]:
        """The part that holds an image, and its number there."""
        (part,), (own,) = self._places(np.array([index]))
        return int(part), int(own)

    def _places(self, indices: Index) -> tuple[Index, Index]:
        """(n,) the parts that hold images, and (n,) their numbers there."""
        rows = self._rows[indices]
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        return owners, rows - self._starts[owners]

    @property
    def whole(self) -> int:
        """Those of all parts."""
        return sum(part.whole for part in self.parts)

    def name(self, index: int) -> str:
        """As its own source calls it."""
        part, own = self._place(index)
        return self.parts[part].name(own)

    def key(self, index: int) -> str:
        """The number of its source, and its key there: two sources may have the same names."""
        part, own = self._place(index)
        return f"{part}/{self.parts[part].key(own)}"

    def read(self, index: int, *, channels: int = 3, at_least: int | None = None) -> Image.Image:
        """The decoded image."""
        part, own = self._place(index)
        return self.parts[part].read(own, channels=channels, at_least=at_least)

    def header(self, index: int) -> Header:
        """As its own source has it."""
        part, own = self._place(index)
        return self.parts[part].header(own)

    def content(self, index: int) -> bytes:
        """As its own source has it."""
        part, own = self._place(index)
        return self.parts[part].content(own)

    def encoded(self, index: int) -> bytes:
        """As its own source has it."""
        part, own = self._place(index)
        return self.parts[part].encoded(own)

    def size(self, index: int) -> int:
        """As its own source has it."""
        part, own = self._place(index)
        return self.parts[part].size(own)

    def expect(self, indices: Index, besides: bool = False) -> None:
        """Tell each source which of its own are read next, in the order of all."""
        owners, own = self._places(indices)
        for run in np.split(np.arange(len(owners)), np.flatnonzero(np.diff(owners)) + 1):
            if len(run):
                self.parts[owners[run[0]]].expect(own[run], besides)
                besides = True

    def subset(self, indices: Sequence[int] | Labels) -> JoinedSource:
        """These images, with their soft targets."""
        chosen = np.asarray(indices, dtype=np.int64)
        soft = None if self.soft is None else self.soft[chosen]
        return type(self)(self.parts, self.labels[chosen], self.classes, soft, self._rows[chosen])

    def with_labels(self, labels: Labels, classes: tuple[str, ...]) -> JoinedSource:
        """The same images with other labels, and no soft targets any more."""
        return type(self)(self.parts, labels, classes, None, self._rows)


class JoinedArrays(JoinedSource):
    """The same of images in memory that are all of one size, so that a whole batch can be varied at once."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        first = self.parts[0]
        assert isinstance(first, Gathers)
        return first.shape

    def gather(self, indices: Labels) -> Tensor:
        """(B, C, H, W) uint8: these images as they are."""
        owners, own = self._places(indices)
        found = torch.empty((len(owners), *self.shape), dtype=torch.uint8)
        for number, part in enumerate(self.parts):
            assert isinstance(part, Gathers)
            mine = owners == number
            found[torch.from_numpy(mine)] = part.gather(own[mine])
        return found


def join_sources(
    parts: Sequence[Source], labels: Labels, classes: tuple[str, ...], soft: Shares | None = None
) -> JoinedSource:
    """All images of the parts, with these labels (n,) and soft targets (n, K)."""
    shapes = {part.shape if isinstance(part, Gathers) else None for part in parts}
    kind = JoinedArrays if len(shapes) == 1 and None not in shapes else JoinedSource
    return kind(parts, labels, classes, soft)
