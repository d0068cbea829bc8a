"""What a page is made of: everything that is known about a model, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from vitreous.report.html import Html
from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Example:
    """A picture and what the model made of it."""

    answer: dict[str, Any]
    """picture, true, predicted, confidence: `vitreous.evaluate.classify.Answer`."""
    picture: Image.Image
    overlay: Image.Image | None
    """What it looked at; None where no method can tell."""


@dataclass(frozen=True)
class Part:
    """How well the model does on one part of some data."""

    name: str
    """test, validation..."""
    figures: dict[str, Any]
    """`vitreous.evaluate.classify.ClassificationResult` as JSON."""
    wrong: tuple[Example, ...] = ()
    right: tuple[Example, ...] = ()
    without: str | None = None
    """Why there are no examples, where they cannot be shown."""


@dataclass(frozen=True)
class Run:
    """What a run folder says of a training."""

    config: dict[str, Any]
    result: dict[str, Any]
    records: list[dict[str, Any]]
    """metrics.jsonl."""

    @property
    def steps_taken(self) -> str:
        """How long it trained, and where the clock changed that what was planned at first."""
        training, steps, planned = self.config["training"], self.result["steps"], self.config["steps"]
        said = f"{steps:,} of {training['batch_size']} pictures, {training['epochs'] * steps / planned:.3g} epochs"
        return f"{said} ({planned:,} steps were planned)" if self.config.get("bends") else said


@dataclass(frozen=True)
class Look:
    """A picture of the weights."""

    title: str
    figure: Html
    caption: str


@dataclass(frozen=True)
class Content:
    """All of it."""

    name: str
    place: str
    """The bundle's or the run's folder as a person would write it in a command."""
    bundle: Bundle
    run: Run | None = None
    data: str | None = None
    """What the parts were measured on, where it was not in the training."""
    parts: tuple[Part, ...] = ()
    """The one to look at first."""
    looks: tuple[Look, ...] = ()
    card: str | None = None
    left_out: tuple[str, ...] = field(default=())
    """Pictures that could not be read, and other remarks."""
