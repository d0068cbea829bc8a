"""The page of an evaluation under corruptions: what was done to one image, and what that did to the answers."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from PIL import Image

from vitreous.data.corrupt import CORRUPTIONS
from vitreous.evaluation.classify import METRICS
from vitreous.evaluation.corruptions import CorruptionResult
from vitreous.report.html import render
from vitreous.report.plots import Line, lines

GROUPS = ("noise", "blur", "weather", "digital")


@dataclass(frozen=True)
class CorruptionExample:
    """One image in every corruption."""

    name: str
    clean: Image.Image
    corrupted: dict[str, list[Image.Image]]  # by kind, of every strength


@dataclass(frozen=True)
class CorruptionContent:
    """What the page is about."""

    model: str
    data: str  # which images of which data, in words
    size: tuple[int, int]  # height and width of what the model sees
    result: CorruptionResult
    example: CorruptionExample
    remarks: tuple[str, ...] = ()


def corruptions_page(content: CorruptionContent) -> str:
    result = content.result
    groups = [group for group in GROUPS if any(CORRUPTIONS[kind].group == group for kind in result.kinds)]

    def by_strength(metric: str) -> list[Line]:
        """A line for each group: the mean of its kinds."""
        return [
            Line(
                number,
                [0, *result.strengths],
                [
                    result.clean.metrics[metric],
                    *(
                        fmean(
                            score.metrics[metric]
                            for score in result.scores
                            if score.strength == strength and CORRUPTIONS[score.kind or ""].group == group
                        )
                        for strength in result.strengths
                    ),
                ],
            )
            for number, group in enumerate(groups)
        ]

    shown = {name: metric for name, metric in METRICS.items() if metric.by_corruption}

    return render(
        "corruptions.html",
        content=content,
        groups=groups,
        corruptions=CORRUPTIONS,
        metrics=shown,
        plots=[
            (
                lines(
                    by_strength(name), metric.title, "strength", percent="%" in metric.form, unit_range=name == "top1"
                ),
                metric.page_note or "Mean of the group's kinds; 0 is as it is.",
            )
            for name, metric in shown.items()
        ],
    )
