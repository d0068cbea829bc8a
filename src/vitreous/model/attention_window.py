"""How far a patch looks: at all others, at its neighbours, or along its row or column; and what that saves.

Counted without torch, so that asking for a cost is instant. A grid is (rows, columns) of patches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from vitreous.config.model import ViTConfig

Grid = tuple[int, int]


class AttentionWindow(NamedTuple):
    """The patches that a patch attends to: those at most so many rows and so many columns away; None for any number.

    Class token and registers have no place: they attend to every token, and every token attends to them.
    """

    rows: int | None = None
    columns: int | None = None

    def covers(self, grid: Grid) -> bool:
        return all(_everywhere(limit, length) for limit, length in zip(self, grid, strict=True))


def window_of(c: ViTConfig, layer: int) -> AttentionWindow:
    """That of one block.

    Axial attention takes turns, as the paper's Axial-ViT does (appendix D.6): blocks 0, 2, ... look along rows, blocks
    1, 3, ... along columns. Two blocks together see the whole image, and no parameter is added.
    """
    if c.attention == "axial":
        return AttentionWindow(rows=0) if layer % 2 == 0 else AttentionWindow(columns=0)
    if c.attention == "neighbourhood":
        assert c.window is not None
        return AttentionWindow(c.window // 2, c.window // 2)
    return AttentionWindow()


@dataclass(frozen=True)
class Tiles:
    """A grid cut into equal tiles. The patches of a tile ask together, and what they may see is the tile with a halo.

    Tiles at the lower and right border may go beyond the grid.
    """

    count: Grid
    side: Grid
    halo: Grid  # rows above and below, columns to the left and to the right

    @property
    def queries(self) -> int:
        """Of a tile."""
        return math.prod(self.side)

    @property
    def keys(self) -> int:
        """Of a tile with its halo."""
        return math.prod(side + 2 * halo for side, halo in zip(self.side, self.halo, strict=True))

    @property
    def logits(self) -> int:
        """Pairs of a query and a key in all tiles."""
        return math.prod(self.count) * self.queries * self.keys


TILE_SIDE = 8
"""Patches along a tile, unless the window is longer: smaller tiles read most keys many times (docs/decisions.md)."""
MAX_TILED_FRACTION, MIN_TILED_PATCHES = 0.25, 128
"""Tiles are cut where they leave so much of the full matrix at most, and where there are so many patches: cutting takes
time too."""


def tiles_of(window: AttentionWindow, grid: Grid) -> Tiles | None:
    """How a grid is cut so that attention within this window needs few logits; None if the full matrix is as good."""
    if window.covers(grid):
        return None
    axes = [_cut_axis(limit, length) for limit, length in zip(window, grid, strict=True)]
    count, side, halo = zip(*axes, strict=True)
    tiles = Tiles(count, side, halo)
    patches = math.prod(grid)
    return tiles if patches >= MIN_TILED_PATCHES and tiles.logits <= MAX_TILED_FRACTION * patches**2 else None


def count_logits(window: AttentionWindow, grid: Grid, prefix: int) -> int:
    """Pairs of a query and a key that attention of all tokens within this window computes, for one head."""
    patches = math.prod(grid)
    tiles = tiles_of(window, grid)
    if tiles is None:
        return (prefix + patches) ** 2
    return prefix * (prefix + patches) + math.prod(tiles.count) * tiles.queries * (tiles.keys + prefix)


def _cut_axis(limit: int | None, length: int) -> tuple[int, int, int]:
    """Tiles along one axis: their count, side and halo."""
    if limit is None or _everywhere(limit, length):
        return 1, length, 0
    if limit == 0:
        return length, 1, 0
    count = -(-length // max(2 * limit, TILE_SIDE))
    return count, -(-length // count), limit


def _everywhere(limit: int | None, length: int) -> bool:
    return limit is None or limit >= length - 1
