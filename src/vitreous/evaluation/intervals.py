"""Which of several models is better, and whether the difference is significant: means over seeds, and margins.

An accuracy is uncertain for two reasons: another seed (other weights at the start, another choice of images) would
have given another model, and other test images another accuracy. Both are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959963984540054  # standard deviations to either side that hold 95 % of a normal distribution
# fmt: off
STUDENT_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
"""The same of Student's t with 1 to 30 degrees of freedom: a deviation known from few seeds is itself uncertain."""


def wilson(right: float, count: int, z: float = Z_95) -> tuple[float, float]:
    """The interval that holds the true rate with 95 %, where `right` of `count` were so; sound at 0 and at 1 too."""
    rate = right / count
    middle = rate + z * z / (2 * count)
    half = z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


@dataclass(frozen=True)
class Accuracies:
    """The accuracy of each training of one model on the same images, by seed."""

    by_seed: Mapping[int, float]
    n: int  # images that each was measured on
    trained: bool = True
    """False for a finished model, which is what it is: there is one number, and no seed could change it."""

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds (of a sample: divided by their number less one); None for a single one."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, by images (Wilson's) and seeds; of a single training by the images alone."""
        values, mean = list(self.by_seed.values()), self.mean
        low, high = wilson(mean * self.n, self.n)
        seeds = _seeds_margin(values) if len(values) > 1 else 0.0
        return max(0.0, mean - math.hypot(mean - low, seeds)), min(1.0, mean + math.hypot(high - mean, seeds))


@dataclass(frozen=True)
class Difference:
    """Of the mean accuracies of two models, the first less the second."""

    value: float
    margin: float | None
    """With 95 % the true difference is no further from `value` than this; None where one seed tells no spread."""

    @property
    def significant(self) -> bool:
        """Whether it is larger than its margin."""
        return self.margin is not None and abs(self.value) > self.margin


def difference(one: Accuracies, other: Accuracies) -> Difference:
    """Between two models. Trainings with the same seed learned from the same images and are compared in pairs.

    The images' part takes the two shares as independent, which on the same images says too much, never too little.
    """
    images = sum(a.mean * (1 - a.mean) / a.n for a in (one, other))
    seeds = _paired_margin(one, other)
    value = one.mean - other.mean
    if one.trained and other.trained and (shared := sorted(one.by_seed.keys() & other.by_seed.keys())):
        value = fmean(one.by_seed[seed] - other.by_seed[seed] for seed in shared)
    return Difference(value, None if seeds is None else math.hypot(seeds, Z_95 * math.sqrt(images)))


def gap_change(few: tuple[Accuracies, Accuracies], many: tuple[Accuracies, Accuracies]) -> Difference:
    """By how much the gap between two models (the first less the second) is larger with few images than with many.

    In pairs: each seed has one such difference of differences. The images' part takes all four accuracies as
    independent, which on the same images says too much, never too little.
    """
    four = (*few, *many)
    seeds = sorted(set.intersection(*(set(one.by_seed) for one in four)))
    (a, b), (c, d) = few, many
    values = [(a.by_seed[s] - b.by_seed[s]) - (c.by_seed[s] - d.by_seed[s]) for s in seeds]
    value = fmean(values) if values else (a.mean - b.mean) - (c.mean - d.mean)
    if len(values) < 2:
        return Difference(value, None)
    images = sum(one.mean * (1 - one.mean) / one.n for one in four)
    return Difference(value, math.hypot(_seeds_margin(values), Z_95 * math.sqrt(images)))


def _paired_margin(one: Accuracies, other: Accuracies) -> float | None:
    """The part of the margin that is due to seeds; None if it is not known."""
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
    student = STUDENT_T_95[freedom - 1] if freedom <= len(STUDENT_T_95) else Z_95
    return student * stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True)
class Verdict:
    """Who is ahead of whom, of every two models."""

    order: tuple[str, ...]  # the higher mean first
    ahead: tuple[tuple[str, str], ...]  # pairs that differ significantly, the better first

    @property
    def pairs(self) -> int:
        return math.comb(len(self.order), 2)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The largest sets without a significant difference; a model may be in several (a compact letter display)."""
        apart = {frozenset(pair) for pair in self.ahead}
        found: list[tuple[str, ...]] = [()]
        for name in self.order:
            near = [tuple(one for one in group if frozenset((one, name)) not in apart) for group in found]
            grown = [*found] + [(*group, name) for group in near]
            found = [g for g in dict.fromkeys(grown) if not any(set(g) < set(other) for other in grown)]
        return tuple(sorted(found, key=lambda group: [self.order.index(name) for name in group]))

    @property
    def tiers(self) -> tuple[tuple[str, ...], ...] | None:
        """The groups where each is ahead of all that follow, as a whole; None where they overlap or cross."""
        groups, ahead = self.groups, set(self.ahead)
        for number, group in enumerate(groups):
            behind = [name for later in groups[number + 1 :] for name in later]
            if any((better, worse) not in ahead for better in group for worse in behind):
                return None
        return groups

    def __str__(self) -> str:
        if self.tiers is None:
            return self._pair_by_pair()
        if len(self.tiers) == 1:
            names = ", ".join(self.order)
            return f"not significantly different: {names}" if len(self.order) > 1 else f"{names} alone"
        tiers = [one[0] if len(one) == 1 else f"{_listed(one)} (not significantly different)" for one in self.tiers]
        return f"ahead: {tiers[0]}; then {'; then '.join(tiers[1:])}"

    def _pair_by_pair(self) -> str:
        behind = {name: [worse for better, worse in self.ahead if better == name] for name in self.order}
        clear = [f"{name} is ahead of {_listed(worse)}" for name, worse in behind.items() if worse]
        level = [_listed(group) for group in self.groups if len(group) > 1]
        return f"{'; '.join(clear)}; not significantly different: {'; '.join(level)}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def rank_models(accuracies: Mapping[str, Accuracies]) -> Verdict:
    """Which model is significantly ahead of which."""
    order = sorted(accuracies, key=lambda name: -accuracies[name].mean)
    ahead = []
    for one, other in combinations(order, 2):
        found = difference(accuracies[one], accuracies[other])
        if found.significant:
            ahead.append((one, other) if found.value > 0 else (other, one))
    return Verdict(tuple(order), tuple(ahead))


@dataclass(frozen=True)
class Paired:
    """How many of n images only the first of two models has right, and how many only the second."""

    split: str
    n: int
    only_first: int
    only_second: int

    @staticmethod
    def of(split: str, right: NDArray[np.bool_], second_right: NDArray[np.bool_]) -> Paired:
        """right, second_right: (n,) which of the same images, in the same order, each model has right."""
        assert right.shape == second_right.shape
        return Paired(split, len(right), int((right & ~second_right).sum()), int((~right & second_right).sum()))

    @property
    def difference(self) -> float:
        """Accuracy of the second less that of the first."""
        return (self.only_second - self.only_first) / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the difference by McNemar's variance, which counts the discordant images alone.

        Half an image is added to each of the four cells (Agresti and Min 2005), so that it is right for few as well.
        """
        first, second, n = self.only_first + 0.5, self.only_second + 0.5, self.n + 2
        middle = (second - first) / n
        half = Z_95 * math.sqrt(first + second - (second - first) ** 2 / n) / n
        return max(-1.0, middle - half), min(1.0, middle + half)

    @property
    def significant(self) -> bool:
        """Whether 0 is outside the interval."""
        low, high = self.interval
        return low > 0 or high < 0
