"""The sections of a page that say how well a model does: accuracy, mistakes, calibration, images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from vitreous.evaluation.classify import MIN_CLASS_IMAGES, ClassificationResult
from vitreous.report.content import Example, SplitScores
from vitreous.report.html import Html, image, join, table, tag
from vitreous.report.numbers import interval, percent
from vitreous.report.plots import FULL_MATRIX, confusion, reliability

HARDEST = 12
"""Classes that are listed before the reader asks for all."""
PAIRS = 10
SIDE = 256
"""Pixels of the longer side of an image: sharp at the size shown, and some 15 kB."""


def scores(splits: Sequence[SplitScores]) -> Iterable[Html]:
    """The large numbers at the top: accuracy for each split, then calibration."""
    if not splits:
        return
    yield tag("div", *map(_accuracy, splits), _certainty(splits[0]), class_="scores")


def _accuracy(scored: SplitScores) -> Html:
    found = scored.result
    more = f"; {percent(found.top5)} among its first five" if len(found.labels) > 5 else ""
    return tag(
        "div",
        tag("div", f"Accuracy, {_name(scored)}", class_="name"),
        tag("div", percent(found.top1), class_="value", id=f"accuracy-{scored.name}"),
        *_interval(scored),
        tag("div", f"of {_how_many(scored)} images; {_doubt(scored)}{more}", class_="note"),
        class_="score",
    )


def _how_many(scored: SplitScores) -> str:
    n = scored.result.n
    return f"{n:,}" if scored.of is None else f"a random {n:,} of {scored.of:,}"


def _interval(scored: SplitScores) -> Iterable[Html]:
    """Where the accuracy lies between 0 and 1, and how surely; nothing of images that chose the weights."""
    if not scored.chose:
        low, high = scored.result.top1_interval
        yield tag(
            "div",
            tag("i", style=f"left: {100 * low:.2f}%; width: {100 * (high - low):.2f}%"),
            tag("b", style=f"left: {100 * scored.result.top1:.2f}%"),
            class_="interval",
        )


def _doubt(scored: SplitScores) -> str:
    """How far the accuracy can be trusted."""
    if scored.chose:
        return "they chose the weights, so expect somewhat less of others"
    return f"95 % interval {interval(*scored.result.top1_interval)}"


def _name(scored: SplitScores) -> str:
    return "all images" if scored.name == "all" else scored.name


def _fitted(scored: SplitScores) -> str:
    """What must be added of a calibration that was fitted to the images it is measured on."""
    return "; the temperature was fitted to these images" if scored.chose and scored.calibrated else ""


def _images(scored: SplitScores) -> str:
    """What the split's images are called in a sentence; where the data have no splits, just that."""
    return "images" if scored.name == "all" else f"{scored.name} images"


def _certainty(scored: SplitScores) -> Html:
    return tag(
        "div",
        tag("div", f"Calibration error, {_name(scored)}", class_="name"),
        tag("div", percent(scored.result.ece), class_="value", id="ece"),
        tag("div", f"how far its certainty is from its accuracy, on average{_fitted(scored)}", class_="note"),
        class_="score",
    )


def mistakes(scored: SplitScores) -> list[Html]:
    """The confusion matrix where it can be read, and the pairs that are confused most often."""
    found = scored.result
    labels, pairs = found.labels, found.most_confused(PAIRS)
    wrong = round(found.n * (1 - found.top1))
    if not wrong:
        return [tag("p", f"None: all {found.n:,} {_images(scored)} are right.")]
    rows = [(pair.true, pair.predicted, str(pair.images), percent(pair.share)) for pair in pairs]
    listed = tag(
        "div",
        tag("h3", "Most often confused"),
        table(("it is", "taken for", "images", "of its class"), rows, numbers=2),
    )
    said = tag("p", f"{wrong:,} of {found.n:,} {_images(scored)} are taken for something else.")
    if len(labels) > FULL_MATRIX:
        return [said, listed]
    caption = "Counts. A row is a class, and its colour shows where its images went."
    matrix = tag("figure", confusion(found.confusion_matrix(), labels), tag("figcaption", caption), class_="plot")
    return [said, tag("div", matrix, listed, class_="pair" if len(labels) <= 12 else "stack")]


