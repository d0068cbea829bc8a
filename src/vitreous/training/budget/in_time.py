"""Looking at as many images as there is time for: to know what one costs, to learn from, to be judged by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from vitreous.data.batch import Batch
from vitreous.data.loader import Loader
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.probe import Labelled
from vitreous.training.budget.clock import SLOWEST, Clock, Outlook
from vitreous.training.budget.looking import class_by_class, until

Function = Callable[[Tensor], Tensor]
"""(B, C, H, W) normalised images to (B, D) features or scores."""


def look_around(function: Function, loader: Loader, outlook: Outlook) -> None:
    """Look at images until the outlook knows what one costs."""
    looked = 0

    def known(batch: Batch) -> bool:
        nonlocal looked
        looked += len(batch.index)
        return outlook.judge(looked)

    compute_features(function, until(loader.batches(), known), len(loader.source))
    outlook.judge(looked, last=True)


def features_in_time(
    function: Function,
    loader: Loader,
    batch_size: int,
    seed: int,
    *,
    count: int | None,
    outlook: Outlook | None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Labelled, int]:
    """Features and labels of training images, class by class, and how many images of that order were tried.

    count: so many, all if None. outlook: it is asked after each batch whether there is time for more.
    """
    order = class_by_class(loader.source.labels, seed)[:count]
    place = np.empty(len(loader.source), dtype=np.int64)
    place[order] = np.arange(len(order))
    tried = 0

    def enough(batch: Batch) -> bool:
        nonlocal tried
        tried = int(place[int(batch.index[-1])]) + 1
        return outlook is not None and outlook.judge(tried) and tried >= outlook.plan.features

    found = compute_features(function, until(loader.plain_batches(batch_size, order), enough), len(order), progress)
    if outlook is not None:
        outlook.judge(tried, last=True)
    return found, tried


def answers_in_time(
    function: Function, loader: Loader, clock: Clock, look: float, progress: Callable[[int], None] | None = None
) -> tuple[Labelled, int]:
    """Scores and labels of images in their order, and how many were tried: all, or until it is time to write.

    look: the seconds that an image was to take; where it takes longer now, so will writing.
    """
    tried, first = 0, (0, 0.0)

    def late(batch: Batch) -> bool:
        nonlocal tried, first
        tried, now = int(batch.index[-1]) + 1, clock.now()
        if not first[0]:  # processes had to be started for it, so how long it took tells nothing
            first = tried, now
        expected = (tried - first[0]) * look
        slowness = min(SLOWEST, max(1.0, (now - first[1]) / expected)) if expected else 1.0
        return now > clock.deadline - slowness * clock.writing

    return compute_features(function, until(loader.batches(), late), len(loader.source), progress), tried
