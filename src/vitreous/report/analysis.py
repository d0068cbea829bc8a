"""`analysis.html`: what models learned, depth by depth and side by side, with how to read each plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitreous.explain.analysis.depth_result import MEASURES, DepthAnalysis, Measure, ModelNumbers, Values
from vitreous.report.html import Html, render
from vitreous.report.plots import Line, field, lines


def analysis_page(numbers: DepthAnalysis) -> str:
    models = numbers.models
    names = [model.name for model in models]
    cka = []
    for pair in sorted(numbers.cka, key=lambda pair: pair.models[0] == pair.models[1]):  # with themselves comes last
        i, j = pair.models
        cka.append((pair.models, field(pair.values, f"depth of {names[j]}", f"depth of {names[i]}", (0, 0))))
    plots: dict[str, Any] = {
        **{name: _over_depth(models, measure) for name, measure in MEASURES.items()},
        "depth_similarity": [field(m.measures.depth_similarity, "depth", "depth", (1, 1)) for m in models],
        "frequencies": lines(
            [Line(i, m.measures.frequencies, m.measures.log_amplitude[-1]) for i, m in enumerate(models)],
            "log amplitude after the last layer",
            "frequency, of the highest",
        ),
        "token_spectrum": _numbered(
            [m.measures.token_spectrum[-1] for m in models], "singular values of tokens, last layer"
        ),
        "representation_spectrum": _numbered(
            [m.measures.representation_spectrum for m in models], "singular values of representations"
        ),
        "cka": cka,
        **_worth(models),
    }
    return render("analysis.html", numbers=numbers, names=names, measures=MEASURES, plots=plots)


def _depths(models: Sequence[ModelNumbers]) -> tuple[bool, str]:
    """Whether all models are equally deep, and what the x axis is called; else depths are fractions of the whole."""
    same = len({model.shape.depth for model in models}) == 1
    return same, "depth" if same else "depth, as a share of all"


def _over_depth(models: Sequence[ModelNumbers], measure: Measure) -> Html:
    """One line per model. Of what has one number per head, the mean is drawn, with the heads as dots."""
    same, along = _depths(models)
    series = []
    for number, model in enumerate(models):
        found, depth = measure.values(model), model.shape.depth
        x = [i / (1 if same else depth) for i in range(depth + 1 - len(found), depth + 1)]
        y = [sum(one) / len(one) if isinstance(one, tuple) else one for one in found]
        series.append(Line(number, x, y, dots=[one for one in found if isinstance(one, tuple)]))
    return lines(series, measure.title, along, percent=measure.as_percent)


def _numbered(values: Sequence[Values], title: str) -> Html:
    """Each model's values over 1, 2, 3, ..."""
    return lines([Line(i, range(1, len(one) + 1), one) for i, one in enumerate(values)], title, "number")


def _worth(models: Sequence[ModelNumbers]) -> dict[str, Html | None]:
    same, along = _depths(models)
    probes, noisy = [], []
    for i, model in enumerate(models):
        if model.probe is None or model.noise is None:
            continue
        accuracy, noise = model.probe.accuracy, model.noise
        x = [depth / (1 if same else model.shape.depth) for depth in range(len(accuracy))]
        probes.append(Line(i, x, [one.value for one in accuracy], band=[one.interval for one in accuracy]))
        middle = [sum(band) / 2 for band in noise.bands]
        noisy.append(Line(i, middle, [one.value - noise.clean.value for one in noise.accuracy]))
    if not probes:
        return {"probes": None, "noise": None}
    return {
        "probes": lines(probes, "linear probe", along, percent=True),
        "noise": lines(noisy, "accuracy lost to noise", "frequency of the noise, of the highest", percent=True),
    }
