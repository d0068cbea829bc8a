"""The inductive bias of models side by side: a table, curves, and how to read them; and a page of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from vitreous.explain.analysis.bias_numbers import Bias, BiasNumbers, Effect
from vitreous.explain.analysis.bias_summary import BiasRow, summarise_bias, tell_margin
from vitreous.report.analysis_plots import Line, colour_key, joined_names, lines, side_by_side
from vitreous.report.html import Html, document, join, table, tag
from vitreous.report.plots import shortened

NAMED = tuple[str, Bias]
Kept = Literal["same", "likeness"]


def bias_page(numbers: BiasNumbers) -> str:
    """The whole page as text, from what was measured."""
    names = joined_names([name for name, _ in numbers.models])
    data = numbers.data
    lede = f"Measured on {data.images:,} images of {data.source} ({data.split})."
    header = tag("header", tag("p", "Inductive bias", class_="kind"), tag("h1", names), tag("p", lede, class_="lede"))
    body = [header, bias_section(numbers.models)]
    if numbers.remarks:
        remarks = tag("ul", *(tag("li", remark) for remark in numbers.remarks))
        body.append(tag("section", tag("h2", "Remarks"), remarks))
    return document(f"{names}: vitreous", body)


def bias_section(models: Sequence[NAMED]) -> Html:
    """A section of a page: the names of models with what was measured of each, in their order and colours."""
    kept: Kept = "same" if all(bias.low_needed is not None for _, bias in models) else "likeness"
    return tag(
        "section",
        tag("h2", "Which bias?"),
        tag(
            "p",
            "What a model takes for granted shows in what changes its answer. Every number compares its answer to a "
            "changed image with its own answer to the image as it was, right or wrong. So read them beside the "
            "accuracy: a model that always gives one answer keeps it whatever is done.",
        ),
        colour_key([name for name, _ in models]),
        _table(models),
        side_by_side(*_moves(models, kept), *_filters(models, kept), *_reaches(models)),
    )


def _table(models: Sequence[NAMED]) -> Html:
    def described(row: BiasRow) -> Html:
        return join([row.measure, tag("div", row.reading, class_="reading")])

    rows = [
        [described(row), *(shown_value(value, row.share) for value in row.values)]
        for row in summarise_bias([bias for _, bias in models])
    ]
    head = ["", *(shortened(name, 20) for name, _ in models)]
    note = tag("p", tell_margin([bias for _, bias in models]), class_="quiet")
    return tag("div", table(head, rows, numbers=len(models)), note, class_="wide", style="margin-bottom: 1.8rem")


def shown_value(value: float | None, share: bool) -> str:
    """A value of a table's row, for people; a dash where there is none."""
    if value is None:
        return "–"
    if share:
        return f"{100 * value:.1f}\u00a0%"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _moves(models: Sequence[NAMED], kept: Kept) -> Iterable[tuple[Html, str]]:
    if kept == "same":
        yield (
            _curves(models, lambda b: b.shifts.curve, kept, "moved: same prediction", "pixels", doubling=True),
            "The image moves by so many pixels, up, down, left or right; both windows are cut from the enlarged "
            "image, so no border comes in. Flat and high: it ignores place.",
        )
    yield (
        _curves(models, lambda b: b.shifts.curve, "likeness", "moved: likeness of features", "pixels", doubling=True),
        "Cosine similarity of the features before and after the same moves. Peaks at whole patches: the grid of "
        "patches disturbs more than the move.",
    )
    yield (
        _curves(models, lambda b: b.shuffled, kept, f"shuffled: {_words(kept)}", "pieces along a side", doubling=True),
        "The image is cut into so many by so many pieces, and none stays in its place. High on the right: a bag of "
        "small parts. A steep fall: the arrangement matters.",
    )


def _filters(models: Sequence[NAMED], kept: Kept) -> Iterable[tuple[Html, str]]:
    yield (
        _curves(models, lambda b: b.low_pass, kept, f"low frequencies only: {_words(kept)}", "up to, of the highest"),
        "All frequencies above are taken away; at 0 the mean colour is left. An early rise: coarse shapes and colours "
        "are enough.",
    )
    yield (
        _curves(models, lambda b: b.high_pass, kept, f"high frequencies only: {_words(kept)}", "above, of the highest"),
        "All frequencies up to this one are taken away but for the mean colour. A late fall: fine texture is enough.",
    )


def _reaches(models: Sequence[NAMED]) -> Iterable[tuple[Html, str]]:
    fields = [
        Line(number, field.radii, field.mass)
        for number, (_, bias) in enumerate(models)
        if (field := bias.receptive_field) is not None
    ]
    if fields:
        yield (
            lines(fields, "gradient within a radius", "radius, of the longer side", share=True, whole=True),
            "How much of what moves the features of the central place lies within a radius around it. An early rise: "
            "the place sees its surroundings only.",
        )
    depths = {len(bias.attention_distance) for _, bias in models if bias.attention_distance is not None}
    if depths:
        same = len(depths) == 1
        distances = [
            Line(number, [layer / (1 if same else len(far)) for layer in range(1, len(far) + 1)], far)
            for number, (_, bias) in enumerate(models)
            if (far := bias.attention_distance) is not None
        ]
        yield (
            lines(
                distances, "attention distance", "depth" if same else "depth, as a share of all", share=True, whole=True
            ),
            "How far patches look in each layer, mean of the heads, of the longer side.",
        )


def _curves(
    models: Sequence[NAMED],
    curve: Callable[[Bias], Sequence[Effect]],
    kept: Kept,
    title: str,
    along: str,
    *,
    doubling: bool = False,
) -> Html:
    series = []
    for number, (_, bias) in enumerate(models):
        points = [(effect.at, value) for effect in curve(bias) if (value := getattr(effect, kept)) is not None]
        if points:
            series.append(Line(number, *zip(*points, strict=True)))
    return lines(series, title, along, share=kept == "same", whole=True, scale="log2" if doubling else "linear")


def _words(kept: Kept) -> str:
    return "same prediction" if kept == "same" else "likeness of features"
