"""The inductive bias of models side by side: a table, curves, and how to read them; and a page of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from vitreous.explain.analysis.bias_result import Bias, BiasAnalysis, Effect, summarise_bias, tell_margin
from vitreous.report.html import Html, macros, render
from vitreous.report.numbers import percent
from vitreous.report.plots import Line, lines

NAMED = tuple[str, Bias]
Metric = Literal["same", "likeness"]


def bias_page(numbers: BiasAnalysis) -> str:
    return render("bias.html", numbers=numbers, bias=section_content(numbers.models))


def bias_section(models: Sequence[NAMED]) -> Html:
    """A section of a page: the names of models with what was measured of each, in their order and colours."""
    return macros("bias_section.html").bias_section(section_content(models))


def section_content(models: Sequence[NAMED]) -> dict[str, Any]:
    """What the macro `bias_section` shows."""
    biases = [bias for _, bias in models]
    metric: Metric = "same" if all(bias.low_needed is not None for bias in biases) else "likeness"
    words = "same prediction" if metric == "same" else "likeness of features"
    draw = partial(_curves, biases)
    return {
        "names": [name for name, _ in models],
        "rows": summarise_bias(biases),
        "margin": tell_margin(biases),
        "show": shown_value,
        "plots": {
            "moved_same": draw(lambda b: b.shifts.curve, metric, f"moved: {words}", "pixels", doubling=True)
            if metric == "same"
            else None,
            "moved_features": draw(
                lambda b: b.shifts.curve, "likeness", "moved: likeness of features", "pixels", doubling=True
            ),
            "shuffled": draw(lambda b: b.shuffled, metric, f"shuffled: {words}", "pieces along a side", doubling=True),
            "low_pass": draw(lambda b: b.low_pass, metric, f"low frequencies only: {words}", "up to, of the highest"),
            "high_pass": draw(
                lambda b: b.high_pass, metric, f"high frequencies only: {words}", "above, of the highest"
            ),
            "receptive_field": _receptive_fields(biases),
            "attention_distance": _attention_distances(biases),
        },
    }


def shown_value(value: float | None, as_percent: bool) -> str:
    """A value of a table's row, for people; a dash where there is none."""
    if value is None:
        return "–"
    if as_percent:
        return percent(value)
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _receptive_fields(biases: Sequence[Bias]) -> Html | None:
    fields = [(number, bias.receptive_field) for number, bias in enumerate(biases)]
    drawn = [Line(number, field.radii, field.mass) for number, field in fields if field is not None]
    if not drawn:
        return None
    return lines(drawn, "gradient within a radius", "radius, of the longer side", percent=True, unit_range=True)


def _attention_distances(biases: Sequence[Bias]) -> Html | None:
    distances = [(number, bias.attention_distance) for number, bias in enumerate(biases)]
    found = [(number, far) for number, far in distances if far is not None]
    if not found:
        return None
    same = len({len(far) for _, far in found}) == 1
    drawn = [
        Line(number, [layer / (1 if same else len(far)) for layer in range(1, len(far) + 1)], far)
        for number, far in found
    ]
    along = "depth" if same else "depth, as a share of all"
    return lines(drawn, "attention distance", along, percent=True, unit_range=True)


def _curves(
    biases: Sequence[Bias],
    curve: Callable[[Bias], Sequence[Effect]],
    metric: Metric,
    title: str,
    along: str,
    *,
    doubling: bool = False,
) -> Html:
    series = []
    for number, bias in enumerate(biases):
        points = [(effect.at, value) for effect in curve(bias) if (value := getattr(effect, metric)) is not None]
        if points:
            series.append(Line(number, *zip(*points, strict=True)))
    return lines(
        series, title, along, percent=metric == "same", unit_range=True, scale="log2" if doubling else "linear"
    )
