"""`compare.html`: which model is ahead with how many images, what it cost, and which bias goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vitreous.report.analysis_plots import Line, colour_key, lines, side_by_side
from vitreous.report.bias import bias_section
from vitreous.report.compared import Comparison, ComparisonRow, share_text
from vitreous.report.html import Html, document, facts, table, tag
from vitreous.report.numbers import duration, joined, operations, parameters
from vitreous.report.plots import shortened

UNFINISHED = ": it was stopped, and these are the cells that it has so far; repeat the command to go on."

XValue = Callable[[ComparisonRow], float | None]
"""Where a row stands on the x axis."""


def comparison_page(comparison: Comparison) -> str:
    """The whole page as text."""
    names = joined([model.name for model in comparison.models])
    lede = tag("p", _lede(comparison), class_="lede")
    unfinished = () if comparison.finished else (tag("p", tag("strong", "Unfinished"), UNFINISHED),)
    body = [
        tag("header", tag("p", "Comparison", class_="kind"), tag("h1", names), lede, *unfinished),
        _section("Who is ahead", _ahead(comparison)),
        _section("Accuracy against images and cost", _plots(comparison)),
        *([bias_section(list(comparison.biases.items()))] if comparison.biases else []),
        _section("What was equal", _equal(comparison)),
        _section("Every cell", [_scrolled(_cells(comparison))]),
    ]
    if comparison.remarks:
        body.append(_section("Remarks", [tag("ul", *(tag("li", remark) for remark in comparison.remarks))]))
    return document(f"{names}: vitreous", body)


def _section(title: str, content: Iterable[Html]) -> Html:
    return tag("section", tag("h2", title), *content)


def _lede(c: Comparison) -> str:
    measured = "test" if c.split == "test" else "validation" if c.split == "val" else "all"
    counts = ", ".join(f"{count:,} {split}" for split, count in c.splits.items())
    said = f"{c.data}: {counts} images of {c.classes:,} classes. Accuracy is measured on the {measured} images."
    if c.cell_seconds is None:
        return said
    seconds = [cell.spent.seconds for cell in c.cells if cell.spent is not None and cell.seed is not None]
    took = f"; they took {min(seconds):.3g} to {max(seconds):.3g} s" if seconds else ""
    if c.cell_flops is None:
        return f"{said} Every training was given {c.cell_seconds:g} s, validation included{took}."
    return f"{said} Every training was given {operations(c.cell_flops)}{took}."


def _ahead(c: Comparison) -> Iterable[Html]:
    for fraction, verdict in c.verdicts.items():
        what = "" if fraction is None else f"With {share_text(fraction)} of the training images: "
        yield tag("p", what, tag("strong", str(verdict)), ".")
    yield tag(
        "p",
        "Accuracy is the mean over seeds ± the standard deviation over them. The interval and the difference (in "
        "percentage points, ± what it may be off by) hold with 95 %, by seeds and by the number of images measured. "
        "A model is said to be ahead only where the difference is larger than that. "
        f"{_pairs_text(c.pairs)}",
        class_="quiet",
    )
    if c.closing:
        yield tag("h3", "With more images")
        yield tag("ul", *(tag("li", f"{one}.") for one in c.closing))
    first = c.models[0].name
    head = ["model", "share", "images", "accuracy, %", "95 % interval", f"ahead of {shortened(first, 20)}"]
    rows = [_row(row) for row in c.rows]
    yield _scrolled(table([*head, "training work", "core-hours", "time"], rows, numbers=8))


def _pairs_text(pairs: int) -> str:
    if pairs < 2:
        return f"{pairs} pair was compared." if pairs else ""
    return (
        f"{pairs} pairs were compared, each by itself: of so many that are equal in truth, {0.05 * pairs:.2g} would be "
        "told apart by chance."
    )


def _row(row: ComparisonRow) -> list[str]:
    found = row.accuracies
    spread = "" if found.deviation is None else f" ± {100 * found.deviation:.1f}"
    low, high = found.interval
    return [
        _named(row.model),
        share_text(row.fraction),
        "" if row.images is None else f"{row.images:,}",
        f"{100 * found.mean:.1f}{spread}",
        f"{100 * low:.1f} to {100 * high:.1f}",
        _difference(row),
        "" if row.flops is None else operations(row.flops),
        "" if row.core_hours is None else f"{row.core_hours:.3g}",
        "" if row.seconds is None else duration(row.seconds),
    ]


def _difference(row: ComparisonRow) -> str:
    if row.ahead is None:
        return ""
    margin = "" if row.ahead.margin is None else f" ± {100 * row.ahead.margin:.1f}"
    value = f"{100 * row.ahead.value:+.1f}".replace("-", "−")
    return f"{value}{margin}" if row.ahead.significant else f"{value}{margin}, not told apart"


def _plots(c: Comparison) -> Iterable[Html]:
    forward = {model.name: float(model.forward_flops) for model in c.models}
    largest = (None, *c.fractions[-1:])
    wanted: list[tuple[XValue, str, str]] = [
        (
            lambda row: row.images,
            "training images",
            "With few images a built-in bias helps; with many it can be learned (the paper's figures 3 and 4).",
        ),
        (
            lambda row: row.flops or None,
            "floating-point operations of training",
            "What the training computed, forward and backward (the paper's figure 5).",
        ),
        (lambda row: row.core_hours or None, "core-hours of training", "Processor time of the whole training."),
        (
            lambda row: forward[row.model] if row.fraction in largest else None,
            "floating-point operations of one answer",
            "What using the model costs; trained on the most images.",
        ),
    ]
    made = []
    for place, along, words in wanted:
        if series := _series(c, place):
            plot = lines(series, "accuracy", along, share=True, scale="log10")
            made.append((plot, words))
    yield colour_key([model.name for model in c.models])
    yield tag("p", "Dots are single trainings, the band is the 95 % interval of their mean.", class_="quiet")
    yield side_by_side(*made)


def _series(c: Comparison, place: XValue) -> list[Line]:
    """One line per model, over its shares of the images; a finished model is a point where its place is known."""
    found = []
    for number, model in enumerate(c.models):
        rows = [(x, row) for row in c.rows if row.model == model.name and (x := place(row)) is not None]
        rows.sort(key=lambda pair: pair[0])
        if rows:
            accuracies = [row.accuracies for _, row in rows]
            found.append(
                Line(
                    number,
                    [x for x, _ in rows],
                    [one.mean for one in accuracies],
                    dots=[list(one.by_seed.values()) for one in accuracies],
                    band=[one.interval for one in accuracies],
                )
            )
    return found


def _equal(c: Comparison) -> Iterable[Html]:
    yield facts(
        {model.name: _described(model.description, model.parameters, model.forward_flops) for model in c.models}
    )
    if c.biases:
        images = max(bias.images for bias in c.biases.values())
        yield facts({"Bias": f"measured on {images:,} images, on each model's training on the most images, seed 0"})
    if c.settings:
        yield facts(_settings(c))
    if not c.tried:
        return
    yield tag("h3", "Learning rates")
    yield tag(
        "p",
        "Each model had the same number of trials, of the same length, judged by validation images alone; the best "
        "was taken for all its cells.",
        class_="quiet",
    )
    chosen = {model.name: model.learning_rate for model in c.models}
    rows = [
        [
            _named(t.model),
            f"{t.learning_rate:g}",
            "diverged" if t.diverged else f"{100 * t.accuracy:.1f}",
            f"{t.n:,}",
            "taken" * (t.learning_rate == chosen[t.model]),
        ]
        for t in c.tried
    ]
    yield _scrolled(table(["model", "learning rate", "validation, %", "images", ""], rows, numbers=4))


def _described(description: str, count: int, flops: int) -> str:
    return f"{description}; {parameters(count)}, {operations(flops)} for one answer"


def _settings(c: Comparison) -> dict[str, str]:
    optimizer, augment = c.settings["optimizer"], c.settings["augment"]
    found = {
        "Budget": f"{c.budget} for everything, divided equally among all cells",
        "Recipe": f"{c.settings['recipe']}, batches of {c.settings['batch_size']}",
        "Optimizer": f"{optimizer['name']}, weight decay {optimizer['weight_decay']:g}, {optimizer['decay']} decay",
        "Augmentation": ", ".join(f"{name} {_plain(value)}" for name, value in augment.items()),
        "Runtime": ", ".join(f"{name} {value}" for name, value in c.machine.items()),
        "Data": ", ".join(f"{split} {digest}" for split, digest in c.digests.items()),
    }
    if (seen := c.settings.get("val_images")) is not None:
        times = c.settings["evaluations"]
        found["Validation"] = f"{times} times on the same {seen:,} images, whatever the share of the training images"
    if c.cell_flops is not None:
        found["Work"] = (
            f"{operations(c.cell_flops)} for each training: as many as let the cells of all models together fill the "
            "budget, by the speed that was measured first; a slow model takes longer, a fast one less"
        )
    return found


def _plain(value: Any) -> str:
    return " to ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cells(c: Comparison) -> Html:
    head = [
        "model",
        "share",
        "seed",
        "accuracy, %",
        "images measured",
        "validation, %",
        "steps",
        "training work",
        "time",
    ]
    rows = []
    for cell in c.cells:
        spent = cell.spent
        rows.append(
            [
                _named(cell.model),
                share_text(cell.fraction),
                "" if cell.seed is None else str(cell.seed),
                "diverged" if cell.diverged else f"{100 * cell.accuracy:.1f}",
                f"{cell.n:,}",
                "" if cell.validation is None else f"{100 * cell.validation:.1f}",
                f"{cell.settings.get('steps', '')}",
                "" if spent is None else operations(spent.flops),
                "" if spent is None else duration(spent.seconds),
            ]
        )
    return table(head, rows, numbers=8)


def _named(model: str) -> Html:
    """The start of a row, wide enough to be read where the table is wider than the page."""
    return tag("div", model, style="min-width: 9rem")


def _scrolled(content: Html) -> Html:
    return tag("div", content, class_="wide")
