"""What the inductive bias of a model is measured by, as `bias.json` holds it, and the table that compares models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from vitreous.explain.analysis.depth_result import MeasuredOn, Values

Z_95 = 1.959963984540054  # standard deviations to either side that hold 95 % of a normal distribution
PIXELS = (1, 2, 4, 8)
"""Distances that have a row of their own, where the image is large enough to move so far (`changes.margin`)."""


@dataclass(frozen=True)
class Effect:
    """What one change of the images does to a model's answers: means over images."""

    at: float  # how strong the change is, in the unit of its curve: pixels, pieces along a side, or a frequency
    same: float | None  # the share of images whose prediction stays. This and the next are None without a classifier.
    moved: float | None
    """Probability that moves from classes to others, half of the sum of all absolute changes: 0 none, 1 all of it."""
    likeness: float  # cosine similarity of the features before and after
    accuracy: float | None  # the share of right predictions; None without labels


@dataclass(frozen=True)
class Shifts:
    """What happens when the image moves."""

    accuracy: float | None
    """Before it moves. The windows that move are cut from an image enlarged by a quarter, so this is not `Bias`'s."""
    curve: tuple[Effect, ...]  # at so many pixels
    within: Effect | None
    """The mean of the shifts by less than a patch; of all shifts where there are no patches; None if there is none."""
    whole: Effect | None
    """The mean of the shifts by whole patches; None where a patch is more than a quarter of the image."""


@dataclass(frozen=True)
class ReceptiveField:
    """Which pixels the features of the central place depend on, by their gradient: shares of the longer side."""

    radius: float  # half of the gradient lies so near. 0: one pixel; 0.4: all of a square image counts equally
    radii: Values
    mass: Values  # the share of the gradient that lies within each of `radii`


@dataclass(frozen=True)
class Bias:
    """How a model changes its answers with what is done to the image, and how far it looks."""

    images: int
    size: tuple[int, int]  # height and width of the model's input, in pixels
    patch: int | None
    """Side of a patch, or the stride of a convolutional network's last map; None of a network without places."""
    accuracy: float | None  # on the images as they are; None without labels
    shifts: Shifts
    attention_distance: Values | None
    """(layers,): how far a patch looks, mean of the heads, as a share of the longer side; None without attention."""
    receptive_field: ReceptiveField | None
    effects: dict[str, tuple[Effect, ...]]  # of each row of `PERTURBATIONS`, at each of its strengths
    low_needed: float | None
    """The lowest frequency from which on, with all below it, half of the images keep their prediction."""
    high_enough: float | None
    """Up to which frequency all can be taken away before half of the images lose their prediction."""
    unreadable: tuple[str, ...] = ()  # images that were left out, with the reason

    def to_json(self) -> dict[str, Any]:
        """As dicts, lists, texts and numbers; each perturbation is a key of its own."""
        fields = asdict(self)
        return {**fields.pop("effects"), **fields}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Bias:
        """Of a file that may lack a perturbation that was added since, or have one that is not known here."""

        def effects(entries: Sequence[Mapping[str, Any]]) -> tuple[Effect, ...]:
            return tuple(Effect(**entry) for entry in entries)

        def tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}

        names = {field.name for field in dataclass_fields(Bias)}
        field, shifts = fields["receptive_field"], fields["shifts"]
        within, whole = (None if shifts[name] is None else Effect(**shifts[name]) for name in ("within", "whole"))
        read: dict[str, Any] = {name: value for name, value in tuples(fields).items() if name in names}
        read["effects"] = {name: effects(value) for name, value in fields.items() if name not in names}
        read["shifts"] = Shifts(shifts["accuracy"], effects(shifts["curve"]), within, whole)
        read["receptive_field"] = None if field is None else ReceptiveField(**tuples(field))
        return Bias(**read)


@dataclass(frozen=True)
class BiasAnalysis:
    """The bias of several models on the same images."""

    data: MeasuredOn
    models: tuple[tuple[str, Bias], ...]  # with their names
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """What `bias.json` holds."""
        return {
            "data": self.data.to_json(),
            "models": [{"name": name, **bias.to_json()} for name, bias in self.models],
            "remarks": list(self.remarks),
        }


def mean_effect(effects: Sequence[Effect]) -> Effect | None:
    """The mean of several, at the mean of their strengths; None of none."""
    if not effects:
        return None

    def mean(name: str) -> Any:
        values = [getattr(effect, name) for effect in effects]
        return None if None in values else round(math.fsum(values) / len(values), 5)

    return Effect(mean("at"), mean("same"), mean("moved"), mean("likeness"), mean("accuracy"))


def low_needed(low_pass: Sequence[Effect]) -> float | None:
    """Where the share of kept predictions rises above a half for good, between the cut-offs on a straight line.

    With all frequencies, up to the corner at the square root of 2, all are kept.
    """
    points = [(effect.at, effect.same) for effect in low_pass if effect.same is not None]
    if not points:
        return None
    points.append((math.sqrt(2), 1.0))
    below = [number for number, (_, same) in enumerate(points) if same < 0.5]
    return _half(points[below[-1]], points[below[-1] + 1]) if below else 0.0


def high_enough(high_pass: Sequence[Effect]) -> float | None:
    """Where the share of kept predictions first falls below a half; with nothing taken away, all are kept."""
    points = [(0.0, 1.0), *((effect.at, effect.same) for effect in high_pass if effect.same is not None)]
    if len(points) == 1:
        return None
    for before, after in pairwise(points):
        if after[1] < 0.5:
            return _half(before, after)
    return points[-1][0]


