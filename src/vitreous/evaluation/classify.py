"""How well classes are told apart: accuracy with its uncertainty, calibration, and what is taken for what.

Letters: n images, K classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.evaluation.calibration import (
    Bin,
    calibration_bins,
    calibration_error_interval,
    confidence_gap,
    expected_calibration_error,
)
from vitreous.evaluation.intervals import Difference, wilson
from vitreous.model.predictions import class_probabilities

MIN_CLASS_IMAGES = 5  # with fewer the accuracy of a class says little about it
MAX_EXAMPLES = 12  # of the most confident right predictions, and of the wrong ones, that are kept by name


class Confusion(NamedTuple):
    """Images of one class that were taken for another."""

    true: str
    predicted: str
    images: int
    share: float  # of all images of the true class


class ClassifiedImage(NamedTuple):
    """The prediction for one image."""

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
    confusion: tuple[tuple[int, int, int], ...]
    """True class, predicted class and how many images: the pairs that occur, in order."""
    bins: tuple[Bin, ...]  # of confidence, equally wide from 0 to 1: what `ece` sums up
    surest_wrong: tuple[ClassifiedImage, ...]  # the wrong predictions, the most confident first
    surest_right: tuple[ClassifiedImage, ...]  # the most confident right prediction of each class, in the same order

    @property
    def per_class(self) -> dict[str, dict[str, Any]]:
        """Of each class its images `n` and its `accuracy`, which is None where there are none."""
        images = self._images_of_classes()
        right = {true: count for true, predicted, count in self.confusion if true == predicted}
        return {
            label: {"n": images[k], "accuracy": right.get(k, 0) / images[k] if images[k] else None}
            for k, label in enumerate(self.labels)
        }

    def confusion_matrix(self) -> list[list[int]]:
        """(K, K) counts; rows are the true classes, columns the predicted."""
        found = [[0] * len(self.labels) for _ in self.labels]
        for true, predicted, count in self.confusion:
            found[true][predicted] = count
        return found

    def _images_of_classes(self) -> Counter[int]:
        found = Counter[int]()
        for true, _, count in self.confusion:
            found[true] += count
        return found

    @property
    def ece_interval(self) -> tuple[float, float]:
        """95 %."""
        return calibration_error_interval(self.bins)

    @property
    def confidence_gap(self) -> Difference:
        """Mean confidence less accuracy: above 0 if the model is overconfident."""
        return confidence_gap(self.bins)

    def hardest(self, most: int, least: int = MIN_CLASS_IMAGES) -> list[tuple[str, dict[str, Any]]]:
        """The classes with the lowest accuracy, of those with at least so many images: one image tells nothing."""
        seen = [(name, entry) for name, entry in self.per_class.items() if entry["n"] >= least]
        return sorted(seen, key=lambda item: (item[1]["accuracy"], item[0]))[:most]

    def most_confused(self, most: int = 10) -> list[Confusion]:
        """The pairs of classes that were confused most often, by count and then by share."""
        images = self._images_of_classes()
        pairs = [
            Confusion(self.labels[true], self.labels[predicted], count, count / images[true])
            for true, predicted, count in self.confusion
            if true != predicted
        ]
        return sorted(pairs, key=lambda pair: (-pair.images, -pair.share, pair.true, pair.predicted))[:most]

    def to_json(self) -> dict[str, Any]:
        more: dict[str, Any] = {"per_class": self.per_class, "ece_interval": self.ece_interval}
        more["most_confused"] = [pair._asdict() for pair in self.most_confused()]
        more["confusion"] = dict(zip(("true", "predicted", "images"), zip(*self.confusion, strict=True), strict=True))
        for name in ("bins", "surest_wrong", "surest_right"):
            more[name] = [entry._asdict() for entry in getattr(self, name)]
        return {**asdict(self), **more}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> ClassificationResult:
        """The same again; what follows from the rest is not read. Older files have all K x K counts of `confusion`."""
        kinds: dict[str, Any] = {"bins": Bin, "surest_wrong": ClassifiedImage, "surest_right": ClassifiedImage}
        read: dict[str, Any] = {name: fields[name] for name in ("n", "top1", "top5", "ece", "loss")}
        read |= {name: tuple(kind(**entry) for entry in fields[name]) for name, kind in kinds.items()}
        low, high = fields["top1_interval"]
        table = fields["confusion"]
        if isinstance(table, dict):
            pairs = list(zip(table["true"], table["predicted"], table["images"], strict=True))
        else:
            pairs = [(i, j, count) for i, row in enumerate(table) for j, count in enumerate(row) if count]
        return ClassificationResult(
            **read, top1_interval=(low, high), labels=tuple(fields["labels"]), confusion=tuple(pairs)
        )


def score_classes(
    logits: Tensor,
    targets: Tensor,
    labels: Sequence[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    probabilities: bool = False,
) -> ClassificationResult:
    """Judge logits (n, K) against targets (n,).

    probabilities: `logits` has rows that sum to 1 instead. Of equal logits the first wins.
    labels: (K,) names; numbers if None. Where two classes have one name, the number is added.
    names: (n,) what the images are called, for the examples; their numbers if None.
    """
    if not len(logits):
        raise UserError("there are no images to judge; give data with at least one.")
    logits = logits.double()
    if not torch.isfinite(logits).all():
        raise UserError(
            "the model gives scores that are not numbers (NaN or infinite): its weights are damaged, or its "
            "training diverged."
        )
    probs = logits if probabilities else class_probabilities(logits)
    count, classes = probs.shape
    confidence, predicted = probs.max(dim=1)
    right = predicted == targets
    own = probs.gather(1, targets[:, None])  # (n, 1): what the true class got
    # A true class that has an equal one counts as behind those before it, as argmax has it.
    before = torch.arange(classes) < targets[:, None]
    rank = ((probs > own) | ((probs == own) & before)).sum(dim=1)
    logs = own.clamp_min(1e-300).log() if probabilities else logits.log_softmax(dim=1).gather(1, targets[:, None])
    pairs, counts = torch.unique(targets * classes + predicted, return_counts=True)
    labels = distinct_labels(labels if labels is not None else [str(k) for k in range(classes)])

    def example(row: int) -> ClassifiedImage:
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
        confusion=tuple(zip(*(part.tolist() for part in (pairs // classes, pairs % classes, counts)), strict=True)),
        bins=calibration_bins(confidence, right),
        surest_wrong=tuple(example(row) for row in wrong[:MAX_EXAMPLES].tolist()),
        surest_right=tuple(example(row) for row in list(best.values())[:MAX_EXAMPLES]),
    )


def distinct_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The names of classes, with the class's number where several have one name."""
    twice = {label for label in labels if labels.count(label) > 1} if len(set(labels)) < len(labels) else set()
    return tuple(f"{label} ({k})" if label in twice else label for k, label in enumerate(labels))
