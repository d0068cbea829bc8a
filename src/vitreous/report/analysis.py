"""`analysis.html`: what models learned, depth by depth and side by side, with how to read each plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vitreous.explain.analysis.numbers import ModelNumbers, Numbers, Shape, Table, Values
from vitreous.report.analysis_plots import Line, colour_key, field, joined_names, lines, side_by_side
from vitreous.report.html import Html, document, facts, table, tag
from vitreous.report.numbers import parameters
from vitreous.report.plots import shortened


def analysis_page(numbers: Numbers) -> str:
    """The whole page as text, from what was measured."""
    models = numbers.models
    sections = [
        ("Side by side", list(_summary(numbers))),
        ("Where it looks", list(_attention(models))),
        ("What tokens hold", list(_tokens(models))),
        ("What images' representations hold", list(_images(models))),
        ("What it is worth", list(_worth(numbers))),
        ("How alike the depths are", list(_alike(numbers))),
    ]
    body = [
        tag(
            "header",
            tag("p", "Analysis", class_="kind"),
            tag("h1", joined_names([model.name for model in models])),
            tag("p", _lede(numbers), class_="lede"),
        ),
        *(tag("section", tag("h2", name), *content) for name, content in sections if content),
    ]
    if numbers.remarks:
        remarks = tag("ul", *(tag("li", remark) for remark in numbers.remarks))
        body.append(tag("section", tag("h2", "Remarks"), remarks))
    return document(f"{joined_names([model.name for model in models])}: vitreous", body)


def _lede(numbers: Numbers) -> str:
    data = numbers.data
    said = f"{data.images:,} images of {data.source} ({data.split})"
    if data.learned_from is None:
        return f"Measured on {said}, without labels."
    return f"Measured on {said}; linear probes learned from {data.learned_from:,} others, of {data.classes} classes."


def _summary(numbers: Numbers) -> Iterable[Html]:
    models = numbers.models
    yield colour_key([model.name for model in models])
    yield tag("p", "What has a depth is here the mean over the last third of the layers.", class_="quiet")
    rows = [[row.measure, *(_value(value, row.share) for value in row.values)] for row in numbers.summary]
    made = table(["", *(shortened(model.name, 20) for model in models)], rows, numbers=len(models))
    yield tag("div", made, style="overflow-x: auto")
    yield tag("h3", "The models")
    yield facts({model.name: _shape(model.shape) for model in models})


def _value(value: float, share: bool) -> str:
    if share:
        return f"{100 * value:.1f}\u00a0%"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _shape(c: Shape) -> str:
    size = "×".join(map(str, c.size))
    return (
        f"width {c.width}, depth {c.depth}, {c.heads} heads, patches of {c.patch} pixels, images of "
        f"{size}; {parameters(c.parameters)}"
    )


def _over_depth(
    models: Sequence[ModelNumbers],
    first: int,
    values: Callable[[ModelNumbers], Values | Table],
    title: str,
    *,
    share: bool = False,
) -> Html:
    """One line per model. Depths are counted where all models have as many, else they are shares of the whole.

    values: one number per depth, or several, whose mean is drawn with them; the first belongs to depth `first`.
    """
    same = len({model.shape.depth for model in models}) == 1
    series = []
    for number, model in enumerate(models):
        found = values(model)
        whole = 1 if same else model.shape.depth
        x = [(first + i) / whole for i in range(len(found))]
        y = [sum(one) / len(one) if isinstance(one, tuple) else one for one in found]
        series.append(Line(number, x, y, dots=[one for one in found if isinstance(one, tuple)]))
    return lines(series, title, "depth" if same else "depth, as a share of all", share=share)


def _highest(model: ModelNumbers) -> Values:
    """(L + 1,): the log amplitude of the highest frequency."""
    return tuple(amplitudes[-1] for amplitudes in model.measures.log_amplitude)


def _numbered(model: int, values: Values) -> Line:
    """A model's values over 1, 2, 3, ..."""
    return Line(model, range(1, len(values) + 1), values)


def _attention(models: Sequence[ModelNumbers]) -> Iterable[Html]:
    yield side_by_side(
        (
            _over_depth(
                models, 1, lambda m: m.relative_distance(), "attention distance, of the longer side", share=True
            ),
            "How far a patch looks on average; a dot is a head. High: it gathers from the whole image, as a shape "
            "needs. Low: from its neighbours, as texture needs.",
        ),
        (
            _over_depth(models, 1, lambda m: m.measures.mutual_information, "mutual information of queries and keys"),
            "Whether where a patch looks depends on which patch it is. 0: all patches look at the same places, the "
            "attention has collapsed into one map. 1: each has a place of its own.",
        ),
        (
            _over_depth(models, 1, lambda m: m.measures.head_similarity, "likeness of heads"),
            "Mean cosine similarity of two heads' attention. Near 1: the heads do the same work several times.",
        ),
        (
            _over_depth(models, 1, lambda m: m.measures.query_similarity, "likeness of places: attention"),
            "Mean cosine similarity of two patches' attention. Near 1 tells of collapse, as mutual information near 0.",
        ),
    )
    yield tag("h3", "Likeness of depths: attention")
    yield side_by_side(
        *(
            (
                field(model.measures.depth_similarity, "depth", "depth", (1, 1)),
                f"{model.name}: cosine similarity of two layers' attention. A full block: layers that look at the "
                "same places.",
            )
            for model in models
        )
    )