def classes(scored: SplitScores) -> list[Html]:
    """Every class with its images and how many of them are right, the hardest first."""
    found = scored.result
    lost = _most_taken_for(found)
    seen = [(name, entry) for name, entry in found.per_class.items() if entry["n"]]
    seen.sort(key=lambda item: (item[1]["accuracy"], item[0]))

    def row(name: str, entry: dict[str, Any]) -> tuple[str, str, str]:
        taken = tag("span", f" {lost[name]}", class_="quiet") if name in lost else ""
        bar = tag("span", tag("i", style=f"width: {100 * entry['accuracy']:.1f}%"), class_="bar")
        return join([name, taken]), f"{entry['n']:,}", join([percent(entry["accuracy"]), bar])

    head = ("class", "images", "right")
    rows = [row(name, entry) for name, entry in seen]
    if len(rows) <= 2 * HARDEST:
        return [table(head, rows, numbers=2)]
    every = tag("details", tag("summary", f"All {len(rows):,} classes"), table(head, rows, numbers=2))
    hardest = [row(name, entry) for name, entry in found.hardest(HARDEST)]
    if not hardest:
        return [tag("p", f"No class has {MIN_CLASS_IMAGES} images, too few to say which are hard."), every]
    return [tag("p", f"The {len(hardest)} hardest of {len(rows):,}."), table(head, hardest, numbers=2), every]


def _most_taken_for(result: ClassificationResult) -> dict[str, str]:
    """Of each class with mistakes, what it is most often taken for."""
    labels = result.labels
    pairs = [(count, true, predicted) for true, predicted, count in result.confusion if true != predicted]
    pairs.sort(key=lambda pair: (pair[0], -pair[2]))  # of equal counts the first class wins: it comes last
    return {labels[true]: f"{count} taken for {labels[predicted]}" for count, true, predicted in pairs}


def calibration(scored: SplitScores) -> list[Html]:
    """The reliability diagram, and in words whether it is too sure."""
    bins, n = scored.result.bins, scored.result.n
    sure = sum(entry.images * (entry.confidence or 0.0) for entry in bins) / n
    gap = sure - scored.result.top1
    judged = (
        "about as sure as it should be" if abs(gap) < 0.01 else "too sure" if gap > 0 else "less sure than it could be"
    )
    diagram = reliability(
        [entry.images for entry in bins],
        [entry.confidence for entry in bins],
        [entry.accuracy for entry in bins],
    )
    said = tag(
        "div",
        tag(
            "p",
            f"On average it was {percent(sure)} sure and {percent(scored.result.top1)} right: {judged}. "
            f"Expected calibration error: {percent(scored.result.ece)}{_fitted(scored)}.",
        ),
        tag(
            "p",
            f"Its {n:,} answers on the {_images(scored)} are sorted by how sure it was. On the dashed line it would "
            "be right as often as it says; below, it promises too much. Below that, how many answers there are.",
            class_="quiet",
        ),
    )
    return [tag("div", tag("figure", diagram, class_="plot"), said, class_="pair")]


def examples(scored: SplitScores) -> list[Html]:
    """The images it was surest of, wrongly and rightly, each with what it looked at."""
    if scored.without is not None:
        return [tag("p", scored.without)]
    explained = any(example.overlay is not None for example in (*scored.wrong, *scored.right))
    glow = " Beside each, the places that spoke for its answer glow." if explained else ""
    said = f"From the {_images(scored)}.{glow}"
    made = [tag("p", said, class_="quiet")]
    for title, shown in (("Surest and wrong", scored.wrong), ("Surest and right", scored.right)):
        if shown:
            made += [tag("h3", title), tag("div", *map(_example, shown), class_="examples")]
    return made


def _example(example: Example) -> Html:
    answer = example.answer
    said = f"{answer.predicted}, {percent(answer.confidence)} sure"
    truth = f"It is {answer.true}." if answer.true != answer.predicted else ""
    name = PurePath(answer.image).name
    images = [image(example.image, name, SIDE)]
    if example.overlay is not None:
        images.append(image(example.overlay, "what spoke for its answer", SIDE))
    return tag(
        "figure",
        tag("div", *images, class_="two"),
        tag(
            "figcaption",
            tag("span", said, class_="said"),
            tag("span", truth, class_="truth"),
            tag("span", name, class_="file", title=answer.image),
        ),
    )
