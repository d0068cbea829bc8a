"""What one image and a batch of images are varied by: each change once, of tensors, from uniform numbers.

Letters: B images, C channels, H x W their pixels. Numbers that an image does not need are not looked at.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.config.data import Augment

Uniforms = NDArray[np.float64]

TRIES = 10  # boxes that are drawn until one fits
ERASE_AREA = (0.02, 1 / 3)
ERASE_RATIO = (0.3, 3.3)
LUMA = (19595, 38470, 7471)  # ITU-R 601 in 65536ths, as Pillow has it


def box_sides(
    area: Any, shape: Any, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Any, Any, Any]:
    """Height and width of boxes of a uniform fraction of the area and a log-uniform ratio of width to height, from
    uniform numbers of any shape, and whether they fit."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = height * width * (scale[0] + (scale[1] - scale[0]) * area)
    shape = np.exp(low + (high - low) * shape)
    h, w = np.rint(np.sqrt(area / shape)), np.rint(np.sqrt(area * shape))
    return h, w, (h > 0) & (h <= height) & (w > 0) & (w <= width)


def largest_sides(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Height and width of the largest box of a permitted ratio."""
    shape = min(max(width / height, ratio[0]), ratio[1])
    return min(height, max(round(width / shape), 1)), min(width, max(round(height * shape), 1))


def shift(images: Tensor, by: Tensor, mirrored: Tensor) -> Tensor:
    """Images shifted by (B, 2) pixels, down and right, with the border reflected; some (B,) then mirrored. Each output
    row and column is looked up by number, so nothing is padded and no value changes."""
    count, channels, height, width = images.shape
    rows = _reflect(torch.arange(height) + by[:, :1], height)  # (B, H)
    columns = _reflect(torch.arange(width) + by[:, 1:], width)  # (B, W)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    place = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, -1).expand(-1, channels, -1)
    return images.reshape(count, channels, -1).gather(2, place).view(images.shape)


def _reflect(place: Tensor, side: int) -> Tensor:
    """Indices outside 0 to side - 1, reflected at the first and last pixel."""
    return (side - 1) - ((side - 1) - place.abs()).abs()


def change_colours(images: Tensor, augment: Augment, jitter: Uniforms, tint: Uniforms, grey: Uniforms) -> Tensor:
    """Brightness, contrast and saturation (B, 3), then the light (B, C), then no colours at all (B, 1): float from 0 to
    255 if anything changed."""
    if augment.jitter:
        factors = _around_1(jitter, augment.jitter)[..., None]  # (B, 3, 1, 1, 1)
        images = (images.float() * factors[:, 0]).clamp_(0, 255)
        images = torch.lerp(luma(images).mean((2, 3), keepdim=True), images, factors[:, 1]).clamp_(0, 255)
        images = torch.lerp(luma(images), images, factors[:, 2]).clamp_(0, 255)
    if augment.tint:
        images = (images.float() * _around_1(tint[:, : images.shape[1]], augment.tint)).clamp_(0, 255)
    if augment.grey:
        chosen = torch.from_numpy(grey < augment.grey)[:, :, None, None]
        images = torch.where(chosen, luma(images.float()), images.float())
    return images


def _around_1(uniforms: Uniforms, by: float) -> Tensor:
    """(B, n, 1, 1) factors from 1 - by to 1 + by."""
    return torch.from_numpy(1 + by * (2 * uniforms - 1)).float()[:, :, None, None]


def luma(images: Tensor) -> Tensor:
    """(B, C, H, W) float to its luma (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    weights = torch.tensor(LUMA, dtype=images.dtype, device=images.device) / 65536
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def fill_boxes(
    images: Tensor, boxes: tuple[NDArray[np.int64], ...], chosen: NDArray[np.bool_], colour: Tensor
) -> Tensor:
    """Of the chosen images (B,) a box (top, left, height and width, each (B,)) replaced by `colour` (C,)."""
    top, left, h, w = (torch.from_numpy(side)[:, None] for side in boxes)
    row, column = torch.arange(images.shape[2]), torch.arange(images.shape[3])
    rows, columns = (row >= top) & (row < top + h), (column >= left) & (column < left + w)  # (B, H), (B, W)
    hole = (rows & torch.from_numpy(chosen)[:, None])[:, None, :, None] & columns[:, None, None, :]  # (B, 1, H, W)
    return torch.where(hole, colour.to(images.dtype)[:, None, None], images)
