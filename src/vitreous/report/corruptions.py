"""The page of an evaluation under corruptions: what was done to one image, and what that did to the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from PIL import Image

from vitreous.data.corrupt import CORRUPTIONS
from vitreous.evaluation.corruptions import CorruptionResult
from vitreous.report.analysis_plots import Line, colour_key, lines, side_by_side
from vitreous.report.html import Html, document, facts, image, table, tag

GROUPS = ("noise", "blur", "weather", "digital")
SHOWN = 96
"""Pixels of an example's side."""


@dataclass(frozen=True)
class CorruptionExample:
    """One image in every corruption."""

    name: str
    clean: Image.Image
    corrupted: dict[str, list[Image.Image]]
    """By kind, of every strength."""


@dataclass(frozen=True)
class CorruptionContent:
    """What the page is about."""

    model: str
    data: str
    """Which images of which data, in words."""
    size: tuple[int, int]
    """Height and width of what the model sees."""
    result: CorruptionResult
    example: CorruptionExample
    remarks: tuple[str, ...] = ()


def corruptions_page(content: CorruptionContent) -> str:
    """The whole page as text, which needs nothing but itself."""
    title = tag("p", "Corruptions", class_="kind"), tag("h1", content.model), tag("p", content.data, class_="lede")
    body = [tag("header", *title), _figures(content), _plots(content.result), _tables(content.result)]
    body += [_example(content), _differences(content)]
    if content.remarks:
        body.append(tag("section", tag("h2", "Remarks"), tag("ul", *(tag("li", one) for one in content.remarks))))
    return document(f"{content.model} under corruptions: vitreous", body)


def _figures(content: CorruptionContent) -> Html:
    result = content.result
    rows = {
        "accuracy, as they are": _with_interval(result.clean.accuracy, result.clean.interval),
        "accuracy, mean of all corruptions": _percent(1 - result.error.value),
        "mean corruption error": _with_interval(result.error.value, result.error.interval),
        "the same less the error as they are": _with_interval(
            result.relative_error.value, result.relative_error.interval
        ),
        "calibration error": f"{_percent(result.clean.ece)} as they are, "
        f"{_percent(fmean(score.ece for score in result.scores))} on average over corruptions",
    }
    return tag("section", facts(rows))


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{_percent(value)} (95 % interval {_percent(interval[0])} to {_percent(interval[1])})"


def _plots(result: CorruptionResult) -> Html:
    groups = [group for group in GROUPS if any(CORRUPTIONS[kind].group == group for kind in result.kinds)]

    def line(number: int, group: str, measure: str, clean: float) -> Line:
        values = [
            fmean(
                getattr(score, measure)
                for score in result.scores
                if score.strength == strength and CORRUPTIONS[score.kind].group == group
            )
            for strength in result.strengths
        ]
        return Line(number, [0, *result.strengths], [clean, *values])

    clean = result.clean
    right = [line(number, group, "accuracy", clean.accuracy) for number, group in enumerate(groups)]
    gap = [line(number, group, "ece", clean.ece) for number, group in enumerate(groups)]
    return tag(
        "section",
        tag("h2", "By strength"),
        colour_key(groups),
        side_by_side(
            (lines(right, "accuracy", "strength", share=True, whole=True), "Mean of the group's kinds; 0 is as it is."),
            (lines(gap, "calibration error", "strength", share=True), "How far confidence is from accuracy (ECE)."),
        ),
    )


def _tables(result: CorruptionResult) -> Html:
    def rows(measure: str) -> list[Sequence[str]]:
        return [
            [
                kind,
                *(_percent(getattr(score, measure)) for score in result.of(kind)),
                _percent(getattr(result, measure)(kind)),
            ]
            for kind in result.kinds
        ]

    head = ["", *(f"strength {k}" for k in result.strengths), "mean"]
    numbers = len(head) - 1
    return tag(
        "section",
        tag("h2", "Accuracy"),
        tag("div", table(head, rows("accuracy"), numbers=numbers), class_="wide"),
        tag("h2", "Calibration error"),
        tag("div", table(head, rows("ece"), numbers=numbers), class_="wide"),
    )


def _example(content: CorruptionContent) -> Html:
    example, strengths = content.example, content.result.strengths
    side = f"width: {SHOWN}px; height: auto"

    def cell(shown: Image.Image, alt: str) -> Html:
        return tag("td", tag("span", image(shown, alt, 2 * SHOWN), style=f"display: inline-block; {side}"))

    head = tag("tr", tag("th", ""), *(tag("th", f"strength {k}") for k in strengths))
    body = [
        tag("tr", tag("th", kind), *(cell(one, f"{kind}, {k}") for one, k in zip(made, strengths, strict=True)))
        for kind, made in example.corrupted.items()
    ]
    return tag(
        "section",
        tag("h2", "What was done"),
        tag("p", f"To the model's view of {example.name}, {content.size[0]} x {content.size[1]} pixels:"),
        tag("p", image(example.clean, "as it is", 2 * SHOWN)),
        tag("div", tag("table", tag("thead", head), tag("tbody", *body), class_="plain"), class_="wide"),
    )


def _differences(content: CorruptionContent) -> Html:
    rows = [(kind, CORRUPTIONS[kind].differs) for kind in content.result.kinds]
    return tag(
        "section",
        tag("h2", "What differs from ImageNet-C"),
        tag(
            "p",
            "The kinds and constants are those of ImageNet-C (Hendrycks and Dietterich 2019) but for what the table "
            "says. Here they act on the view that the model sees, after resizing and cropping, and the result is not "
            "stored as JPEG. ImageNet-C's lengths are in pixels of 224 x 224, and scaled to the view's short side. "
            "The mean error is not divided by AlexNet's, which is known on ImageNet alone. So do not set these figures "
            "beside published ones of ImageNet-C.",
        ),
        table(["kind", "what differs"], rows),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"
