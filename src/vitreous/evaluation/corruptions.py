"""How well a classifier does on corrupted images: every metric by kind and strength, and the mean error.

Letters: n images, m corruptions, which is kinds times strengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torch import Tensor

from vitreous.evaluation.classify import METRICS, MetricInputs, score_metrics
from vitreous.evaluation.intervals import Z_95, wilson


@dataclass(frozen=True)
class ConditionScore:
    """Of the same n images in one state."""

    metrics: dict[str, float]  # of each row of `METRICS`, its value
    top1_interval: tuple[float, float]  # Wilson's 95 %
    kind: str | None = None  # None: as they are
    strength: int = 0

    def to_json(self) -> dict[str, Any]:
        which = {} if self.kind is None else {"kind": self.kind, "strength": self.strength}
        return {**which, **self.metrics, "top1_interval": self.top1_interval}


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
    scores: tuple[ConditionScore, ...]  # kind by kind, and of each by strength
    error: MeanError
    """Mean corruption error: the share of wrong answers over all kinds and strengths. It is not divided by AlexNet's,
    as ImageNet-C's mCE is, for that is known on ImageNet alone."""
    relative_error: MeanError  # the same less the error on the images as they are

    def of(self, kind: str) -> list[ConditionScore]:
        return [score for score in self.scores if score.kind == kind]

    def mean(self, metric: str, kind: str | None = None) -> float:
        """The mean over the strengths of one kind, or of all."""
        return fmean(score.metrics[metric] for score in self.scores if kind in (None, score.kind))

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("n", "kinds", "strengths")},
            "clean": self.clean.to_json(),
            "scores": [score.to_json() for score in self.scores],
            "error": vars(self.error),
            "relative_error": vars(self.relative_error),
            "means": {kind: {name: self.mean(name, kind) for name in METRICS} for kind in self.kinds},
        }


def score_corruptions(kinds: Sequence[str], strengths: Sequence[int], found: MetricInputs) -> CorruptionResult:
    """found: each (n, 1 + m), of each image as it is, then kind by kind with every strength."""
    cells = [(None, 0), *((kind, strength) for kind in kinds for strength in strengths)]
    right = found.rank == 0
    clean, *scores = (
        ConditionScore(
            score_metrics(MetricInputs(*(values[:, column] for values in found))),
            wilson(int(right[:, column].sum()), len(right)),
            *cell,
        )
        for column, cell in enumerate(cells)
    )
    wrong = 1 - right[:, 1:].double().mean(dim=1)  # (n,) of each image, over all corruptions
    return CorruptionResult(
        n=len(right),
        kinds=tuple(kinds),
        strengths=tuple(strengths),
        clean=clean,
        scores=tuple(scores),
        error=_mean_error(wrong, 0.0),
        relative_error=_mean_error(wrong - (~right[:, 0]).double(), -1.0),
    )


def _mean_error(errors: Tensor, least: float) -> MeanError:
    """least: the smallest value that there can be."""
    mean = float(errors.mean())
    half = Z_95 * float(errors.std()) / math.sqrt(len(errors)) if len(errors) > 1 else math.inf
    return MeanError(mean, (max(least, mean - half), min(1.0, mean + half)))
