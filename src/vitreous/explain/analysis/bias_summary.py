"""The bias of models in a table: one row per measure, one column per model, and how to read each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vitreous.explain.analysis.bias_numbers import Bias, Effect

NORMAL = 1.959963984540054
"""Standard deviations to either side that hold 95 % of a normal distribution."""


PIXELS = (1, 2, 4, 8)
"""Distances that have a row of their own, where the image is large enough to move so far (`changes.margin`)."""


class BiasRow(NamedTuple):
    """One measure of all models."""

    measure: str
    share: bool
    """Whether it is a share, to be shown as per cent."""
    reading: str
    """What a high or a low value means."""
    values: tuple[float | None, ...]
    """One per model; None where a model has no such thing."""


class _Measure(NamedTuple):
    name: str
    share: bool
    reading: str
    value: Callable[[Bias], float | None]


def _of(effect: Effect | None, name: str) -> float | None:
    return None if effect is None else getattr(effect, name)


def _in_pieces(bias: Bias, pieces: int, name: str) -> float | None:
    return next((_of(effect, name) for effect in bias.shuffled if effect.at == pieces), None)


def _distance(bias: Bias) -> float | None:
    return None if bias.attention_distance is None else float(np.mean(bias.attention_distance))


def _moved_by(pixels: int) -> _Measure:
    """The same distance for every model, whatever its patches are."""

    def value(bias: Bias) -> float | None:
        return next((effect.same for effect in bias.shifts.curve if effect.at == pixels), None)

    return _Measure(
        f"moved by {pixels} pixel{'s' * (pixels > 1)}: same prediction",
        True,
        "Of the model's input, so it compares models with inputs of one size. High: it ignores place.",
        value,
    )


_MEASURES = (
    _Measure(
        "accuracy on these images",
        True,
        "Of those that the bias is measured on, as they are: fewer than an evaluation looks at.",
        lambda b: b.accuracy,
    ),
    _Measure(
        "patch or stride, in pixels",
        False,
        "What counts as a whole patch below: of a convolutional network, the stride of its last map.",
        lambda b: b.patch,
    ),
    *(_moved_by(pixels) for pixels in PIXELS),
    _Measure(
        "moved within a patch: same prediction",
        True,
        "Mean of shifts by less than the model's own patch. High: it matters little where the grid of patches falls. "
        "With another patch these are other distances: to compare models, take the rows of fixed pixels.",
        lambda b: _of(b.shifts.within, "same"),
    ),
    _Measure(
        "moved by whole patches: same prediction",
        True,
        "High: it knows things wherever they are. Higher than within a patch: the grid of patches is what disturbs.",
        lambda b: _of(b.shifts.whole, "same"),
    ),
    _Measure(
        "moved within a patch: probability that changes class",
        True,
        "As above, but it notices changes that do not turn a prediction.",
        lambda b: _of(b.shifts.within, "moved"),
    ),
    _Measure(
        "moved within a patch: likeness of features",
        False,
        "Cosine similarity. 1: the features do not notice the move.",
        lambda b: _of(b.shifts.within, "likeness"),
    ),
    _Measure(
        "moved by whole patches: likeness of features",
        False,
        "The same for moves that keep the patches as they are.",
        lambda b: _of(b.shifts.whole, "likeness"),
    ),
    _Measure(
        "attention distance, of the longer side",
        True,
        "How far patches look, mean of all layers. Low: locality was learned, or built in.",
        _distance,
    ),
    _Measure(
        "effective receptive field, radius",
        True,
        "Half of the gradient of the central features lies so near, of the longer side. 40 %: the whole image alike.",
        lambda b: None if b.receptive_field is None else b.receptive_field.radius,
    ),
    _Measure(
        "shuffled in 2 x 2 pieces: same prediction",
        True,
        "High: the places of large parts say little, as in a bag of features.",
        lambda b: _in_pieces(b, 2, "same"),
    ),
    _Measure(
        "shuffled in 4 x 4 pieces: same prediction",
        True,
        "The same for smaller parts: what is left is texture and colour.",
        lambda b: _in_pieces(b, 4, "same"),
    ),
    _Measure(
        "shuffled in 2 x 2 pieces: likeness of features",
        False,
        "Cosine similarity of the features. 1: they do not notice the shuffling.",
        lambda b: _in_pieces(b, 2, "likeness"),
    ),
    _Measure(
        "low frequencies needed",
        True,
        "Half of the predictions stay with the frequencies up to this one, of the highest. Low: coarse shapes and "
        "colours are enough.",
        lambda b: b.low_needed,
    ),
    _Measure(
        "low frequencies it can do without",
        True,
        "Half of the predictions stay without the frequencies up to this one. High: fine detail is enough.",
        lambda b: b.high_enough,
    ),
)


def tell_margin(models: Sequence[Bias]) -> str:
    """How far a share of predictions may be off for so few images: 95 % of a binomial distribution."""
    images = min(bias.images for bias in models)
    half, tail = (100 * NORMAL * math.sqrt(share * (1 - share) / images) for share in (0.5, 0.1))
    return (
        f"Shares of predictions are of {images:,} images: with 95 %, ± {half:.1f} points at 50 %, ± {tail:.1f} at "
        "10 or 90 % (binomial)."
    )


def summarise_bias(models: Sequence[Bias]) -> tuple[BiasRow, ...]:
    """One row per measure that at least one model has."""
    rows = [BiasRow(m.name, m.share, m.reading, tuple(m.value(bias) for bias in models)) for m in _MEASURES]
    return tuple(row for row in rows if any(value is not None for value in row.values))