def _tokens(models: Sequence[ModelNumbers]) -> Iterable[Html]:
    waves = [Line(i, m.measures.frequencies, m.measures.log_amplitude[-1]) for i, m in enumerate(models)]
    spectra = [_numbered(i, m.measures.token_spectrum[-1]) for i, m in enumerate(models)]
    yield side_by_side(
        (
            _over_depth(models, 0, _highest, "log amplitude, highest frequency"),
            "How much neighbouring tokens differ, against what all have in common (natural logarithm). Higher: more "
            "detail and texture is kept. Falling: the layers smooth it away.",
        ),
        (
            lines(waves, "log amplitude after the last layer", "frequency, of the highest"),
            "The same for all frequencies along the diagonal of the grid, relative to frequency 0.",
        ),
        (
            _over_depth(models, 0, lambda m: m.measures.token_similarity, "likeness of places: tokens"),
            "Mean cosine similarity of two patches' tokens. Near 1: an image's tokens say all the same.",
        ),
        (
            _over_depth(models, 0, lambda m: m.measures.token_rank, "dimensions in use by tokens"),
            "Effective rank of one image's tokens. High: tokens are told apart in many ways.",
        ),
        (
            lines(spectra, "singular values of tokens, last layer", "number"),
            "Natural logarithm, relative to the largest, mean over images. A steep fall: few directions hold all.",
        ),
    )


def _images(models: Sequence[ModelNumbers]) -> Iterable[Html]:
    spectra = [_numbered(i, m.measures.representation_spectrum) for i, m in enumerate(models)]
    yield side_by_side(
        (
            _over_depth(models, 0, lambda m: m.measures.image_rank, "dimensions in use by images"),
            "Effective rank of the images' mean tokens. High: images are told apart in many ways.",
        ),
        (
            lines(spectra, "singular values of representations", "number"),
            "Of what a classifier reads, natural logarithm, relative to the largest. A cliff: collapsed dimensions.",
        ),
    )


def _worth(numbers: Numbers) -> Iterable[Html]:
    same = len({model.shape.depth for model in numbers.models}) == 1
    probes, noisy, clean = [], [], []
    for i, model in enumerate(numbers.models):
        if model.probe is None or model.noise is None:
            continue
        accuracy, noise = model.probe.accuracy, model.noise
        x = [depth if same else depth / model.shape.depth for depth in range(len(accuracy))]
        probes.append(Line(i, x, [one.value for one in accuracy], band=[one.interval for one in accuracy]))
        middle = [sum(band) / 2 for band in noise.bands]
        noisy.append(Line(i, middle, [one.value - noise.clean.value for one in noise.accuracy]))
        clean.append(f"{model.name} {100 * noise.clean.value:.1f} %")
    if not probes:
        return
    yield side_by_side(
        (
            lines(probes, "linear probe", "depth" if same else "depth, as a share of all", share=True),
            "Accuracy of a linear classifier on the mean of the patch tokens at each depth, with its 95 % interval. "
            "Where it stops rising, later layers do something else than tell these classes apart.",
        ),
        (
            lines(noisy, "accuracy lost to noise", "frequency of the noise, of the highest", share=True),
            f"Noise of one range of frequencies, root mean square {numbers.noise_strength:g} of the range from "
            f"black to white. A deep fall: the model relies on those frequencies. Without noise: {'; '.join(clean)}.",
        ),
    )


def _alike(numbers: Numbers) -> Iterable[Html]:
    names = [model.name for model in numbers.models]
    plots = []
    for pair in sorted(numbers.cka, key=lambda pair: pair.models[0] == pair.models[1]):
        i, j = pair.models
        words = f"{names[i]} with itself." if i == j else f"{names[i]} (up) with {names[j]} (across)."
        plots.append((field(pair.values, f"depth of {names[j]}", f"depth of {names[i]}", (0, 0)), words))
    yield tag(
        "p",
        "Linear CKA of the images' mean tokens, 0 (empty) to 1 (full): whether two depths arrange the images in "
        "the same way, whatever the axes. A full block within a model: layers that change little. Between "
        "models: depths that do the same work.",
    )
    yield side_by_side(*plots)
