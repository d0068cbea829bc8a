"""Two models on the same images: what tells them apart are the images that only one of them has right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.evaluation.spread import NORMAL

Right = NDArray[np.bool_]


@dataclass(frozen=True)
class Paired:
    """How many of n images only the first of two models has right, and how many only the second."""

    split: str
    n: int
    only_first: int
    only_second: int

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
        half = NORMAL * math.sqrt(first + second - (second - first) ** 2 / n) / n
        return max(-1.0, middle - half), min(1.0, middle + half)

    @property
    def told_apart(self) -> bool:
        """Whether the interval leaves 0 out."""
        low, high = self.interval
        return low > 0 or high < 0


def pair_answers(split: str, first: Right, second: Right) -> Paired:
    """first, second: (n,) which of the same images, in the same order, each model has right."""
    assert first.shape == second.shape
    return Paired(split, len(first), int((first & ~second).sum()), int((~first & second).sum()))
