"""Random views of whole batches of small images in memory, by tensor operations only; and the mixing of any batch.

Letters: B images, C channels, h x w their pixels, H x W the input's. A sample's random numbers are a row of `uniforms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import (
    eval_view,
    mean_colour,
    numbered_views,
    resized_and_centre,
    seen_fractions,
    to_image,
)
from vitreous.data.augment_ops import (
    ERASE_AREA,
    ERASE_RATIO,
    LUMA,
    TRIES,
    Uniforms,
    box_sides,
    change_colours,
    fill_boxes,
    largest_sides,
    shift,
)
from vitreous.data.batch import Batch
from vitreous.data.rng import MIX, Index, generator, uniforms
from vitreous.data.token_labels import patch_edges

_CROP, _FLIP, _JITTER, _ERASE, _GREY, _TINT = 2 * TRIES + 2, 1, 3, 2 * TRIES + 3, 1, 3


class Cuts(NamedTuple):
    """Views, and where in their images they were cut; several views of each have an axis V after B."""

    images: Tensor  # (B, C, H, W), uint8 or float from 0 to 255
    box: Tensor  # (B, 4) float: top, left, height, width as fractions of the image
    flipped: Tensor  # (B,) bool


def eval_batch(images: Tensor, preprocess: Preprocess) -> Tensor:
    """The view of evaluation: (B, C, h, w) uint8 to (B, C, H, W) uint8."""
    height, width = preprocess.size
    images = to_channels(images, preprocess.channels)
    rows, columns, top, left = resized_and_centre(images.shape[2], images.shape[3], preprocess)
    if (rows, columns) != images.shape[2:]:  # torch resizes all at once, but not to the bit as Pillow does
        return torch.stack([eval_view(to_image(image), preprocess) for image in images])
    return images[:, :, top : top + height, left : left + width]


def train_batch(
    images: Tensor, indices: Index, preprocess: Preprocess, augment: Augment, *, seed: int, epoch: int, view: int = 0
) -> Cuts:
    """A random view of each image (B, C, h, w) uint8. No policies."""
    assert augment.policy == "none"
    random = uniforms(seed, epoch, indices, _CROP + _FLIP + _JITTER + _ERASE + _GREY + _TINT, view)
    crop, flip, colour, erase, grey, tint = np.split(random, np.cumsum((_CROP, _FLIP, _JITTER, _ERASE, _GREY)), axis=1)
    mirrored = torch.from_numpy(flip[:, 0] < 0.5) if augment.flip else torch.zeros(len(images), dtype=torch.bool)
    if augment.crop_scale is None:
        out, box = _shift(eval_batch(images, preprocess), augment.pad, crop, mirrored)
        box = _within(seen_fractions(images.shape[2], images.shape[3], preprocess), box)
    else:
        out, box = _crop(to_channels(images, preprocess.channels), preprocess, augment, crop, mirrored)
    out = change_colours(out, augment, colour, tint, grey)
    if augment.erase:
        boxes = random_boxes(erase[:, 1:], out.shape[2], out.shape[3], ERASE_AREA, ERASE_RATIO)
        out = fill_boxes(out, boxes, erase[:, 0] < augment.erase, mean_colour(preprocess))
    return Cuts(out, box, mirrored)


def cut_batch(
    images: Tensor,
    indices: Index,
    preprocess: Preprocess,
    augment: Augment,
    views: Mapping[str, View],
    *,
    seed: int,
    epoch: int,
) -> dict[str, Cuts]:
    """The wanted views of each image by name: images (B, V, C, H, W), box (B, V, 4), flipped (B, V)."""
    return {
        name: stack_cuts(
            [train_batch(images, indices, prepared, varied, seed=seed, epoch=epoch, view=number) for number in numbers]
        )
        for name, numbers, prepared, varied in numbered_views(preprocess, augment, views)
    }


def stack_cuts(cuts: list[Cuts]) -> Cuts:
    return Cuts(*(torch.stack(tensors, dim=1) for tensors in zip(*cuts, strict=True)))


def _within(outer: tuple[float, float, float, float], inner: Tensor) -> Tensor:
    """Boxes (B, 4) that are shares of a box, as shares of what that box is a share of."""
    y, x, h, w = outer
    return torch.tensor([y, x, 0, 0]) + inner * torch.tensor([h, w, h, w])


def to_channels(images: Tensor, channels: int) -> Tensor:
    """(B, 1 or 3, h, w) uint8 in the model's channels, as Pillow converts them."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    weights = torch.tensor(LUMA, dtype=torch.int32)[:, None, None]
    return ((images.int() * weights).sum(1, keepdim=True, dtype=torch.int32) + 0x8000 >> 16).to(torch.uint8)


