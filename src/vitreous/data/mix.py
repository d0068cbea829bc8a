"""Mixup and CutMix: the pictures of a batch are blended two by two, and so are their targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config.data import Augment
from vitreous.data.batch import Batch
from vitreous.data.chance import MIX, generator


def mix(batch: Batch, classes: int, augment: Augment, *, seed: int, epoch: int) -> Batch:
    """The batch with its plain views mixed, and soft targets (B, K) that sum to 1; they may have been soft before.

    Mixup (Zhang et al. 2018) blends two pictures, CutMix (Yun et al. 2019) exchanges a rectangle; with both, a coin is
    thrown. Neighbours in the batch are a pair, whose chance is a pure function of (seed, epoch, index of the first): so
    nothing changes where a batch is divided between pairs. Of an odd number, the last picture stays as it is.
    """
    images, index = batch.images, batch.index.tolist()
    mixed, shares, partner = images.clone(), torch.ones(len(images), 1), torch.arange(len(images))
    for first in range(0, len(images) - 1, 2):
        both = slice(first, first + 2)
        rng = generator(seed, epoch, index[first], MIX)
        mixed[both], shares[both] = _mix_pair(images[both], augment, rng)
        partner[both] = partner[both].flip(0)
    soft = F.one_hot(batch.targets, classes).float() if batch.targets.ndim == 1 else batch.targets
    view = replace(batch.views["image"], images=mixed[:, None])
    return replace(batch, views={**batch.views, "image": view}, targets=torch.lerp(soft[partner], soft, shares))


def _mix_pair(pair: Tensor, augment: Augment, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Two pictures (2, C, H, W), each with something of the other, and the share that is left of its own."""
    cut = augment.cutmix > 0 and (augment.mixup == 0 or rng.random() < 0.5)
    alpha = augment.cutmix if cut else augment.mixup
    share = float(rng.beta(alpha, alpha))
    if cut:
        return _exchange(pair, share, rng)
    return torch.lerp(pair.flip(0), pair, share), share


def _exchange(pair: Tensor, share: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """One rectangle of both exchanged, of about 1 - share of the area, and the exact share left."""
    height, width = pair.shape[2:]
    h, w = (round(side * (1 - share) ** 0.5) for side in (height, width))
    row, column = int(rng.random() * height), int(rng.random() * width)
    top, bottom = max(row - h // 2, 0), min(row - h // 2 + h, height)
    left, right = max(column - w // 2, 0), min(column - w // 2 + w, width)
    mixed = pair.clone()
    mixed[:, :, top:bottom, left:right] = pair.flip(0)[:, :, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
