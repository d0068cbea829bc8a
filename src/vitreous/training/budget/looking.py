"""Looking at part of the images where the time allows no more: in which order, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from vitreous.data.batch import Batch
from vitreous.data.chance import Index, permutation
from vitreous.data.source import Labels, Source

PART = 2**31
"""The epoch of the order in which a part is taken; no training has so many."""


def random_part(source: Source, seed: int, count: int | None = None) -> Source:
    """The first so many images of a random order, all if None; whatever is seen first is a random sample."""
    return source.subset(permutation(seed, PART, len(source))[:count])


def class_by_class(labels: Labels, seed: int, draw: int = PART) -> Index:
    """A random order of all images that gives one of each class, then another of each, as long as there are any.

    draw: which of a seed's orders it is.
    """
    order = permutation(seed, draw, len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    sorted_labels = labels[by_class]
    starts = np.flatnonzero(np.diff(sorted_labels, prepend=sorted_labels[0] - 1))
    turn = np.arange(len(by_class)) - np.repeat(starts, np.diff(starts, append=len(by_class)))
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels))  # within a turn, the random order again
    found: Index = by_class[np.lexsort((place[by_class], turn))]
    return found


def until(batches: Iterable[Batch], stop: Callable[[Batch], bool]) -> Iterator[Batch]:
    """The batches up to the one after whose use `stop` says yes."""
    for batch in batches:
        yield batch
        if stop(batch):
            return
