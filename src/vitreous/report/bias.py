"""The inductive bias of models side by side: a table, curves, and how to read them; and a page of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from vitreous.explain.analysis.bias_result import Bias, BiasAnalysis, Effect, summarise_bias, tell_margin
from vitreous.explain.analysis.perturbations import PERTURBATIONS
from vitreous.report.html import Html, macros, render
from vitreous.report.numbers import percent
from vitreous.report.plots import Line, lines

NAMED = tuple[str, Bias]
Metric = Literal["same", "likeness"]
WORDS: dict[Metric, str] = {"same": "same prediction", "likeness": "likeness of features"}


def bias_page(numbers: BiasAnalysis) -> str:
    return render("bias.html", numbers=numbers, bias=section_content(numbers.models))


def bias_section(models: Sequence[NAMED]) -> Html:
    """A section of a page: the names of models with what was measured of each, in their order and colours."""
    return macros("bias_section.html").bias_section(section_content(models))


def section_content(models: Sequence[NAMED]) -> dict[str, Any]:
    """What the macro `bias_section` shows."""
    biases = [bias for _, bias in models]
    metric: Metric = "same" if all(bias.low_needed is not None for bias in biases) else "likeness"
    moved = [bias.shifts.curve for bias in biases]
    plots = []
    if metric == "same":
        plots.append(
            (
                _curves(moved, "same", "moved", "pixels", doubles=True),
                "The image moves by so many pixels, up, down, left or right; both windows are cut from the enlarged "
                "image, so no border comes in. Flat and high: it ignores place.",
            )
        )
    plots.append(
        (
            _curves(moved, "likeness", "moved", "pixels", doubles=True),
            "Cosine similarity of the features before and after the same moves. Peaks at whole patches: the grid of "
            "patches disturbs more than the move.",
        )
    )
    for name, row in PERTURBATIONS.items():
        effects = [bias.effects.get(name, ()) for bias in biases]
        curve = _curves(effects, metric, row.title, row.along, doubles=row.doubles)
        plots.append((curve, row.reading))
    fields = [(number, field) for number, bias in enumerate(biases) if (field := bias.receptive_field) is not None]
    if fields:
        drawn = [Line(number, field.radii, field.mass) for number, field in fields]
        plots.append(
            (
                lines(drawn, "gradient within a radius", "radius, of the longer side", percent=True, unit_range=True),
                "How much of what moves the features of the central place lies within a radius around it. An early "
                "rise: the place sees its surroundings only.",
            )
        )
    distances = [(number, far) for number, bias in enumerate(biases) if (far := bias.attention_distance) is not None]
    if distances:
        same = len({len(far) for _, far in distances}) == 1
        drawn = [
            Line(number, [layer / (1 if same else len(far)) for layer in range(1, len(far) + 1)], far)
            for number, far in distances
        ]
        along = "depth" if same else "depth, as a share of all"
        plots.append(
            (
                lines(drawn, "attention distance", along, percent=True, unit_range=True),
                "How far patches look in each layer, mean of the heads, of the longer side.",
            )
        )
    return {
        "names": [name for name, _ in models],
        "rows": summarise_bias(biases),
        "margin": tell_margin(biases),
        "show": shown_value,
        "plots": plots,
    }


def shown_value(value: float | None, as_percent: bool) -> str:
    """A value of a table's row, for people; a dash where there is none."""
    if value is None:
        return "–"
    if as_percent:
        return percent(value)
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _curves(
    curves: Sequence[Sequence[Effect]],
    metric: Metric,
    title: str,
    along: str,
    *,
    doubles: bool = False,
) -> Html:
    series = []
    for number, curve in enumerate(curves):
        points = [(effect.at, value) for effect in curve if (value := getattr(effect, metric)) is not None]
        if points:
            series.append(Line(number, *zip(*points, strict=True)))
    scale: Literal["log2", "linear"] = "log2" if doubles else "linear"
    return lines(series, f"{title}: {WORDS[metric]}", along, percent=metric == "same", unit_range=True, scale=scale)
