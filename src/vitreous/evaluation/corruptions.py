"""How well a classifier does on corrupted images: accuracy and calibration by kind and strength, and their means.

Letters: n images, m corruptions, which is kinds times strengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.evaluation.calibration import expected_calibration_error
from vitreous.evaluation.intervals import Z_95, wilson


@dataclass(frozen=True)
class ConditionScore:
    """Of the same n images in one state. Shares are from 0 to 1."""

    accuracy: float
    interval: tuple[float, float]  # Wilson's 95 %
    ece: float  # expected calibration error, 15 bins


@dataclass(frozen=True)
class CorruptionScore(ConditionScore):
    """Under one corruption."""

    kind: str
    strength: int


@dataclass(frozen=True)
class MeanError:
    """A mean over all corruptions and images, with what the choice of images leaves open."""

    value: float
    interval: tuple[float, float]
    """95 %, by the normal approximation over images: corruptions of one image are not independent."""


@dataclass(frozen=True)
class CorruptionResult:
    """How well n images were classified, as they are and corrupted."""

    n: int
    kinds: tuple[str, ...]
    strengths: tuple[int, ...]
    clean: ConditionScore
    scores: tuple[CorruptionScore, ...]  # kind by kind, and of each by strength
    error: MeanError
    """Mean corruption error: the share of wrong answers over all kinds and strengths. It is not divided by AlexNet's,
    as ImageNet-C's mCE is, for that is known on ImageNet alone."""
    relative_error: MeanError  # the same less the error on the images as they are

    def of(self, kind: str) -> list[CorruptionScore]:
        return [score for score in self.scores if score.kind == kind]

    def accuracy(self, kind: str) -> float:
        """Of one kind, the mean over strengths."""
        return fmean(score.accuracy for score in self.of(kind))

    def ece(self, kind: str) -> float:
        """Of one kind, the mean over strengths."""
        return fmean(score.ece for score in self.of(kind))

    def to_json(self) -> dict[str, Any]:
        means = {kind: {"accuracy": self.accuracy(kind), "ece": self.ece(kind)} for kind in self.kinds}
        return {**asdict(self), "means": means}


def score_corruptions(
    kinds: Sequence[str], strengths: Sequence[int], right: NDArray[np.bool_], confidence: NDArray[np.float64]
) -> CorruptionResult:
    """right, confidence: (n, 1 + m) of each image as it is, then kind by kind with every strength."""
    cells = [(kind, strength) for kind in kinds for strength in strengths]
    clean, *scores = (
        (
            float(column.mean()),
            wilson(int(column.sum()), len(column)),
            expected_calibration_error(torch.from_numpy(sure.copy()), torch.from_numpy(column.copy())),
        )
        for column, sure in zip(right.T, confidence.T, strict=True)
    )
    wrong = 1 - right[:, 1:].mean(axis=1)  # (n,) of each image, over all corruptions
    return CorruptionResult(
        n=len(right),
        kinds=tuple(kinds),
        strengths=tuple(strengths),
        clean=ConditionScore(*clean),
        scores=tuple(CorruptionScore(*score, *cell) for score, cell in zip(scores, cells, strict=True)),
        error=_mean_error(wrong, 0.0),
        relative_error=_mean_error(wrong - ~right[:, 0], -1.0),
    )


def _mean_error(errors: NDArray[np.float64], least: float) -> MeanError:
    """least: the smallest value that there can be."""
    mean = float(errors.mean())
    half = Z_95 * float(errors.std(ddof=1)) / math.sqrt(len(errors)) if len(errors) > 1 else math.inf
    return MeanError(mean, (max(least, mean - half), min(1.0, mean + half)))
