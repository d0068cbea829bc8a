"""Which of several models is better, and whether that can be told: means over seeds, and what they may be off by.

An accuracy is uncertain for two reasons: another seed (other weights at the start, another choice of pictures) would
have given another model, and other test pictures another share. Both are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from vitreous.evaluate.classify import wilson

NORMAL = 1.959963984540054
"""Standard deviations to either side that hold 95 % of a normal distribution."""
# fmt: off
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
"""The same of Student's t with 1 to 30 degrees of freedom: a deviation known from few seeds is itself uncertain."""


@dataclass(frozen=True)
class Accuracies:
    """What one model has right on the same pictures: of each training its share, by seed."""

    by_seed: Mapping[int, float]
    n: int
    """Pictures that each was measured on."""
    trained: bool = True
    """False for a finished model, which is what it is: there is one number, and no seed could change it."""

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return fmean(self.by_seed.values())

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds (of a sample: divided by their number less one); None for a single one."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, by seeds and pictures; of a single training by the pictures alone (Wilson's)."""
        values = list(self.by_seed.values())
        if len(values) < 2:
            return wilson(values[0] * self.n, self.n)
        half = math.hypot(_seeds_margin(values), NORMAL * math.sqrt(self.mean * (1 - self.mean) / self.n))
        return max(0.0, self.mean - half), min(1.0, self.mean + half)


@dataclass(frozen=True)
class Difference:
    """Of the mean accuracies of two models, the first less the second."""

    value: float
    margin: float | None
    """With 95 % the true difference is no further from `value` than this; None where one seed tells no spread."""

    @property
    def told_apart(self) -> bool:
        """Whether it is larger than what it may be off by."""
        return self.margin is not None and abs(self.value) > self.margin


def difference(one: Accuracies, other: Accuracies) -> Difference:
    """Between two models. Trainings with the same seed learned from the same pictures and are compared in pairs.

    The pictures' part takes the two shares as independent, which on the same pictures says too much, never too little.
    """
    pictures = sum(a.mean * (1 - a.mean) / a.n for a in (one, other))
    seeds = _paired_margin(one, other)
    value = one.mean - other.mean
    if one.trained and other.trained and (shared := sorted(one.by_seed.keys() & other.by_seed.keys())):
        value = fmean(one.by_seed[seed] - other.by_seed[seed] for seed in shared)
    return Difference(value, None if seeds is None else math.hypot(seeds, NORMAL * math.sqrt(pictures)))


def _paired_margin(one: Accuracies, other: Accuracies) -> float | None:
    """What the seeds contribute; None where it is not known."""
    if one.trained and other.trained:
        shared = one.by_seed.keys() & other.by_seed.keys()
        values = [one.by_seed[seed] - other.by_seed[seed] for seed in shared]
    elif one.trained or other.trained:
        values = list((one if one.trained else other).by_seed.values())
    else:
        return 0.0
    return _seeds_margin(values) if len(values) > 1 else None


def _seeds_margin(values: Sequence[float]) -> float:
    freedom = len(values) - 1
    student = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
    return student * stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True)
class Verdict:
    """Who is ahead of whom."""

    tiers: tuple[tuple[str, ...], ...]
    """The best first; within a tier, those that cannot be told apart from its first, the higher mean first."""

    def __str__(self) -> str:
        if len(self.tiers) == 1:
            names = ", ".join(self.tiers[0])
            return f"not told apart: {names}" if len(self.tiers[0]) > 1 else f"{names} alone"
        parts = [_listed(tier) for tier in self.tiers]
        return f"ahead: {parts[0]}; then {'; then '.join(parts[1:])}"


def _listed(tier: Sequence[str]) -> str:
    return tier[0] if len(tier) == 1 else f"{', '.join(tier[:-1])} and {tier[-1]} (not told apart)"


def judge(accuracies: Mapping[str, Accuracies]) -> Verdict:
    """Which model is ahead of which, where the difference is larger than what it may be off by."""
    left = sorted(accuracies, key=lambda name: -accuracies[name].mean)
    tiers = []
    while left:
        best = accuracies[left[0]]
        apart = [name for name in left[1:] if difference(best, accuracies[name]).told_apart]
        tiers.append(tuple(name for name in left if name not in apart))
        left = apart
    return Verdict(tuple(tiers))