def _half(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Where the line between two points is at a half."""
    return round(one[0] + (other[0] - one[0]) * (0.5 - one[1]) / (other[1] - one[1]), 5)


class BiasRow(NamedTuple):
    """One measure of all models."""

    measure: str
    as_percent: bool
    reading: str  # what a high or a low value means
    values: tuple[float | None, ...]  # one per model; None where a model has no such thing


class BiasMeasure(NamedTuple):
    """A row of the table that compares models."""

    name: str
    as_percent: bool
    reading: str  # what a high or a low value means
    value: Callable[[Bias], float | None]


def _at(name: str, at: float, metric: str) -> Callable[[Bias], float | None]:
    """What a perturbation, or a shift, of this strength does."""
    return lambda bias: next(
        (
            getattr(effect, metric)
            for effect in (bias.shifts.curve if name == "shifts" else bias.effects.get(name, ()))
            if effect.at == at
        ),
        None,
    )


BIAS_MEASURES = (
    BiasMeasure(
        "accuracy on these images",
        True,
        "Of those that the bias is measured on, as they are: fewer than an evaluation looks at.",
        lambda b: b.accuracy,
    ),
    BiasMeasure(
        "patch or stride, in pixels",
        False,
        "What counts as a whole patch below: of a convolutional network, the stride of its last map.",
        lambda b: b.patch,
    ),
    *(
        BiasMeasure(
            f"moved by {pixels} pixel{'s' * (pixels > 1)}: same prediction",
            True,
            "Of the model's input, so it compares models with inputs of one size. High: it ignores place.",
            _at("shifts", pixels, "same"),
        )
        for pixels in PIXELS
    ),
    BiasMeasure(
        "moved within a patch: same prediction",
        True,
        "Mean of shifts by less than the model's own patch. High: it matters little where the grid of patches falls. "
        "With another patch these are other distances: to compare models, take the rows of fixed pixels.",
        lambda b: getattr(b.shifts.within, "same", None),
    ),
    BiasMeasure(
        "moved by whole patches: same prediction",
        True,
        "High: it knows things wherever they are. Higher than within a patch: the grid of patches is what disturbs.",
        lambda b: getattr(b.shifts.whole, "same", None),
    ),
    BiasMeasure(
        "moved within a patch: probability that changes class",
        True,
        "As above, but it notices changes that do not turn a prediction.",
        lambda b: getattr(b.shifts.within, "moved", None),
    ),
    BiasMeasure(
        "moved within a patch: likeness of features",
        False,
        "Cosine similarity. 1: the features do not notice the move.",
        lambda b: getattr(b.shifts.within, "likeness", None),
    ),
    BiasMeasure(
        "moved by whole patches: likeness of features",
        False,
        "The same for moves that keep the patches as they are.",
        lambda b: getattr(b.shifts.whole, "likeness", None),
    ),
    BiasMeasure(
        "attention distance, of the longer side",
        True,
        "How far patches look, mean of all layers. Low: locality was learned, or built in.",
        lambda b: None if b.attention_distance is None else float(np.mean(b.attention_distance)),
    ),
    BiasMeasure(
        "effective receptive field, radius",
        True,
        "Half of the gradient of the central features lies so near, of the longer side. 40 %: the whole image alike.",
        lambda b: None if b.receptive_field is None else b.receptive_field.radius,
    ),
    BiasMeasure(
        "shuffled in 2 x 2 pieces: same prediction",
        True,
        "High: the places of large parts say little, as in a bag of features.",
        _at("shuffled", 2, "same"),
    ),
    BiasMeasure(
        "shuffled in 4 x 4 pieces: same prediction",
        True,
        "The same for smaller parts: what is left is texture and colour.",
        _at("shuffled", 4, "same"),
    ),
    BiasMeasure(
        "shuffled in 2 x 2 pieces: likeness of features",
        False,
        "Cosine similarity of the features. 1: they do not notice the shuffling.",
        _at("shuffled", 2, "likeness"),
    ),
    BiasMeasure(
        "low frequencies needed",
        True,
        "Half of the predictions stay with the frequencies up to this one, of the highest. Low: coarse shapes and "
        "colours are enough.",
        lambda b: b.low_needed,
    ),
    BiasMeasure(
        "low frequencies it can do without",
        True,
        "Half of the predictions stay without the frequencies up to this one. High: fine detail is enough.",
        lambda b: b.high_enough,
    ),
)
"""The rows of the table that compares models."""


def tell_margin(models: Sequence[Bias]) -> str:
    """How far a share of predictions may be off for so few images: 95 % of a binomial distribution."""
    images = min(bias.images for bias in models)
    half, tail = (100 * Z_95 * math.sqrt(share * (1 - share) / images) for share in (0.5, 0.1))
    return (
        f"Shares of predictions are of {images:,} images: with 95 %, ± {half:.1f} points at 50 %, ± {tail:.1f} at "
        "10 or 90 % (binomial)."
    )


def summarise_bias(models: Sequence[Bias]) -> tuple[BiasRow, ...]:
    """One row per measure that at least one model has."""
    rows = [BiasRow(m.name, m.as_percent, m.reading, tuple(m.value(bias) for bias in models)) for m in BIAS_MEASURES]
    return tuple(row for row in rows if any(value is not None for value in row.values))
