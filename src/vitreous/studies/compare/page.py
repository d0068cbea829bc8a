"""`compare.html`: which model is ahead with how many images, what it cost, and which bias goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from vitreous.report.bias import bias_section
from vitreous.report.html import Html, render
from vitreous.report.numbers import duration, joined, operations, parameters
from vitreous.report.plots import Line, lines
from vitreous.studies.compare.result import Comparison, ComparisonRow, fraction_text

XValue = Callable[[ComparisonRow], float | None]  # where a row stands on the x axis


def comparison_page(c: Comparison) -> str:
    """The whole page as text."""
    rates = {model.name: model.learning_rate for model in c.models}
    return render(
        "comparison.html",
        c=c,
        names=joined([model.name for model in c.models]),
        seconds=[cell.spent.seconds for cell in c.cells if cell.spent is not None and cell.seed is not None],
        verdicts={
            "" if fraction is None else f"With {fraction_text(fraction)} of the training images: ": str(verdict)
            for fraction, verdict in c.verdicts.items()
        },
        rows=[_row(row) for row in c.rows],
        plots=list(_plots(c)),
        bias_section=bias_section(list(c.biases.items())) if c.biases else "",
        bias_images=max((bias.images for bias in c.biases.values()), default=0),
        models={
            one.name: f"{one.description}; {parameters(one.parameters)}, {operations(one.forward_flops)} for one answer"
            for one in c.models
        },
        settings=_settings(c) if c.settings else {},
        trials=[
            (
                trial.model,
                f"{trial.learning_rate:g}",
                "diverged" if trial.diverged else f"{100 * trial.accuracy:.1f}",
                f"{trial.n:,}",
                "taken" * (trial.learning_rate == rates[trial.model]),
            )
            for trial in c.tried
        ],
        cells=[
            (
                cell.model,
                fraction_text(cell.fraction),
                "" if cell.seed is None else str(cell.seed),
                "diverged" if cell.diverged else f"{100 * cell.accuracy:.1f}",
                f"{cell.n:,}",
                "" if cell.validation is None else f"{100 * cell.validation:.1f}",
                f"{cell.settings.get('steps', '')}",
                "" if cell.spent is None else operations(cell.spent.flops),
                "" if cell.spent is None else duration(cell.spent.seconds),
            )
            for cell in c.cells
        ],
    )


def _row(row: ComparisonRow) -> list[str]:
    found, ahead = row.accuracies, row.ahead
    spread = "" if found.deviation is None else f" ± {100 * found.deviation:.1f}"
    low, high = found.interval
    difference = ""
    if ahead is not None:
        margin = "" if ahead.margin is None else f" ± {100 * ahead.margin:.1f}"
        difference = f"{100 * ahead.value:+.1f}".replace("-", "−") + margin
        difference += "" if ahead.significant else ", not significant"
    return [
        row.model,
        fraction_text(row.fraction),
        "" if row.images is None else f"{row.images:,}",
        f"{100 * found.mean:.1f}{spread}",
        f"{100 * low:.1f} to {100 * high:.1f}",
        difference,
        "" if row.flops is None else operations(row.flops),
        "" if row.core_hours is None else f"{row.core_hours:.3g}",
        "" if row.seconds is None else duration(row.seconds),
    ]


def _plots(c: Comparison) -> Iterator[tuple[Html, str]]:
    """Each with how to read it."""
    forward = {model.name: float(model.forward_flops) for model in c.models}
    largest = (None, *c.fractions[-1:])
    axes: list[tuple[XValue, str, str]] = [
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
    for x_value, along, words in axes:
        if series := _series(c, x_value):
            yield lines(series, "accuracy", along, percent=True, scale="log10"), words


def _series(c: Comparison, x_value: XValue) -> list[Line]:
    """One line per model, over its fractions of the images; a finished model is a point where its place is known."""
    found = []
    for number, model in enumerate(c.models):
        rows = [(x, row) for row in c.rows if row.model == model.name and (x := x_value(row)) is not None]
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


def _settings(c: Comparison) -> dict[str, str]:
    def plain(value: Any) -> str:
        return " to ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    optimizer, augment = c.settings["optimizer"], c.settings["augment"]
    found = {
        "Budget": f"{c.budget} for everything, divided equally among all cells",
        "Recipe": f"{c.settings['recipe']}, batches of {c.settings['batch_size']}",
        "Optimizer": f"{optimizer['name']}, weight decay {optimizer['weight_decay']:g}, {optimizer['decay']} decay",
        "Augmentation": ", ".join(f"{name} {plain(value)}" for name, value in augment.items()),
        "Runtime": ", ".join(f"{name} {value}" for name, value in c.machine.items()),
        "Data": ", ".join(f"{split} {digest}" for split, digest in c.digests.items()),
    }
    if (seen := c.settings.get("val_images")) is not None:
        times = c.settings["evaluations"]
        found["Validation"] = f"{times} times on the same {seen:,} images, whatever the fraction of the training images"
    if c.cell_flops is not None:
        found["Work"] = (
            f"{operations(c.cell_flops)} for each training: as many as let the cells of all models together fill the "
            "budget, by the speed that was measured first; a slow model takes longer, a fast one less"
        )
    return found
