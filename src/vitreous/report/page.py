"""`report.html`: what was trained on what, how well it does, what it looks at, and how to use it, in one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from vitreous.config.model import with_article
from vitreous.config.train import Training
from vitreous.distributed.meter import Cost
from vitreous.evaluation.classify import METRICS, MIN_CLASS_IMAGES, ClassificationResult, ClassifiedImage
from vitreous.model.family import count_flops, count_parameters
from vitreous.report.html import Html, render
from vitreous.report.plots import FULL_MATRIX, Series, confusion, curves, figure_style, reliability, to_svg
from vitreous.weights.bundle import Bundle
from vitreous.weights.seen_images import Overlap

DRAWN = frozenset({"step", "loss", "accuracy", "standard_error", "learning_rate", "norm"})
"""Keys of records that have a plot of their own, or none."""
HARDEST = 12  # classes that are listed before the reader asks for all
COLOURS = ("#e8590c", "#1971c2", "#2f9e44", "#c2255c", "#f2c200", "#7048e8", "#0c8599", "#8a5a2b", "#74b816", "#e599f7")
OTHER = "#868e96"
"""Of classes beyond the most frequent ones."""
FAINTEST, STRONGEST = 40, 215
"""Of 255: how much of the image a label hides that has no probability, and one that is certain."""
SIDE = 224  # pixels of the longer side of an image under its labels


@dataclass(frozen=True)
class Example:
    """An image and what the model made of it."""

    prediction: ClassifiedImage
    image: Image.Image
    overlay: Image.Image | None  # what it looked at; None where no method can tell


@dataclass(frozen=True)
class TokenLabelImage:
    """A training image and what a teacher says of its places."""

    name: str
    label: str  # its class by the data
    image: Image.Image
    labels: list[list[str]]  # (h, w) the likeliest class of each place
    probabilities: list[list[float]]  # (h, w) its probability


@dataclass(frozen=True)
class SplitScores:
    """How well the model does on one split of some data."""

    name: str  # test, validation
    result: ClassificationResult
    chose: bool = False  # the model was selected or trained on some of these images
    wrong: tuple[Example, ...] = ()
    right: tuple[Example, ...] = ()
    without: str | None = None  # why there are no examples, where they cannot be shown
    calibrated: bool = False  # the temperature was fitted to validation images
    of: int | None = None  # images in the split, where only a random part of them was measured
    seen: Overlap | None = None  # where data were given: which of them the model was trained or selected on


@dataclass(frozen=True)
class Run:
    """What a run folder says of a training."""

    place: str  # the run's folder as a person would write it in a command
    data: str
    start: str | None  # the weights that it began with; None from scratch
    method: str  # the recipe, or the method of a training without labels
    training: Training
    images: int  # in the train split
    classes: int
    steps: int
    planned: int  # steps, before the clock changed them
    best_step: int | None
    frozen: tuple[float, float] | None
    """Validation accuracy of a classifier on frozen features, and the seconds it took."""
    spent: Cost
    records: list[dict[str, float]]  # metrics.jsonl
    frozen_images: int | None = None  # training images that this classifier was fitted to, where not all were
    alarms: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    teacher: str | None = None  # the model that it learned from beside the labels


@dataclass(frozen=True)
class Content:
    """All of it."""

    name: str
    place: str  # the bundle's or the run's folder as a person would write it in a command
    bundle: Bundle
    run: Run | None = None
    data: str | None = None  # what the splits were measured on, where it was not in the training
    splits: tuple[SplitScores, ...] = ()  # the one to look at first comes first
    spent: Cost | None = None  # what the training cost, where that is known
    weight_figures: Mapping[str, Html] = field(default_factory=dict)  # filters, positions, distance
    token_labels: tuple[TokenLabelImage, ...] = ()  # some training images, where it learned from such
    card: str | None = None
    left_out: tuple[str, ...] = ()  # images that could not be read, and other remarks
    advice: str | None = None  # what to do about a model that may be guessing


def page(content: Content) -> str:
    run, config = content.run, content.bundle.model.config
    return render(
        "page.html",
        content=content,
        run=run,
        config=config,
        model=with_article(config.title()),
        parameters=count_parameters(config),
        flops=count_flops(config),
        facts=config.architecture(),
        trained_on=content.bundle.info.get("request", {}).get("data"),
        curves=[] if run is None else training_curves(run.records),
        label_maps=label_maps(content.token_labels),
        main=content.splits[0] if content.splits else None,
        **(_measured(content.splits[0].result) if content.splits else {}),
    )


def _measured(found: ClassificationResult) -> dict[str, Any]:
    """What the template shows of a split beside its result."""
    rows = sorted(_class_rows(found), key=lambda row: (row.accuracy, row.name))
    return {
        "metrics": {
            name: (metric, found.metrics[name])
            for name, metric in METRICS.items()
            if metric.page_note is not None and name in found.metrics  # a result that was kept may not have it
        },
        "matrix": confusion(found.confusion_matrix(), found.labels) if len(found.labels) <= FULL_MATRIX else None,
        "rows": rows,
        "hardest": [row for row in rows if row.n >= MIN_CLASS_IMAGES][:HARDEST],
        "few_images": MIN_CLASS_IMAGES,
        "reliability": reliability(found.bins),
        "confidence": sum(entry.images * (entry.confidence or 0.0) for entry in found.bins) / found.n,
    }


class ClassRow(NamedTuple):
    """How many images of a class are right, and what the others are most often taken for."""

    name: str
    n: int
    accuracy: float
    mistaken: int
    taken_for: str


def _class_rows(found: ClassificationResult) -> Iterator[ClassRow]:
    pairs = [(count, true, predicted) for true, predicted, count in found.confusion if true != predicted]
    pairs.sort(key=lambda pair: (pair[0], -pair[2]))  # of equal counts the first class wins: it comes last
    mistakes = {found.labels[true]: (count, found.labels[predicted]) for count, true, predicted in pairs}
    for name, entry in found.per_class.items():
        if entry["n"]:
            yield ClassRow(name, entry["n"], entry["accuracy"], *mistakes.get(name, (0, "")))


def training_curves(records: list[dict[str, float]]) -> list[Html]:
    """Loss, accuracy, learning rate, and whatever else the objective recorded, over the steps."""

    def series(**keys: str) -> dict[str, Series]:
        made: dict[str, Series] = {}
        for name, key in keys.items():
            found = [(record["step"], record[key]) for record in records if record.get(key) is not None]
            if found:
                made[name] = ([step for step, _ in found], [value for _, value in found])
        return made

    recorded = dict.fromkeys(key.removeprefix("val_") for record in records for key in record)
    others = [key for key in recorded if key not in DRAWN]
    return [
        curves(found, title, percent=title == "Accuracy")
        for title, found in (
            ("Loss", series(training="loss", validation="val_loss")),
            ("Accuracy", series(training="accuracy", validation="val_accuracy")),
            *((key.replace("_", " ").capitalize(), series(training=key, validation=f"val_{key}")) for key in others),
            ("Learning rate", series(rate="learning_rate")),
        )
        if found
    ]


def weight_figures(figures: Mapping[str, Figure]) -> dict[str, Html]:
    """The figures of the weights by name, as a page shows them."""
    with figure_style():
        return {name: to_svg(figure) for name, figure in figures.items()}


class LabelMap(NamedTuple):
    """A training image, and its labels to be laid over it."""

    name: str
    label: str
    image: Image.Image
    veil: Image.Image  # (h, w) RGBA: a colour for each place


class LabelMaps(NamedTuple):
    """Images with their token labels, and which colour is which class."""

    images: list[LabelMap]
    legend: list[tuple[str, str, float]]  # the class, its colour, its fraction of all places


def label_maps(examples: Sequence[TokenLabelImage]) -> LabelMaps | None:
    if not examples:
        return None
    counts = Counter(name for one in examples for row in one.labels for name in row).most_common()
    colours = {name: COLOURS[i] if i < len(COLOURS) else OTHER for i, (name, _) in enumerate(counts)}
    images = []
    for one in examples:
        small = one.image.convert("RGB")
        small.thumbnail((SIDE, SIDE))
        pixels = [[tuple(bytes.fromhex(colours[name][1:])) for name in row] for row in one.labels]
        strength = FAINTEST + (STRONGEST - FAINTEST) * np.clip(np.array(one.probabilities), 0, 1)
        veil = np.dstack([np.array(pixels), np.rint(strength)]).astype(np.uint8)
        images.append(LabelMap(one.name, one.label, small, Image.fromarray(veil, "RGBA")))
    total, shown = sum(count for _, count in counts), len(COLOURS)
    legend = [(name, colours[name], count / total) for name, count in counts[:shown]]
    if others := counts[shown:]:
        legend.append((f"{len(others)} others", OTHER, sum(count for _, count in others) / total))
    return LabelMaps(images, legend)
