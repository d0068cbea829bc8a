"""One table of the biases of models, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vitreous.explain.analysis.bias_numbers import Bias, Effect
from vitreous.report.html import Html, table, tag
from vitreous.report.plots import shortened

NONE = "–"
Measure = Callable[[Bias], str]


def bias_table(biases: Mapping[str, Bias]) -> Html:
    """A row for each measure and a column for each model; what a model has not is a dash."""
    rows = [
        [named(title), *(measure(bias) for bias in biases.values())] for title, measure in _measures(biases).items()
    ]
    return table(["", *(shortened(name, 40) for name in biases)], rows, numbers=len(biases))


def named(title: str) -> Html:
    """The start of a row, wide enough to be read where the table is wider than the page."""
    return tag("div", title, style="min-width: 9rem")


def _measures(biases: Mapping[str, Bias]) -> dict[str, Measure]:
    pieces = sorted({effect.at for bias in biases.values() for effect in bias.shuffled})
    shuffled = {f"prediction kept, shuffled in {at:g}×{at:g} pieces": _kept_shuffled(at) for at in pieces}
    return {
        "prediction kept, moved by pixels": lambda bias: _kept(bias.shifts.within),
        "prediction kept, moved by whole patches": lambda bias: _kept(bias.shifts.whole),
        "likeness of features, moved by pixels": lambda bias: _likeness(bias.shifts.within),
        "likeness of features, moved by whole patches": lambda bias: _likeness(bias.shifts.whole),
        "attention distance, first layer, of the side": lambda bias: _distance(bias, 0),
        "attention distance, last layer, of the side": lambda bias: _distance(bias, -1),
        "radius of half the gradient (receptive field), of the side": _radius,
        **shuffled,
        "lowest frequencies needed, up to": lambda bias: _number(bias.low_needed),
        "highest frequencies enough, from": lambda bias: _number(bias.high_enough),
    }


def _kept_shuffled(pieces: float) -> Measure:
    return lambda bias: _kept(next((effect for effect in bias.shuffled if effect.at == pieces), None))


def _kept(effect: Effect | None) -> str:
    return NONE if effect is None or effect.same is None else f"{100 * effect.same:.1f}\u00a0%"


def _likeness(effect: Effect | None) -> str:
    return NONE if effect is None else f"{effect.likeness:.3f}"


def _distance(bias: Bias, layer: int) -> str:
    return NONE if bias.attention_distance is None else f"{100 * bias.attention_distance[layer]:.1f}\u00a0%"


def _radius(bias: Bias) -> str:
    return NONE if bias.receptive_field is None else f"{100 * bias.receptive_field.radius:.1f}\u00a0%"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
