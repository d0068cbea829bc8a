"""What a page is made of: everything that is known about a model, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass, field

from PIL import Image

from vitreous.config.train import Training
from vitreous.distributed.meter import Cost
from vitreous.evaluation.classify import ClassificationResult, ClassifiedImage
from vitreous.report.html import Html
from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Example:
    """An image and what the model made of it."""

    answer: ClassifiedImage
    image: Image.Image
    overlay: Image.Image | None
    """What it looked at; None where no method can tell."""


@dataclass(frozen=True)
class TaughtImage:
    """A training image and what a teacher says of its places."""

    name: str
    label: str
    """Its class by the data."""
    image: Image.Image
    labels: list[list[str]]
    """(h, w) the likeliest class of each place."""
    shares: list[list[float]]
    """(h, w) its probability."""


@dataclass(frozen=True)
class SplitScores:
    """How well the model does on one split of some data."""

    name: str
    """test, validation..."""
    result: ClassificationResult
    chose: bool = False
    """The weights were chosen by these images."""
    wrong: tuple[Example, ...] = ()
    right: tuple[Example, ...] = ()
    without: str | None = None
    """Why there are no examples, where they cannot be shown."""
    calibrated: bool = False
    """The temperature was fitted to validation images."""
    of: int | None = None
    """Images in the split, where only a random part of them was measured."""


@dataclass(frozen=True)
class Run:
    """What a run folder says of a training."""

    place: str
    """The run's folder as a person would write it in a command."""
    data: str
    start: str | None
    """The weights that it began with; None from scratch."""
    way: str
    """The recipe, or the method of a training without labels."""
    training: Training
    images: int
    """In the train split."""
    classes: int
    steps: int
    planned: int
    """Steps, before the clock changed them."""
    best_step: int | None
    frozen: tuple[float, float] | None
    """Validation accuracy of a classifier on frozen features, and the seconds it took."""
    spent: Cost
    records: list[dict[str, float]]
    """metrics.jsonl."""
    frozen_images: int | None = None
    """Training images that this classifier was fitted to, where not all were."""
    alarms: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    teacher: str | None = None
    """The model that it learned from beside the labels."""

    @property
    def steps_taken(self) -> str:
        """How long it trained, and where the clock changed that, what was planned at first."""
        t = self.training
        if not self.steps:
            return "none: the time was too short to train further than a classifier on frozen features"
        said = f"{self.steps:,} of {t.batch_size} images, {t.epochs * self.steps / self.planned:.3g} epochs"
        return said if self.steps == self.planned else f"{said} ({self.planned:,} steps were planned)"


@dataclass(frozen=True)
class Look:
    """An image of the weights."""

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
    """What the splits were measured on, where it was not in the training."""
    splits: tuple[SplitScores, ...] = ()
    """The one to look at first comes first."""
    spent: Cost | None = None
    """What the training cost, where that is known."""
    looks: tuple[Look, ...] = ()
    taught: tuple[TaughtImage, ...] = ()
    """Some training images with their token labels, where it learned such."""
    card: str | None = None
    left_out: tuple[str, ...] = field(default=())
    """Images that could not be read, and other remarks."""
