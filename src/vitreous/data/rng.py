"""Random numbers as a pure function of a seed, an epoch, a sample's index and a view's number.

Nothing here keeps a state. So a sample gets the same numbers in any process, in any order, after any restart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]

# Numbers of views that no sample has: for the order of an epoch, for mixing two images, for what a training step draws,
# for seeds of trainings.
ORDER, MIX, KEYS, SEEDS = 2**63, 2**63 + 1, 2**63 + 2, 2**63 + 3
SUBSET_EPOCH = 2**31  # of the order in which a subset is taken; no training has so many epochs


def generator(seed: int, epoch: int, index: int, view: int = 0) -> np.random.Generator:
    """A generator of its own for one view of one sample (Philox: these four are its key and counter)."""
    # The lowest word counts the numbers drawn; 2^64 of them would be needed to run into another view's.
    return np.random.Generator(np.random.Philox(key=seed % 2**64, counter=[0, view, index, epoch]))


def uniforms(seed: int, epoch: int, indices: Index, count: int, view: int = 0) -> NDArray[np.float64]:
    """(n, count) numbers in [0, 1): row i depends on seed, epoch, view and indices[i] only."""
    states = _states(seed, epoch, indices, view)
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        return np.asarray((_mix(states[:, None] + steps) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def sample_keys(seed: int, epoch: int, indices: Index) -> Index:
    """(n,) one number for each sample, from which whatever a training step draws for it follows."""
    return _states(seed, epoch, indices, KEYS).view(np.int64)


def permutation(seed: int, epoch: int, count: int) -> Index:
    """The order of an epoch: a shuffle of 0 to count - 1."""
    return np.argsort(_states(seed, epoch, np.arange(count), ORDER), kind="stable").astype(np.int64)


def balanced_order(labels: Index, seed: int, epoch: int = SUBSET_EPOCH) -> Index:
    """A random order of all images that gives one of each class, then another of each, as long as there are any."""
    order = permutation(seed, epoch, len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    sorted_labels = labels[by_class]
    starts = np.flatnonzero(np.diff(sorted_labels, prepend=sorted_labels[0] - 1))
    turn = np.arange(len(by_class)) - np.repeat(starts, np.diff(starts, append=len(by_class)))
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels))  # within a turn, the random order again
    return by_class[np.lexsort((rank[by_class], turn))]


def derived_seed(seed: int, number: int) -> int:
    """A seed from 0 to 2^31 - 1 for one of several trainings that a single seed stands for."""
    return int(_states(seed, 0, np.array([number]), SEEDS)[0] % np.uint64(2**31))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _states(seed: int, epoch: int, indices: Index, view: int) -> NDArray[np.uint64]:
    """(n,) one state for each sample, from all four numbers, each stirred in after the one before."""
    state = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in (seed % 2**64, epoch, view):
            state = _mix((state ^ np.uint64(word)) + _GOLDEN)
        return _mix((state ^ np.asarray(indices).astype(np.uint64)) + _GOLDEN)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finisher of SplitMix64 (Steele, Lea, Flood 2014): every bit of x moves every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
