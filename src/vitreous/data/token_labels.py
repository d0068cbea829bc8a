"""A label for every patch: a teacher's probabilities for places of a full image, cut as the image was cut.

Letters: B images, N patches of a view, h x w cells of a map, K classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vitreous.data.batch import ViewBatch

MIN_SAMPLES = 2  # along each side of a patch at least, as RoI-align usually takes


class ScoreMaps(Protocol):
    """A teacher's probabilities at the places of images: a map spans the full upright image."""

    def read(self, index: Tensor) -> Tensor:
        """(B, h, w, K) float32 that sum to 1, of the images with these numbers (B,)."""


@dataclass(frozen=True)
class TokenLabels:
    """Labels of the patches of a student's views."""

    maps: ScoreMaps
    patch: int  # the side of the student's patches, in pixels of a view
    # The views are those of evaluation, shifted, and their pixels reflected at its border (no `crop_scale`).
    reflected: bool

    def cut(self, index: Tensor, view: ViewBatch) -> Tensor:
        """(B, N, K) of the first view of each image: RoI-align, the mean of bilinear samples within each patch."""
        maps, (height, width) = self.maps.read(index), view.images.shape[3:]
        top, left, tall, wide = view.box[:, 0].double().unbind(dim=1)
        rows = self._weights(top, tall, torch.zeros_like(view.flipped[:, 0]), height, maps.shape[1])
        columns = self._weights(left, wide, view.flipped[:, 0], width, maps.shape[2])
        found = torch.bmm(rows, maps.flatten(2)).view(len(maps), -1, *maps.shape[2:])  # (B, patches down, w, K)
        found = torch.matmul(columns[:, None], found)  # (B, patches down, patches across, K)
        return found.flatten(1, 2)

    def _weights(self, start: Tensor, length: Tensor, flipped: Tensor, pixels: int, cells: int) -> Tensor:
        """(B, patches, cells) along one axis: how much of each cell of a map a patch of the view takes.

        start, length: (B,) where the view lies, as fractions of the image; flipped: (B,) mirrored after it was cut.
        """
        first, last = patch_edges(pixels, self.patch)
        samples = max(MIN_SAMPLES, math.ceil(cells / len(first)))
        within = (torch.arange(samples) + 0.5) / samples
        place = (first[:, None] + (last - first)[:, None] * within) / pixels  # (patches, samples), 0 to 1 of the view
        place = torch.where(flipped[:, None, None], 1 - place, place)
        place = start[:, None, None] + length[:, None, None] * place  # the same of the image
        if self.reflected:
            place = _reflect(place, length[:, None, None], pixels)
        cell = (cells * place - 0.5).clamp(0, cells - 1)  # the centre of the first cell is at 0
        near = (1 - (cell[..., None] - torch.arange(cells)).abs()).clamp(min=0)  # bilinear: the two nearest cells
        return near.mean(dim=2).float()


def patch_edges(pixels: int, patch: int) -> tuple[Tensor, Tensor]:
    """(first, last), each (n,) float64: from where to where each patch of one side reaches; the last may be cut."""
    first = torch.arange(0, pixels, patch, dtype=torch.float64)
    return first, (first + patch).clamp(max=pixels)


def _reflect(place: Tensor, length: Tensor, pixels: int) -> Tensor:
    """Places beyond what evaluation sees, the centred `length` of the image, mirrored at its outermost pixels."""
    pixel = length / pixels
    low, high = (1 - length + pixel) / 2, (1 + length - pixel) / 2
    return high - (high - (low + (place - low).abs())).abs()
