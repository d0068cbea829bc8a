"""How well classes are told apart: accuracy with its uncertainty, calibration, and what is taken for what.

Letters: n images, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitreous.errors import UserError

BINS = 15  # equal-width bins of confidence, as in Guo et al., "On Calibration of Modern Neural Networks"
ENOUGH = 5  # images of a class below which its accuracy says little about the class
KEPT = 12  # so many of the surest right and of the surest wrong answers are kept by name


class Confusion(NamedTuple):
    """Images of one class that were taken for another."""

    true: str
    predicted: str
    images: int
    share: float  # of all images of the true class


class Bin(NamedTuple):
    """The images that the model was about equally sure of."""

    images: int
    confidence: float | None  # their mean, from 0 to 1; None where there are none
    accuracy: float | None


class ClassifiedImage(NamedTuple):
    """What was said of one image."""

    image: str  # its name, or its number where no names were given
    true: str
    predicted: str
    confidence: float


@dataclass(frozen=True)
class ClassificationResult:
    """How well n images were classified. Shares are from 0 to 1."""

    n: int
    top1: float
    top1_interval: tuple[float, float]  # Wilson's 95 % confidence interval
    top5: float  # the true class is among the five first, or among all if there are fewer
    ece: float  # expected calibration error: how far confidence is from accuracy, on average
    loss: float  # cross-entropy in nats
    labels: tuple[str, ...]  # (K,) names of the classes
    confusion: tuple[tuple[int, ...], ...]  # (K, K) counts; rows are the true classes, columns the predicted
    bins: tuple[Bin, ...]  # of confidence, equally wide from 0 to 1: what `ece` sums up
    surest_wrong: tuple[ClassifiedImage, ...]  # the wrong answers that it was surest of, the surest first
    surest_right: tuple[ClassifiedImage, ...]  # of each class the right answer that it was surest of, the surest first

    @property
    def per_class(self) -> dict[str, dict[str, Any]]:
        """Of each class its images `n` and its `accuracy`, which is None where there are none."""
        found = {}
        for k, label in enumerate(self.labels):
            n = sum(self.confusion[k])
            found[label] = {"n": n, "accuracy": self.confusion[k][k] / n if n else None}
        return found

    def hardest(self, most: int, least: int = ENOUGH) -> list[tuple[str, dict[str, Any]]]:
        """The classes with the lowest accuracy, of those with at least so many images: one image tells nothing."""
        seen = [(name, entry) for name, entry in self.per_class.items() if entry["n"] >= least]
        return sorted(seen, key=lambda item: (item[1]["accuracy"], item[0]))[:most]

    def most_confused(self, most: int = 10) -> list[Confusion]:
        """The pairs of classes that were confused most often, by count and then by share."""
        pairs = [
            Confusion(self.labels[true], self.labels[predicted], count, count / sum(row))
            for true, row in enumerate(self.confusion)
            for predicted, count in enumerate(row)
            if count and true != predicted
        ]
        return sorted(pairs, key=lambda pair: (-pair.images, -pair.share, pair.true, pair.predicted))[:most]

    def to_json(self) -> dict[str, Any]:
        more: dict[str, Any] = {"per_class": self.per_class}
        more["most_confused"] = [pair._asdict() for pair in self.most_confused()]
        for name in ("bins", "surest_wrong", "surest_right"):
            more[name] = [entry._asdict() for entry in getattr(self, name)]
        return {**asdict(self), **more}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> ClassificationResult:
        """The same again; what follows from the rest is not read."""
        kinds: dict[str, Any] = {"bins": Bin, "surest_wrong": ClassifiedImage, "surest_right": ClassifiedImage}
        read: dict[str, Any] = {name: fields[name] for name in ("n", "top1", "top5", "ece", "loss")}
        read |= {name: tuple(kind(**entry) for entry in fields[name]) for name, kind in kinds.items()}
        low, high = fields["top1_interval"]
        return ClassificationResult(
            **read,
            top1_interval=(low, high),
            labels=tuple(fields["labels"]),
            confusion=tuple(tuple(row) for row in fields["confusion"]),
        )


def score_classes(
    scores: Tensor,
    targets: Tensor,
    labels: Sequence[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    probabilities: bool = False,
) -> ClassificationResult:
    """Judge scores (n, K) against targets (n,).

    scores: the model's outputs (logits), or with `probabilities` rows that sum to 1. Of equal scores the first wins.
    labels: (K,) names; numbers if None. Where two classes have one name, the number is added.
    names: (n,) what the images are called, for the answers that are kept; their numbers if None.
    """
    if not len(scores):
        raise UserError("there are no images to judge; give data with at least one.")
    scores = scores.double()
    if not torch.isfinite(scores).all():
        raise UserError(
            "the model gives scores that are not numbers (NaN or infinite): its weights are damaged, or its "
            "training diverged."
        )
    chance = scores if probabilities else scores.softmax(dim=1)
    count, classes = chance.shape
    confidence, predicted = chance.max(dim=1)
    right = predicted == targets
    own = chance.gather(1, targets[:, None])  # (n, 1): what the true class got
    # a true class that shares its score counts as behind those before it, as argmax has it.
    before = torch.arange(classes) < targets[:, None]
    rank = ((chance > own) | ((chance == own) & before)).sum(dim=1)
    logs = own.clamp_min(1e-300).log() if probabilities else scores.log_softmax(dim=1).gather(1, targets[:, None])
    confusion = torch.bincount(targets * classes + predicted, minlength=classes**2).view(classes, classes)
    labels = distinct_labels(labels if labels is not None else [str(k) for k in range(classes)])

    def answer(row: int) -> ClassifiedImage:
        name = str(row) if names is None else names[row]
        return ClassifiedImage(name, labels[targets[row]], labels[predicted[row]], float(confidence[row]))

    order = confidence.argsort(descending=True, stable=True)
    wrong, sure = order[~right[order]], order[right[order]]
    best: dict[int, int] = {}
    for row, label in zip(sure.tolist(), targets[sure].tolist(), strict=True):
        best.setdefault(label, row)
    return ClassificationResult(
        n=count,
        top1=float(right.double().mean()),
        top1_interval=wilson(int(right.sum()), count),
        top5=float((rank < 5).double().mean()),
        ece=expected_calibration_error(confidence, right),
        loss=float(-logs.mean()),
        labels=labels,
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        bins=calibration_bins(confidence, right),
        surest_wrong=tuple(answer(row) for row in wrong[:KEPT].tolist()),
        surest_right=tuple(answer(row) for row in list(best.values())[:KEPT]),
    )


def expected_calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """The mean over bins of confidence, weighted by their images, of |accuracy - mean confidence|.

    confidence: (n,) from 0 to 1; right: (n,) bool. A bin holds its upper edge.
    """
    gap = torch.zeros(bins, dtype=torch.float64)
    gap.index_add_(0, _bin_of(confidence, bins), right.double() - confidence.double())
    return float(gap.abs().sum() / len(confidence))


def calibration_bins(confidence: Tensor, right: Tensor, bins: int = BINS) -> tuple[Bin, ...]:
    """What a reliability diagram draws; arguments as for `expected_calibration_error`."""
    place = _bin_of(confidence, bins)
    found = []
    for k in range(bins):
        inside = place == k
        count = int(inside.sum())
        means = [float(values[inside].double().mean()) if count else None for values in (confidence, right)]
        found.append(Bin(count, *means))
    return tuple(found)


def _bin_of(confidence: Tensor, bins: int) -> Tensor:
    return (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)


def wilson(right: float, count: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """The interval that holds the true share with 95 %, where `right` of `count` were so; sound at 0 and at 1 too."""
    share = right / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def distinct_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The names of classes, with the class's number where several have one name."""
    twice = {label for label in labels if labels.count(label) > 1} if len(set(labels)) < len(labels) else set()
    return tuple(f"{label} ({k})" if label in twice else label for k, label in enumerate(labels))
