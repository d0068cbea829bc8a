"""What the page of a self-training is made of: its rounds, the labels that were taken, and the doubtful images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image

from vitreous.distributed.meter import Cost
from vitreous.evaluation.classify import ClassificationResult
from vitreous.evaluation.intervals import Paired


@dataclass(frozen=True)
class RoundScore:
    """How many of n images were right; the round's own result.json says more."""

    n: int
    accuracy: float
    interval: tuple[float, float]  # Wilson's, 95 %
    loss: float

    @staticmethod
    def of(result: ClassificationResult | None) -> RoundScore | None:
        return None if result is None else RoundScore(result.n, result.top1, result.top1_interval, result.loss)

    @staticmethod
    def from_json(fields: dict[str, Any] | None) -> RoundScore | None:
        return None if fields is None else RoundScore(**{**fields, "interval": tuple(fields["interval"])})


@dataclass(frozen=True)
class RoundLabels:
    """The labels that a round's teacher gave, and those that its student learned from."""

    looked_at: int  # images that were read and labelled
    temperature: float  # by which the teacher's scores were divided, fitted to the validation images
    sure: dict[str, int]  # of each class, labels that were sure enough
    taken: dict[str, int]  # of each class, different images that were taken
    with_copies: dict[str, int]  # the same, each as often as it comes in an epoch
    changed: int | None  # labels that the round before had otherwise; None in the first


@dataclass(frozen=True)
class Round:
    """One round: a teacher (round 0) or a student, and how well it does."""

    number: int
    run: str
    model: str
    parameters: int
    images: int  # that it learned from in an epoch, copies included; 0 of a teacher that was given
    validation: RoundScore | None
    test: RoundScore | None
    labels: RoundLabels | None  # None for the first teacher
    spent: Cost

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Round:
        scores = {split: RoundScore.from_json(fields[split]) for split in ("validation", "test")}
        labels = None if fields["labels"] is None else RoundLabels(**fields["labels"])
        return Round(**{**fields, **scores, "labels": labels, "spent": Cost(**fields["spent"])})


@dataclass(frozen=True)
class LikelyClass:
    """A class that an image may be of, and its probability."""

    label: str
    probability: float


@dataclass(frozen=True)
class DoubtfulImage:
    """An image whose label a person should look at."""

    name: str
    image: Image.Image
    candidates: tuple[LikelyClass, ...]  # the likeliest first
    before: str | None = None  # what that teacher called it, where it is another class


@dataclass(frozen=True)
class SelfTrainingContent:
    """All that the page shows."""

    name: str
    place: str  # the folder as a person would write it in a command
    labelled: str
    unlabelled: str
    classes: tuple[str, ...]
    rounds: tuple[Round, ...]
    best: int  # the number of the round that is kept
    confidence: float
    kind: str  # of labels: soft or hard
    labelled_count: int
    unlabelled_count: int
    duplicates: int  # unlabelled images that are also among the labelled ones, and were left out
    doubtful: tuple[DoubtfulImage, ...]
    doubtful_of: int  # images that the kept model labelled
    changed: tuple[DoubtfulImage, ...]
    changed_of: int  # images that the kept model calls otherwise than an earlier teacher
    compared: int | None  # the round of that teacher; None where the only one is the kept model itself
    against_teacher: Paired | None = None
    """The first teacher and the kept student on the same images; None where the teacher is kept."""
    notes: tuple[str, ...] = ()
