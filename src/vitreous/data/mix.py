"""Mixup, CutMix and MixToken: the images of a batch are blended two by two, and so are their targets."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config.data import Augment
from vitreous.data.batch import Batch
from vitreous.data.chance import MIX, generator
from vitreous.data.token_labels import cell_edges


class Rectangle(NamedTuple):
    """Rows and columns, from the first to before the last."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        """How many pixels or cells it has."""
        return (self.bottom - self.top) * (self.right - self.left)


def mix(batch: Batch, classes: int, augment: Augment, *, seed: int, epoch: int, patch: int | None = None) -> Batch:
    """The batch with its plain views mixed, and soft targets (B, K) that sum to 1; so are targets of patches, if any.

    Targets may have been soft before. Mixup (Zhang et al. 2018) blends two images, CutMix (Yun et al. 2019) exchanges
    a rectangle, MixToken (Jiang et al. 2021) one of whole patches; with several, one is drawn. Neighbours in the batch
    are a pair, whose chance is a pure function of (seed, epoch, index of the first): nothing changes where a batch is
    divided between pairs. Of an odd number, the last image stays as it is.

    patch: the side of the model's patches, in pixels.
    """
    images, index, tokens = batch.images, batch.index.tolist(), batch.token_targets
    mixed, shares, partner = images.clone(), torch.ones(len(images), 1), torch.arange(len(images))
    left = None if tokens is None else torch.ones(*tokens.shape[:2], 1)  # of each patch, the share of its own image
    for first in range(0, len(images) - 1, 2):
        both = slice(first, first + 2)
        rng = generator(seed, epoch, index[first], MIX)
        mixed[both], shares[both], hole = _mix_pair(images[both], augment, rng, patch)
        if left is not None:
            assert patch is not None
            left[both] = shares[both, None] if hole is None else 1 - covered(hole, images.shape[2:], patch)
        partner[both] = partner[both].flip(0)
    soft = F.one_hot(batch.targets, classes).float() if batch.targets.ndim == 1 else batch.targets
    view = replace(batch.views["image"], images=mixed[:, None])
    if tokens is not None and left is not None:
        tokens = torch.lerp(tokens[partner], tokens, left)
    return replace(
        batch,
        views={**batch.views, "image": view},
        targets=torch.lerp(soft[partner], soft, shares),
        partner=batch.index[partner],
        share=shares[:, 0],
        token_targets=tokens,
    )


def _mix_pair(
    pair: Tensor, augment: Augment, rng: np.random.Generator, patch: int | None
) -> tuple[Tensor, float, Rectangle | None]:
    """Two images (2, C, H, W), each with something of the other; the share left of its own; what was exchanged."""
    ways = [name for name in ("cutmix", "mixup", "mixtoken") if getattr(augment, name) > 0]
    way = ways[int(rng.random() * len(ways))] if len(ways) > 1 else ways[0]
    alpha = getattr(augment, way)
    share = float(rng.beta(alpha, alpha))
    if way == "mixup":
        return torch.lerp(pair.flip(0), pair, share), share, None
    height, width = pair.shape[2:]
    if way == "cutmix":
        hole = _rectangle(height, width, share, rng)
        return _exchange(pair, hole), 1 - hole.area / (height * width), hole
    assert patch is not None
    rows, columns = -(-height // patch), -(-width // patch)
    cells = _rectangle(rows, columns, share, rng)
    top, bottom, left, right = (patch * edge for edge in cells)
    hole = Rectangle(top, min(bottom, height), left, min(right, width))
    return _exchange(pair, hole), 1 - cells.area / (rows * columns), hole


def _rectangle(height: int, width: int, share: float, rng: np.random.Generator) -> Rectangle:
    """About 1 - share of an area, at a random place, cut at the borders."""
    h, w = (round(side * (1 - share) ** 0.5) for side in (height, width))
    row, column = int(rng.random() * height), int(rng.random() * width)
    top, left = row - h // 2, column - w // 2
    return Rectangle(max(top, 0), min(top + h, height), max(left, 0), min(left + w, width))


def _exchange(pair: Tensor, hole: Rectangle) -> Tensor:
    """Two images (2, C, H, W) with what lies in the rectangle exchanged."""
    mixed, (top, bottom, left, right) = pair.clone(), hole
    mixed[:, :, top:bottom, left:right] = pair.flip(0)[:, :, top:bottom, left:right]
    return mixed


def covered(hole: Rectangle, size: tuple[int, ...], patch: int) -> Tensor:
    """(N, 1): which share of each patch of an image (height, width) a rectangle covers."""
    sides = []
    for start, end, pixels in ((hole.top, hole.bottom, size[0]), (hole.left, hole.right, size[1])):
        first, last = cell_edges(pixels, patch)
        inside = (last.clamp(max=end) - first.clamp(min=start)).clamp(min=0)
        sides.append(inside / (last - first))
    return (sides[0][:, None] * sides[1]).float().reshape(-1, 1)
