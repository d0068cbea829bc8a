"""What a person can ask of a self-training, and the requests of its rounds. This file needs no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from vitreous.arguments import Count, Range
from vitreous.config.overrides import as_texts
from vitreous.errors import UserError
from vitreous.training.request import FitRequest, LabelledRequest, StudentRequest

SPLIT_FIELDS = ("validation", "split_seed", "share")
"""Fields of a training that say which images are learned from and which are set aside."""


@dataclass(frozen=True)
class SelfTrainRequest(LabelledRequest):
    """A teacher, and rounds of students."""

    labelled: str | Path
    """LABELLED: A folder with one subfolder per class, a .csv, .jsonl or .npz, CIFAR or MNIST files."""
    unlabelled: str | Path
    """UNLABELLED: A folder of images, sorted or not, or any other data; labels are not looked at, and copies of
    labelled images are left out."""
    _: KW_ONLY
    rounds: Annotated[int, Range(1, 100)] = 3
    """COUNT: How many students, each with the one before as its teacher."""
    teacher: str | Path | None = None
    """MODEL: Begin with this model, which knows the classes, instead of training a teacher."""
    student: str | None = None
    """SIZE/PATCH: Model of the students, such as S/16; should be as large as the teacher or larger. Default: that of
    the teacher, or what suits the images."""
    confidence: Annotated[float, Range(0, 1)] = 0.3
    """PROBABILITY: The least probability of a label that is learned from."""
    per_class: Count | None = None
    """COUNT: How many images of each class to learn from, the most confident first; rare classes come in copies.
    Default: all that are confident enough, divided by the classes."""
    labels: Literal["soft", "hard"] = "soft"
    """soft: learn the teacher's probabilities; hard: learn its likeliest class."""

    def check(self) -> None:
        super().check()
        if self.student is not None:
            FitRequest(self.labelled, model=self.student, image_size=self.image_size).check()
        if self.weights is not None and self.student is not None:
            raise UserError("student and weights: the weights say which model it is; give one of the two.")
        if self.teacher is not None and self.model is not None:
            raise UserError(
                "model and teacher: the teacher is there already; give student for the model of the students."
            )

    def first_round(self, budget: str | None) -> FitRequest:
        """The training of the first teacher within this budget; its images are split already."""
        overrides = {name: value for name, value in self.overrides.items() if name not in SPLIT_FIELDS}
        shared = {one.name: getattr(self, one.name) for one in fields(LabelledRequest)}
        return FitRequest(self.labelled, **{**shared, "budget": budget, "overrides": as_texts(overrides)})

    def splitting(self) -> FitRequest:
        """How the labelled images are split for all rounds: as for the first teacher's, with all overrides."""
        return replace(self.first_round(self.budget), overrides=as_texts(self.overrides))

    def student_round(self, number: int, budget: str | None) -> StudentRequest:
        """The request of a student, with a seed of its own."""
        from vitreous.data.rng import derived_seed

        first = self.first_round(budget)
        values: dict[str, Any] = {one.name: getattr(first, one.name) for one in fields(FitRequest)}
        values |= {"model": self.student or self.model, "seed": derived_seed(self.seed, number)}
        return StudentRequest(**values, unlabelled=str(self.unlabelled), labels=self.labels, round=number)
