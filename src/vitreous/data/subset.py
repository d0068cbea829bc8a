"""Random subsets of a source, and the order in which images are taken where there may be no time for all."""

from __future__ import annotations

import numpy as np

from vitreous.data.chance import Index, permutation
from vitreous.data.source import Labels, Source

SUBSET_EPOCH = 2**31
"""The epoch of the order in which a subset is taken; no training has so many."""


def random_subset(source: Source, seed: int, count: int | None = None) -> Source:
    """The first `count` images of a random order, all if None; whatever is seen first is a random sample."""
    return source.subset(permutation(seed, SUBSET_EPOCH, len(source))[:count])


def balanced_order(labels: Labels, seed: int, draw: int = SUBSET_EPOCH) -> Index:
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
