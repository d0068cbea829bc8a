"""How well a classifier does: metrics with their uncertainty, calibration, and which classes are confused.

`METRICS` is the table of all metrics: evaluation computes each, and the terminal, JSON and the page show them.
Letters: n images, K classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
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

MIN_CLASS_IMAGES = 5  # with fewer, the accuracy of a class is mostly chance
CHUNK_LOGITS = 2**22  # logits that are compared together, which bounds the memory
MAX_EXAMPLES = 12  # of the most confident right predictions, and of the wrong ones, that are kept by name


class Confusion(NamedTuple):
    """Images of one class that were taken for another."""

    true: str
    predicted: str
    images: int
    share: float  # fraction of all images of the true class


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
    metrics: dict[str, float]  # of each row of `METRICS`, its value
    top1_interval: tuple[float, float]  # Wilson's 95 % confidence interval
    labels: tuple[str, ...]  # (K,) names of the classes
    confusion: tuple[tuple[int, int, int], ...]
    """True class, predicted class and how many images: the pairs that occur, in order."""
    bins: tuple[Bin, ...]  # of confidence, equally wide from 0 to 1: what `ece` sums up
    surest_wrong: tuple[ClassifiedImage, ...]  # the wrong predictions, the most confident first
    surest_right: tuple[ClassifiedImage, ...]  # the most confident right prediction of each class, in the same order
    labels_per_image: float = (
        1.0  # the mean; with more of them, each of which counts as right, it is easier to be right
    )

    @property
    def top1(self) -> float:
        return self.metrics["top1"]

    @property
    def top5(self) -> float:
        """The true class is among the five most probable, or among all if there are fewer."""
        return self.metrics["top5"]

    @property
    def ece(self) -> float:
        """Expected calibration error: how far confidence is from accuracy, on average."""
        return self.metrics["ece"]

    @property
    def loss(self) -> float:
        """Cross-entropy in nats."""
        return self.metrics["loss"]

    @property
    def per_class(self) -> dict[str, dict[str, Any]]:
        """The number of images `n` and the `accuracy` of each class; the accuracy is None without images."""
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
    def majority(self) -> tuple[str, float]:
        """The most frequent true class, and the accuracy of always predicting it."""
        label, count = self._images_of_classes().most_common(1)[0]
        return self.labels[label], count / self.n

    @property
    def is_guessing(self) -> bool:
        """Whether it may be no better than always predicting the most frequent of several classes: the interval of its
        accuracy is not above that."""
        return self.top1_interval[0] <= self.majority[1] < 1

    @property
    def ece_interval(self) -> tuple[float, float]:
        """95 %."""
        return calibration_error_interval(self.bins)

    @property
    def confidence_gap(self) -> Difference:
        """Mean confidence less accuracy: above 0 if the model is overconfident."""
        return confidence_gap(self.bins)

    def hardest(self, most: int, least: int = MIN_CLASS_IMAGES) -> list[tuple[str, dict[str, Any]]]:
        """The `most` classes with the lowest accuracy, of those with at least `least` images."""
        seen = [(name, entry) for name, entry in self.per_class.items() if entry["n"] >= least]
        return sorted(seen, key=lambda item: (item[1]["accuracy"], item[0]))[:most]

    def most_confused(self, most: int = 10) -> list[Confusion]:
        """The pairs of classes that were confused most often, by count, then by fraction of the class."""
        images = self._images_of_classes()
        pairs = [
            Confusion(self.labels[true], self.labels[predicted], count, count / images[true])
            for true, predicted, count in self.confusion
            if true != predicted
        ]
        return sorted(pairs, key=lambda pair: (-pair.images, -pair.share, pair.true, pair.predicted))[:most]

    def to_json(self) -> dict[str, Any]:
        more: dict[str, Any] = {"per_class": self.per_class, "ece_interval": self.ece_interval}
        more["majority_class"] = {
            "label": self.majority[0],
            "accuracy": self.majority[1],
            "beaten": not self.is_guessing,
        }
        more["most_confused"] = [pair._asdict() for pair in self.most_confused()]
        more["confusion"] = dict(zip(("true", "predicted", "images"), zip(*self.confusion, strict=True), strict=True))
        for name in ("bins", "surest_wrong", "surest_right"):
            more[name] = [entry._asdict() for entry in getattr(self, name)]
        found = asdict(self)
        return {"n": found.pop("n"), **found.pop("metrics"), **found, **more}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> ClassificationResult:
        """The same again; what follows from the rest is not read. Older files have all K x K counts of `confusion`."""
        kinds: dict[str, Any] = {"bins": Bin, "surest_wrong": ClassifiedImage, "surest_right": ClassifiedImage}
        read: dict[str, Any] = {name: tuple(kind(**entry) for entry in fields[name]) for name, kind in kinds.items()}
        metrics = {name: fields[name] for name in ("top1", "top5", "ece", "loss")}
        metrics |= {name: fields[name] for name in METRICS if name in fields}  # what has been added to the table
        low, high = fields["top1_interval"]
        table = fields["confusion"]
        if isinstance(table, dict):
            pairs = list(zip(table["true"], table["predicted"], table["images"], strict=True))
        else:
            pairs = [(i, j, count) for i, row in enumerate(table) for j, count in enumerate(row) if count]
        return ClassificationResult(
            fields["n"],
            metrics,
            top1_interval=(low, high),
            labels=tuple(fields["labels"]),
            confusion=tuple(pairs),
            labels_per_image=fields.get("labels_per_image", 1.0),
            **read,
        )


class MetricInputs(NamedTuple):
    """What a metric is computed from; of an image with several labels, the likeliest of them is the true class."""

    targets: Tensor  # (n,) int64: the true classes
    predicted: Tensor  # (n,) the most probable class, of equals the first
    confidence: Tensor  # (n,) its probability, float64
    rank: Tensor  # (n,) how many classes come before the true one: 0 if the prediction is right
    log_likelihood: Tensor  # (n,) logarithm of the probability of all true classes together, in nats


class Metric(NamedTuple):
    """One number that says how good predictions are."""

    compute: Callable[[MetricInputs], float]
    title: str
    form: str = ".2%"  # how the terminal shows it; the page has rates with one decimal place
    interval: Callable[[ClassificationResult], tuple[float, float]] | None = None  # 95 %
    note: str = ""  # what the terminal says after the value
    shown: Callable[[ClassificationResult], bool] = lambda result: True  # whether the terminal shows it
    page_note: str | None = None  # what the page says below it; None: the page does not show it as a large number
    by_corruption: bool = False  # whether an evaluation under corruptions lists it for each of them


METRICS = {
    "top1": Metric(
        lambda p: float((p.predicted == p.targets).double().mean()),
        "top-1 accuracy",
        interval=lambda result: result.top1_interval,  # the page shows it first, for each split
        by_corruption=True,
    ),
    "top5": Metric(
        lambda p: float((p.rank < 5).double().mean()), "top-5 accuracy", shown=lambda result: len(result.labels) > 5
    ),
    "ece": Metric(
        lambda p: expected_calibration_error(p.confidence, p.predicted == p.targets),
        "calibration error",
        interval=lambda result: result.ece_interval,
        note="ECE, 15 bins",
        page_note="how far its certainty is from its accuracy, on average",
        by_corruption=True,
    ),
    "loss": Metric(lambda p: float(-p.log_likelihood.mean()), "cross-entropy", ".3f"),
}
"""By their keys in JSON, in the order in which they are shown."""


def metric_inputs(
    logits: Tensor, targets: Tensor | Sequence[Sequence[int]], *, probabilities: bool = False
) -> MetricInputs:
    """What metrics are computed from, of logits (n, K); `score_classes` says what the arguments mean."""
    n, rows = len(logits), max(1, CHUNK_LOGITS // logits.shape[1])
    whole, real = (torch.empty(n, dtype=kind) for kind in (torch.int64, torch.float64))
    found = MetricInputs(
        whole, whole.clone(), real, whole.clone(), real.clone()
    )  # parts would pin the heap between them
    for start in range(0, n, rows):
        some = logits[start : start + rows].double()
        if not torch.isfinite(some).all():
            raise UserError(
                "the model gives scores that are not numbers (NaN or infinite): its weights are damaged, or its "
                "training diverged."
            )
        probs = some if probabilities else class_probabilities(some)
        allowed = torch.zeros(probs.shape, dtype=torch.bool)
        for row, true in zip(allowed, targets[start : start + rows], strict=True):
            row[true if isinstance(true, Tensor) else list(true)] = True
        # of classes with equal probabilities the first wins, as argmax has it
        own, target = probs.masked_fill(~allowed, -1.0).max(dim=1, keepdim=True)  # (n, 1)
        before = torch.arange(probs.shape[1]) < target
        rank = ((probs > own) | ((probs == own) & before)).sum(dim=1)
        if probabilities:
            log_likelihood = (probs * allowed).sum(dim=1).clamp_min(1e-300).log()
        else:
            log_likelihood = some.log_softmax(dim=1).masked_fill(~allowed, float("-inf")).logsumexp(dim=1)
        confidence, predicted = probs.max(dim=1)
        for column, part in zip(found, (target[:, 0], predicted, confidence, rank, log_likelihood), strict=True):
            column[start : start + rows] = part
    return found


def score_classes(
    logits: Tensor,
    targets: Tensor | Sequence[Sequence[int]],
    labels: Sequence[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    probabilities: bool = False,
) -> ClassificationResult:
    """Compare logits (n, K) with targets: (n,) the true classes, or of each image all classes that count as right.

    probabilities: `logits` has rows that sum to 1 instead. Of equal logits the first wins.
    labels: (K,) names; numbers if None. Where two classes have one name, the number is added.
    names: (n,) what the images are called, for the examples; their numbers if None.
    """
    if not len(logits):
        raise UserError("there are no images to measure; give data with at least one.")
    found, classes = metric_inputs(logits, targets, probabilities=probabilities), logits.shape[1]
    right = found.rank == 0
    pairs, counts = torch.unique(found.targets * classes + found.predicted, return_counts=True)
    labels = distinct_labels(labels if labels is not None else [str(k) for k in range(classes)])

    def example(row: int) -> ClassifiedImage:
        name = str(row) if names is None else names[row]
        true, predicted = labels[found.targets[row]], labels[found.predicted[row]]
        return ClassifiedImage(name, true, predicted, float(found.confidence[row]))

    order = found.confidence.argsort(descending=True, stable=True)
    wrong, sure = order[~right[order]], order[right[order]]
    best: dict[int, int] = {}
    for row, label in zip(sure.tolist(), found.targets[sure].tolist(), strict=True):
        best.setdefault(label, row)
    return ClassificationResult(
        n=len(logits),
        metrics=score_metrics(found),
        top1_interval=wilson(int(right.sum()), len(right)),
        labels=labels,
        confusion=tuple(zip(*(part.tolist() for part in (pairs // classes, pairs % classes, counts)), strict=True)),
        bins=calibration_bins(found.confidence, right),
        surest_wrong=tuple(example(row) for row in wrong[:MAX_EXAMPLES].tolist()),
        surest_right=tuple(example(row) for row in list(best.values())[:MAX_EXAMPLES]),
        labels_per_image=1.0 if isinstance(targets, Tensor) else sum(map(len, targets)) / len(targets),
    )


def score_metrics(found: MetricInputs) -> dict[str, float]:
    """The value of each row of `METRICS`."""
    return {name: metric.compute(found) for name, metric in METRICS.items()}


def distinct_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The names of classes, with the class's number where several have one name."""
    count = Counter(labels)
    return tuple(f"{label} ({k})" if count[label] > 1 else label for k, label in enumerate(labels))