def random_boxes(
    random: Uniforms, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[NDArray[np.int64], ...]:
    """(top, left, height, width), each (B,): `augment.random_box` for many, from random (B, 2 x TRIES + 2)."""
    h, w, fits = box_sides(random[:, :TRIES], random[:, TRIES : 2 * TRIES], height, width, scale, ratio)
    first, some = fits.argmax(axis=1)[:, None], fits.any(axis=1)
    tall, wide = largest_sides(height, width, ratio)
    h = np.where(some, np.take_along_axis(h, first, 1)[:, 0], tall)
    w = np.where(some, np.take_along_axis(w, first, 1)[:, 0], wide)
    top = np.where(some, np.floor(random[:, -2] * (height - h + 1)), (height - h) // 2)
    left = np.where(some, np.floor(random[:, -1] * (width - w + 1)), (width - w) // 2)
    return tuple(side.astype(np.int64) for side in (top, left, h, w))


def _shift(images: Tensor, pad: int, random: Uniforms, mirrored: Tensor) -> tuple[Tensor, Tensor]:
    """Shifted by up to `pad` pixels each way with the border reflected, and mirrored: (B, C, H, W) uint8; the boxes."""
    height, width = images.shape[2:]
    pad = min(pad, height - 1, width - 1)
    by = torch.from_numpy(np.floor(random[:, :2] * (2 * pad + 1)).astype(np.int64)) - pad  # (B, 2)
    box = torch.cat([by / torch.tensor([height, width]), torch.ones(len(images), 2)], dim=1)
    return shift(images, by, mirrored), box


def _crop(
    images: Tensor, preprocess: Preprocess, augment: Augment, random: Uniforms, mirrored: Tensor
) -> tuple[Tensor, Tensor]:
    """Random boxes resampled to (H, W), some mirrored, by one bilinear lookup: (B, C, H, W) float; and the boxes."""
    assert augment.crop_scale is not None
    height, width = images.shape[2:]
    boxes = random_boxes(random, height, width, augment.crop_scale, augment.crop_ratio)
    top, left, h, w = (torch.from_numpy(side).float() for side in boxes)
    theta = torch.zeros(len(images), 2, 3)  # from the view's -1 to 1 to the image's
    theta[:, 0, 0] = torch.where(mirrored, -w, w) / width
    theta[:, 1, 1] = h / height
    theta[:, 0, 2] = (2 * left + w) / width - 1
    theta[:, 1, 2] = (2 * top + h) / height - 1
    grid = F.affine_grid(theta, [len(images), images.shape[1], *preprocess.size], align_corners=False)
    mode = "nearest" if preprocess.interpolation == "nearest" else "bilinear"
    views = F.grid_sample(images.float(), grid, mode=mode, padding_mode="border", align_corners=False)
    return views, torch.stack([top / height, left / width, h / height, w / width], dim=1)


class Rectangle(NamedTuple):
    """Rows and columns, from the first to before the last."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        return (self.bottom - self.top) * (self.right - self.left)


def mix(batch: Batch, classes: int, augment: Augment, *, seed: int, epoch: int, patch: int | None = None) -> Batch:
    """The batch with its plain views mixed, and soft targets (B, K) that sum to 1; so are targets of patches, if any.

    Targets may have been soft before. Mixup (Zhang et al. 2018) blends two images, CutMix (Yun et al. 2019) exchanges
    a rectangle, MixToken (Jiang et al. 2021) one of entire patches; with several, one is drawn. Neighbours in the batch
    are a pair, whose random numbers are a pure function of (seed, epoch, index of the first): nothing changes where a
    batch is divided between pairs. Of an odd number, the last image stays as it is.

    patch: the side of the model's patches, in pixels.
    """
    images, index, tokens = batch.images, batch.index.tolist(), batch.token_targets
    mixed, lam, partner = images.clone(), torch.ones(len(images), 1), torch.arange(len(images))
    token_lam = None if tokens is None else torch.ones(*tokens.shape[:2], 1)  # what is left of each patch
    for first in range(0, len(images) - 1, 2):
        both = slice(first, first + 2)
        rng = generator(seed, epoch, index[first], MIX)
        mixed[both], lam[both], hole = _mix_pair(images[both], augment, rng, patch)
        if token_lam is not None:
            assert patch is not None
            token_lam[both] = lam[both, None] if hole is None else 1 - covered(hole, images.shape[2:], patch)
        partner[both] = partner[both].flip(0)
    soft = F.one_hot(batch.targets, classes).float() if batch.targets.ndim == 1 else batch.targets
    view = replace(batch.views["image"], images=mixed[:, None])
    if tokens is not None and token_lam is not None:
        tokens = torch.lerp(tokens[partner], tokens, token_lam)
    return replace(
        batch,
        views={**batch.views, "image": view},
        targets=torch.lerp(soft[partner], soft, lam),
        partner=batch.index[partner],
        lam=lam[:, 0],
        token_targets=tokens,
    )


def _mix_pair(
    pair: Tensor, augment: Augment, rng: np.random.Generator, patch: int | None
) -> tuple[Tensor, float, Rectangle | None]:
    """Two images (2, C, H, W), each with something of the other; what is left of its own; what was exchanged."""
    kinds = [name for name in ("cutmix", "mixup", "mixtoken") if getattr(augment, name) > 0]
    kind = kinds[int(rng.random() * len(kinds))] if len(kinds) > 1 else kinds[0]
    alpha = getattr(augment, kind)
    lam = float(rng.beta(alpha, alpha))
    if kind == "mixup":
        return torch.lerp(pair.flip(0), pair, lam), lam, None
    height, width = pair.shape[2:]
    if kind == "cutmix":
        hole = _rectangle(height, width, lam, rng)
        return _exchange(pair, hole), 1 - hole.area / (height * width), hole
    assert patch is not None
    rows, columns = -(-height // patch), -(-width // patch)
    cells = _rectangle(rows, columns, lam, rng)
    top, bottom, left, right = (patch * edge for edge in cells)
    hole = Rectangle(top, min(bottom, height), left, min(right, width))
    return _exchange(pair, hole), 1 - cells.area / (rows * columns), hole


def _rectangle(height: int, width: int, lam: float, rng: np.random.Generator) -> Rectangle:
    """About 1 - lam of an area, at a random place, cut at the borders."""
    h, w = (round(side * (1 - lam) ** 0.5) for side in (height, width))
    row, column = int(rng.random() * height), int(rng.random() * width)
    top, left = row - h // 2, column - w // 2
    return Rectangle(max(top, 0), min(top + h, height), max(left, 0), min(left + w, width))


def _exchange(pair: Tensor, hole: Rectangle) -> Tensor:
    """Two images (2, C, H, W) with what lies in the rectangle exchanged."""
    mixed, (top, bottom, left, right) = pair.clone(), hole
    mixed[:, :, top:bottom, left:right] = pair.flip(0)[:, :, top:bottom, left:right]
    return mixed


def covered(hole: Rectangle, size: tuple[int, ...], patch: int) -> Tensor:
    """(N, 1): which fraction of each patch of an image (height, width) a rectangle covers."""
    sides = []
    for start, end, pixels in ((hole.top, hole.bottom, size[0]), (hole.left, hole.right, size[1])):
        first, last = patch_edges(pixels, patch)
        inside = (last.clamp(max=end) - first.clamp(min=start)).clamp(min=0)
        sides.append(inside / (last - first))
    return (sides[0][:, None] * sides[1]).float().reshape(-1, 1)
