"""Mixup and CutMix: each picture of a batch is blended with another one of it, and so are their targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config.data import Augment
from vitreous.data.batch import Batch
from vitreous.data.chance import MIX, generator


def mix(batch: Batch, classes: int, augment: Augment, *, seed: int, epoch: int, step: int) -> Batch:
    """The batch with its plain views mixed, and soft targets (B, K) that sum to 1.

    All chance is a pure function of (seed, epoch, step).
    Mixup (Zhang et al. 2018) blends whole pictures, CutMix (Yun et al. 2019) pastes a rectangle;
    with both, a coin is thrown for the batch. Both pair a batch with a shift of itself, so each picture is used twice.
    """
    rng = generator(seed, epoch, step, MIX)
    images, targets = batch.images, batch.targets
    cut = augment.cutmix > 0 and (augment.mixup == 0 or rng.random() < 0.5)
    alpha = augment.cutmix if cut else augment.mixup
    share = float(rng.beta(alpha, alpha))
    shift = 1 + int(rng.random() * max(len(images) - 1, 1))
    others = images.roll(shift, dims=0)
    if cut:
        images, share = _paste(images, others, share, rng)
    else:
        images = torch.lerp(others, images, share)
    soft = F.one_hot(targets, classes).float()
    view = replace(batch.views["image"], images=images[:, None])
    return replace(batch, views={"image": view}, targets=torch.lerp(soft.roll(shift, dims=0), soft, share))


def _paste(images: Tensor, others: Tensor, share: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """One rectangle of all `others` in `images`, of about 1 - share of the area, and the exact share left."""
    height, width = images.shape[2:]
    h, w = (round(side * (1 - share) ** 0.5) for side in (height, width))
    row, column = int(rng.random() * height), int(rng.random() * width)
    top, bottom = max(row - h // 2, 0), min(row - h // 2 + h, height)
    left, right = max(column - w // 2, 0), min(column - w // 2 + w, width)
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
