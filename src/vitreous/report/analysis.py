"""`analysis.html`: what models learned, depth by depth and side by side, with how to read each plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vitreous.report.analysis_plots import COLOURS, Line, field, lines
from vitreous.report.html import Html, document, facts, table, tag
from vitreous.report.numbers import parameters
from vitreous.report.plots import VARIABLES, shortened

Numbers = dict[str, Any]
TWO = "grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr))"
"""Two plots in a row, or one on a phone: three are too small to be compared."""


def analysis_page(numbers: Numbers) -> str:
    """The whole page as text, from what `analysis.json` has."""
    models = numbers["models"]
    sections = [
        ("Side by side", list(_summary(numbers))),
        ("Where it looks", list(_attention(models))),
        ("What tokens hold", list(_tokens(models))),
        ("What pictures' representations hold", list(_pictures(models))),
        ("What it is worth", list(_worth(numbers))),
        ("How alike the depths are", list(_alike(numbers))),
    ]
    body = [
        tag(
            "header",
            tag("p", "Analysis", class_="kind"),
            tag("h1", _title(models)),
            tag("p", _lede(numbers), class_="lede"),
        ),
        *(tag("section", tag("h2", name), *content) for name, content in sections if content),
    ]
    if numbers["remarks"]:
        remarks = tag("ul", *(tag("li", remark) for remark in numbers["remarks"]))
        body.append(tag("section", tag("h2", "Remarks"), remarks))
    return document(f"{_title(models)}: vitreous", body)


def _title(models: Sequence[Numbers]) -> str:
    names = [model["name"] for model in models]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _lede(numbers: Numbers) -> str:
    data = numbers["data"]
    said = f"{data['pictures']:,} pictures of {data['from']} ({data['split']})"
    if data["learned_from"] is None:
        return f"Measured on {said}, without labels."
    return (
        f"Measured on {said}; linear probes learned from {data['learned_from']:,} others, of {data['classes']} classes."
    )


def _key(models: Sequence[Numbers]) -> Html:
    """Which colour is whose."""
    parts = []
    for number, model in enumerate(models):
        colour = COLOURS[number % len(COLOURS)]
        shown = f"var({VARIABLES[colour]})" if colour in VARIABLES else colour
        parts.append(tag("span", tag("span", "●", style=f"color: {shown}"), f"\u00a0{model['name']}\u2003"))
    return tag("p", *parts)


def _summary(numbers: Numbers) -> Iterable[Html]:
    models = numbers["models"]
    yield _key(models)
    yield tag("p", "What has a depth is here the mean over the last third of the layers.", class_="quiet")
    rows = [[row["measure"], *(_value(value, row["share"]) for value in row["values"])] for row in numbers["summary"]]
    made = table(["", *(shortened(model["name"], 20) for model in models)], rows, numbers=len(models))
    yield tag("div", made, style="overflow-x: auto")
    yield tag("h3", "The models")
    yield facts({model["name"]: _shape(model["shape"]) for model in models})


def _value(value: float, share: bool) -> str:
    if share:
        return f"{100 * value:.1f}\u00a0%"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _shape(c: Numbers) -> str:
    size = "×".join(map(str, c["size"]))
    return (
        f"width {c['width']}, depth {c['depth']}, {c['heads']} heads, patches of {c['patch']} pixels, pictures of "
        f"{size}; {parameters(c['parameters'])}"
    )


def _plots(*plots: tuple[Html, str]) -> Html:
    made = (tag("figure", tag("div", plot, class_="plot"), tag("figcaption", words)) for plot, words in plots)
    return tag("div", *made, class_="figures", style=TWO)


def _over_depth(
    models: Sequence[Numbers],
    first: int,
    values: Callable[[Numbers], Sequence[Any]],
    title: str,
    *,
    share: bool = False,
) -> Html:
    """One line a model. Depths are counted where all models have as many, else they are shares of the whole.

    values: a number a depth, or several, whose mean is drawn with them; the first belongs to depth `first`.
    """
    same = len({model["shape"]["depth"] for model in models}) == 1
    series = []
    for number, model in enumerate(models):
        found = values(model)
        whole = 1 if same else model["shape"]["depth"]
        x = [(first + i) / whole for i in range(len(found))]
        if isinstance(found[0], list):
            series.append(Line(number, x, [sum(one) / len(one) for one in found], dots=found))
        else:
            series.append(Line(number, x, found))
    return lines(series, title, "depth" if same else "depth, as a share of all", share=share)


def _attention(models: Sequence[Numbers]) -> Iterable[Html]:
    def distance(model: Numbers) -> list[list[float]]:
        return [[value / max(model["shape"]["size"]) for value in heads] for heads in model["attention_distance"]]

    yield _plots(
        (
            _over_depth(models, 1, distance, "attention distance, of the longer side", share=True),
            "How far a patch looks on average; a dot is a head. High: it gathers from the whole picture, as a shape "
            "needs. Low: from its neighbours, as texture needs.",
        ),
        (
            _over_depth(models, 1, lambda m: m["mutual_information"], "mutual information of queries and keys"),
            "Whether where a patch looks depends on which patch it is. 0: all patches look at the same places, the "
            "attention has collapsed into one map. 1: each has a place of its own.",
        ),
        (
            _over_depth(models, 1, lambda m: m["head_similarity"], "likeness of heads"),
            "Mean cosine similarity of two heads' attention. Near 1: the heads do the same work several times.",
        ),
        (
            _over_depth(models, 1, lambda m: m["query_similarity"], "likeness of places: attention"),
            "Mean cosine similarity of two patches' attention. Near 1 tells of collapse, as mutual information near 0.",
        ),
    )
    yield tag("h3", "Likeness of depths: attention")
    yield _plots(
        *(
            (
                field(model["depth_similarity"], "depth", "depth", (1, 1)),
                f"{model['name']}: cosine similarity of two layers' attention. A full block: layers that look at the "
                "same places.",
            )
            for model in models
        )
    )


def _tokens(models: Sequence[Numbers]) -> Iterable[Html]:
    def last(name: str) -> list[Line]:
        return [Line(i, list(range(1, len(m[name][-1]) + 1)), m[name][-1]) for i, m in enumerate(models)]

    waves = [Line(i, m["frequencies"], m["log_amplitude"][-1]) for i, m in enumerate(models)]
    yield _plots(
        (
            _over_depth(models, 0, lambda m: [d[-1] for d in m["log_amplitude"]], "log amplitude, highest frequency"),
            "How much neighbouring tokens differ, against what all have in common (natural logarithm). Higher: more "
            "detail and texture is kept. Falling: the layers smooth it away.",
        ),
        (
            lines(waves, "log amplitude after the last layer", "frequency, of the highest"),
            "The same for all frequencies along the diagonal of the grid, relative to frequency 0.",
        ),
        (
            _over_depth(models, 0, lambda m: m["token_similarity"], "likeness of places: tokens"),
            "Mean cosine similarity of two patches' tokens. Near 1: a picture's tokens say all the same.",
        ),
        (
            _over_depth(models, 0, lambda m: m["token_rank"], "dimensions in use by tokens"),
            "Effective rank of one picture's tokens. High: tokens are told apart in many ways.",
        ),
        (
            lines(last("token_spectrum"), "singular values of tokens, last layer", "number"),
            "Natural logarithm, relative to the largest, mean over pictures. A steep fall: few directions hold all.",
        ),
    )


def _pictures(models: Sequence[Numbers]) -> Iterable[Html]:
    spectra = [
        Line(i, list(range(1, len(m["representation_spectrum"]) + 1)), m["representation_spectrum"])
        for i, m in enumerate(models)
    ]
    yield _plots(
        (
            _over_depth(models, 0, lambda m: m["picture_rank"], "dimensions in use by pictures"),
            "Effective rank of the pictures' mean tokens. High: pictures are told apart in many ways.",
        ),
        (
            lines(spectra, "singular values of representations", "number"),
            "Of what a classifier reads, natural logarithm, relative to the largest. A cliff: collapsed dimensions.",
        ),
    )


def _worth(numbers: Numbers) -> Iterable[Html]:
    models = numbers["models"]
    known = [(i, model) for i, model in enumerate(models) if "probe" in model]
    if not known:
        return
    same = len({model["shape"]["depth"] for _, model in known}) == 1
    probes, noisy = [], []
    for i, model in known:
        accuracy, depth = model["probe"]["accuracy"], model["shape"]["depth"]
        x = [d if same else d / depth for d in range(len(accuracy))]
        probes.append(Line(i, x, [one["value"] for one in accuracy], band=[tuple(one["interval"]) for one in accuracy]))
        found = model["noise"]
        middle = [sum(band) / 2 for band in found["bands"]]
        lost = [one["value"] - found["clean"]["value"] for one in found["accuracy"]]
        noisy.append(Line(i, middle, lost))
    clean = "; ".join(f"{model['name']} {100 * model['noise']['clean']['value']:.1f} %" for _, model in known)
    yield _plots(
        (
            lines(probes, "linear probe", "depth" if same else "depth, as a share of all", share=True),
            "Accuracy of a linear classifier on the mean of the patch tokens at each depth, with its 95 % interval. "
            "Where it stops rising, later layers do something else than tell these classes apart.",
        ),
        (
            lines(noisy, "accuracy lost to noise", "frequency of the noise, of the highest", share=True),
            f"Noise of one range of frequencies, root mean square {numbers['noise_strength']:g} of the range from "
            f"black to white. A deep fall: the model relies on those frequencies. Without noise: {clean}.",
        ),
    )


def _alike(numbers: Numbers) -> Iterable[Html]:
    names = [model["name"] for model in numbers["models"]]
    plots = []
    for pair in sorted(numbers["cka"], key=lambda pair: pair["models"][0] == pair["models"][1]):
        i, j = pair["models"]
        words = f"{names[i]} with itself." if i == j else f"{names[i]} (up) with {names[j]} (across)."
        plots.append((field(pair["values"], f"depth of {names[j]}", f"depth of {names[i]}", (0, 0)), words))
    yield tag(
        "p",
        "Linear CKA of the pictures' mean tokens, 0 (empty) to 1 (full): whether two depths arrange the pictures in "
        "the same way, whatever the axes. A full block within a model: layers that change little. Between "
        "models: depths that do the same work.",
    )
    yield _plots(*plots)
