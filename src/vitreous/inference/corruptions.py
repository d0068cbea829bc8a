"""How well a classifier does on corrupted images: each is decoded once and seen in every corruption."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import torch

from vitreous.data.corrupt import Corrupted, Corrupting
from vitreous.data.loader import choose_workers
from vitreous.data.unreadable import check_unreadable
from vitreous.data.workers import WorkerPool, WorkersDiedError
from vitreous.errors import UserError
from vitreous.evaluate.corruptions import CorruptionResult, judge_corruptions
from vitreous.inference.engine import Deployed
from vitreous.inference.matching import Matched
from vitreous.inference.needs import check_inference_memory

FEW = 8
"""Below so many images, starting processes takes longer than they save."""


def measure_corruptions(
    model: Deployed,
    matched: Matched,
    kinds: Sequence[str],
    strengths: Sequence[int],
    *,
    seed: int = 0,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[CorruptionResult, dict[str, str]]:
    """The result, and images that were left out: path to reason.

    matched: images with their labels. progress: called with images done. Whether the answer was right and how sure
    it was is all that is kept of each image and corruption: memory does not grow with classes.
    """
    source, engine = matched.source, model.engine
    views = 1 + len(kinds) * len(strengths)
    batch = min(batch_size or engine.batch_size, views)
    check_inference_memory(model.config, engine.preprocess, batch)
    right, sure = np.zeros((len(source), views), np.bool_), np.zeros((len(source), views))
    seen = np.ones(len(source), np.bool_)
    unreadable: dict[str, str] = {}
    making = Corrupting(source, engine.preprocess, tuple(kinds), tuple(strengths), seed)
    for index, made in enumerate(_made(making, _workers(workers, len(source)))):
        if made.views is None:
            seen[index], unreadable[source.name(index)] = False, made.reason
            check_unreadable(unreadable, len(source))
        else:
            images = torch.from_numpy(made.views)
            parts = [images[start : start + batch] for start in range(0, views, batch)]
            scores = torch.cat([matched.answerable(engine.scores(part)) for part in parts])
            confidence, answer = scores.double().softmax(dim=1).max(dim=1)
            right[index], sure[index] = (answer == int(source.labels[index])).numpy(), confidence.numpy()
        if progress is not None:
            progress(index + 1)
    return judge_corruptions(kinds, strengths, right[seen], sure[seen]), unreadable


def _made(making: Corrupting, workers: int) -> Iterator[Corrupted]:
    """The views of all images, in their order."""
    indices = range(len(making.source))
    if not workers:
        yield from map(making.make, indices)
        return
    processes: WorkerPool[int, Corrupted] = WorkerPool(making.make, workers)
    try:
        with closing(processes):
            yield from processes.run(indices)
    except WorkersDiedError as error:
        raise UserError(
            f"workers={workers}: the processes that corrupt images keep dying, the last one {error.how}, at "
            f"{making.source.name(error.task)}; if memory is short, give fewer workers, or 0."
        ) from None


def _workers(asked: int | None, images: int) -> int:
    """As many as were asked for, else one per core, four at most."""
    if asked is not None:
        return choose_workers(asked, images)
    return 0 if images < FEW else min(4, os.cpu_count() or 1)
