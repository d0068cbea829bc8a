"""`vitreous explain --weights`: what a model's weights have learned to look at, as the paper's figure 7 shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.augment import eval_view, normalise
from vitreous.data.decode import PictureError
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.explain.attention import attention_distance
from vitreous.jobs.evaluate import choose_part
from vitreous.jobs.opening import open_dataset
from vitreous.weights.bundle import Bundle

PICTURES = 64
"""Enough: from 64 pictures to 128 no head's mean moves by more than a few pixels."""
BATCH = 8


def attention_distances(
    bundle: Bundle,
    data: str | Path | Data,
    *,
    count: int = PICTURES,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """(layers, heads): how far each head looks, in pixels of the input; the mean over `count` pictures of the data.

    The pictures are spread evenly over the part that `evaluate` would take; those that cannot be read are left out.
    """
    _, source = choose_part(open_dataset(data), None)
    count = min(count, len(source))
    views, found = [], []
    for i in range(count):
        try:
            picture = source.read(i * len(source) // count, channels=bundle.preprocess.channels)
            views.append(eval_view(picture, bundle.preprocess))
        except PictureError:
            pass
        if views and (len(views) == BATCH or i == count - 1):
            found.append(attention_distance(bundle.model, normalise(torch.stack(views), bundle.preprocess)))
            views = []
        if progress is not None:
            progress(i + 1, count)
    if not found:
        raise UserError(f"{data}: none of its pictures can be read.")
    mean: NDArray[np.float32] = np.concatenate(found).mean(axis=0)
    return mean
