"""Where patches lie on the image that a person gave: resizing, cropping and padding undone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.config.data import Preprocess
from vitreous.config.model import grid_of
from vitreous.data.augment import seen_box
from vitreous.errors import UserError

Map = NDArray[np.float32]


@dataclass(frozen=True)
class PatchGeometry:
    """How a grid of patches lies on an upright image."""

    size: tuple[int, int]  # height and width of the image, in pixels
    box: tuple[float, float, float, float]  # left, top, right and bottom of what the model saw of it
    grid: tuple[int, int]  # rows and columns of patches
    step: tuple[float, float]  # height and width of a patch, in the image's pixels

    def upsample(self, patches: NDArray[np.floating]) -> Map:
        """Values of patches (..., rows, columns) as values of pixels (..., height, width).

        Linear between the centres of patches, constant beyond the outermost, and 0 where the model did not look.
        """
        down = _weights(self.size[0], self.box[1], self.box[3], self.step[0], self.grid[0])
        across = _weights(self.size[1], self.box[0], self.box[2], self.step[1], self.grid[1])
        return down @ patches.astype(np.float32) @ across.T

    def seen(self) -> NDArray[np.bool_]:
        """(height, width): which pixels the model saw, those whose centre lies in the box."""
        left, top, right, bottom = self.box
        rows, columns = np.arange(self.size[0]) + 0.5, np.arange(self.size[1]) + 0.5
        return ((rows > top) & (rows < bottom))[:, None] & ((columns > left) & (columns < right))

    def scaled(self, height: int, width: int) -> PatchGeometry:
        """The same on the image made smaller or larger."""
        down, across = height / self.size[0], width / self.size[1]
        left, top, right, bottom = self.box
        box = left * across, top * down, right * across, bottom * down
        return PatchGeometry((height, width), box, self.grid, (self.step[0] * down, self.step[1] * across))

    def centres(self) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """The rows' and the columns' centres in the image's pixels, (rows,) and (columns,)."""
        rows, columns = np.arange(self.grid[0]) + 0.5, np.arange(self.grid[1]) + 0.5
        return self.box[1] + rows * self.step[0], self.box[0] + columns * self.step[1]

    def patch_at(self, x: float, y: float) -> int:
        """The patch, counted row by row, that lies on a point of the image."""
        height, width = self.size
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(f"query {x:g},{y:g}: the image is {width} wide and {height} high; give a point inside.")
        left, top, right, bottom = self.box
        if not (left <= x < right and top <= y < bottom):
            raise UserError(
                f"query {x:g},{y:g}: the model sees only the part from {left:.0f},{top:.0f} to "
                f"{right:.0f},{bottom:.0f} of this image; give a point in it."
            )
        row, column = int((y - top) / self.step[0]), int((x - left) / self.step[1])
        return min(row, self.grid[0] - 1) * self.grid[1] + min(column, self.grid[1] - 1)


def place_patches(height: int, width: int, preprocess: Preprocess, patch: int) -> PatchGeometry:
    """How the patches of side `patch` lie on an image of this height and width, prepared like this."""
    box = seen_box(height, width, preprocess)
    view_height, view_width = preprocess.size
    step = (box[3] - box[1]) * patch / view_height, (box[2] - box[0]) * patch / view_width
    return PatchGeometry((height, width), box, grid_of(preprocess.size, patch), step)


def place_cells(height: int, width: int, preprocess: Preprocess, grid: tuple[int, int]) -> PatchGeometry:
    """How a feature map of so many rows and columns, which covers all that the model sees, lies on such an image."""
    box = seen_box(height, width, preprocess)
    return PatchGeometry((height, width), box, grid, ((box[3] - box[1]) / grid[0], (box[2] - box[0]) / grid[1]))


def _weights(pixels: int, start: float, end: float, step: float, cells: int) -> Map:
    """(pixels, cells): how much each cell counts for each pixel along one axis; rows sum to 1, or to 0 outside."""
    centre = np.arange(pixels) + 0.5
    place = np.clip((centre - start) / step - 0.5, 0, cells - 1)
    made = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(cells)))
    inside = (centre > start) & (centre < end)
    return (made * inside[:, None]).astype(np.float32)
