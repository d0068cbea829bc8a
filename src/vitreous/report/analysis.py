"""`analysis.html`: what models learned, depth by depth and side by side, with how to read each plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vitreous.explain.analysis.depth_measures import DEPTH_MEASURES, DepthMeasure
from vitreous.explain.analysis.depth_result import DepthAnalysis, ModelNumbers
from vitreous.report.html import Html, render
from vitreous.report.plots import Line, field, lines

Read = tuple[Html, str]
"""A plot, and how to read it."""


def analysis_page(numbers: DepthAnalysis) -> str:
    models = numbers.models
    names = [model.name for model in models]
    sections: dict[str, list[Read]] = {}
    for name, measure in DEPTH_MEASURES.items():
        if measure.plot is not None:
            sections.setdefault(measure.section, []).extend(PLOTS[measure.plot](models, name, measure))
    sections["What it is worth"] = list(_worth(models, numbers.noise_strength))
    cka = []
    for pair in sorted(numbers.cka, key=lambda pair: pair.models[0] == pair.models[1]):  # with themselves comes last
        i, j = pair.models
        words = f"{names[i]} with itself." if i == j else f"{names[i]} (up) with {names[j]} (across)."
        cka.append((field(pair.values, f"depth of {names[j]}", f"depth of {names[i]}", (0, 0)), words))
    return render("analysis.html", numbers=numbers, names=names, sections=sections, cka=cka)


def _depths(models: Sequence[ModelNumbers]) -> tuple[bool, str]:
    """Whether all models are equally deep, and what the x axis is called; else depths are fractions of the whole."""
    same = len({model.shape.depth for model in models}) == 1
    return same, "depth" if same else "depth, as a share of all"


def _over_depth(models: Sequence[ModelNumbers], name: str, measure: DepthMeasure) -> list[Read]:
    """One line per model. Of what has one number per head, the mean is drawn, with the heads as dots."""
    same, along = _depths(models)
    series = []
    for number, model in enumerate(models):
        found, depth = measure.of_model(name, model), model.shape.depth
        x = [i / (1 if same else depth) for i in range(depth + 1 - len(found), depth + 1)]
        y = [sum(one) / len(one) if isinstance(one, tuple) else one for one in found]
        series.append(Line(number, x, y, dots=[one for one in found if isinstance(one, tuple)]))
    return [(lines(series, measure.title, along, percent=measure.as_percent), measure.reading)]


def _spectrum(models: Sequence[ModelNumbers], name: str, measure: DepthMeasure) -> list[Read]:
    """Each model's values over 1, 2, 3, ...; of what has a depth, those of the last one."""
    found = [measure.of_model(name, model) for model in models]
    values = [one[-1] if isinstance(one[0], tuple) else one for one in found]
    drawn = [Line(i, range(1, len(one) + 1), one) for i, one in enumerate(values)]
    return [(lines(drawn, measure.title, "number"), measure.reading)]


def _matrices(models: Sequence[ModelNumbers], name: str, measure: DepthMeasure) -> list[Read]:
    return [
        (field(measure.of_model(name, model), "depth", "depth", (1, 1)), f"{model.name}: {measure.reading}")
        for model in models
    ]


def _by_frequency(models: Sequence[ModelNumbers], name: str, measure: DepthMeasure) -> list[Read]:
    drawn = [Line(i, m.measures[name], m.measures["log_amplitude"][-1]) for i, m in enumerate(models)]
    return [(lines(drawn, measure.title, "frequency, of the highest"), measure.reading)]


PLOTS: dict[str, Callable[[Sequence[ModelNumbers], str, DepthMeasure], list[Read]]] = {
    "depth": _over_depth,
    "spectrum": _spectrum,
    "matrix": _matrices,
    "frequencies": _by_frequency,
}


def _worth(models: Sequence[ModelNumbers], strength: float) -> Sequence[Read]:
    same, along = _depths(models)
    probes, noisy, clean = [], [], []
    for i, model in enumerate(models):
        if model.probe is None or model.noise is None:
            continue
        accuracy, noise = model.probe.accuracy, model.noise
        x = [depth / (1 if same else model.shape.depth) for depth in range(len(accuracy))]
        probes.append(Line(i, x, [one.value for one in accuracy], band=[one.interval for one in accuracy]))
        middle = [sum(band) / 2 for band in noise.bands]
        noisy.append(Line(i, middle, [one.value - noise.clean.value for one in noise.accuracy]))
        clean.append(f"{model.name} {100 * noise.clean.value:.1f} %")
    if not probes:
        return ()
    return (
        (
            lines(probes, "linear probe", along, percent=True),
            "Accuracy of a linear classifier on the mean of the patch tokens at each depth, with its 95 % interval. "
            "Where it stops rising, later layers do something else than tell these classes apart.",
        ),
        (
            lines(noisy, "accuracy lost to noise", "frequency of the noise, of the highest", percent=True),
            f"Noise of one range of frequencies, root mean square {strength:g} of the range from black to white. A "
            f"deep fall: the model relies on those frequencies. Without noise: {'; '.join(clean)}.",
        ),
    )
