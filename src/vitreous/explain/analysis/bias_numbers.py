"""What the inductive bias of a model is measured by, as values with names; `Bias.to_json` is what files hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from vitreous.explain.analysis.numbers import MeasuredOn, Values


@dataclass(frozen=True)
class Effect:
    """What one change of the images does to a model's answers: means over images."""

    at: float
    """How strong the change is, in the unit of its curve: pixels, pieces along a side, or a frequency."""
    same: float | None
    """The share of images whose prediction stays. This and the next are None without a classifier."""
    moved: float | None
    """Probability that moves from classes to others, half of the sum of all absolute changes: 0 none, 1 all of it."""
    likeness: float
    """Cosine similarity of the features before and after."""
    accuracy: float | None
    """The share of right predictions; None without labels."""


@dataclass(frozen=True)
class Shifts:
    """What happens when the image moves."""

    accuracy: float | None
    """Before it moves. The windows that move are cut from an image enlarged by a quarter, so this is not `Bias`'s."""
    curve: tuple[Effect, ...]
    """At so many pixels."""
    within: Effect | None
    """The mean of the shifts by less than a patch; of all shifts where there are no patches; None if there is none."""
    whole: Effect | None
    """The mean of the shifts by whole patches; None where a patch is more than a quarter of the image."""


@dataclass(frozen=True)
class ReceptiveField:
    """Which pixels the features of the central place depend on, by their gradient: shares of the longer side."""

    radius: float
    """Half of the gradient lies so near. 0: one pixel; 0.4: all of a square image counts alike."""
    radii: Values
    mass: Values
    """The share of the gradient that lies within each of `radii`."""


@dataclass(frozen=True)
class Bias:
    """How a model changes its answers with what is done to the image, and how far it looks."""

    images: int
    size: tuple[int, int]
    """Height and width of the model's input, in pixels."""
    patch: int | None
    """Side of a patch, or the stride of a convolutional network's last map; None of a network without places."""
    accuracy: float | None
    """On the images as they are; None without labels."""
    shifts: Shifts
    attention_distance: Values | None
    """(layers,): how far a patch looks, mean of the heads, as a share of the longer side; None without attention."""
    receptive_field: ReceptiveField | None
    shuffled: tuple[Effect, ...]
    """In so many by so many pieces."""
    low_pass: tuple[Effect, ...]
    """With frequencies up to these only."""
    high_pass: tuple[Effect, ...]
    """With frequencies above these only, and the mean colour."""
    low_needed: float | None
    """The lowest frequency from which on, with all below it, half of the images keep their prediction."""
    high_enough: float | None
    """Up to which frequency all can be taken away before half of the images lose their prediction."""
    unreadable: tuple[str, ...] = ()
    """Images that were left out, with the reason."""

    def to_json(self) -> dict[str, Any]:
        """As dicts, lists, texts and numbers."""
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Bias:
        """The same again."""
        field, distance = fields["receptive_field"], fields["attention_distance"]
        height, width = fields["size"]
        read: dict[str, Any] = {name: _effects(fields[name]) for name in ("shuffled", "low_pass", "high_pass")}
        read["size"] = (height, width)
        read["shifts"] = _shifts(fields["shifts"])
        read["attention_distance"] = None if distance is None else tuple(distance)
        read["receptive_field"] = None if field is None else _field(field)
        read["unreadable"] = tuple(fields["unreadable"])
        return Bias(**{**fields, **read})


@dataclass(frozen=True)
class BiasNumbers:
    """The bias of several models on the same images."""

    data: MeasuredOn
    models: tuple[tuple[str, Bias], ...]
    """With their names."""
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """What `bias.json` holds."""
        return {
            "data": self.data.to_json(),
            "models": [{"name": name, **bias.to_json()} for name, bias in self.models],
            "remarks": list(self.remarks),
        }


def _effects(entries: Sequence[Mapping[str, Any]]) -> tuple[Effect, ...]:
    return tuple(Effect(**entry) for entry in entries)


def _shifts(fields: Mapping[str, Any]) -> Shifts:
    within, whole = (None if fields[name] is None else Effect(**fields[name]) for name in ("within", "whole"))
    return Shifts(fields["accuracy"], _effects(fields["curve"]), within, whole)


def _field(fields: Mapping[str, Any]) -> ReceptiveField:
    return ReceptiveField(fields["radius"], tuple(fields["radii"]), tuple(fields["mass"]))


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
