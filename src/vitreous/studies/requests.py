"""What a person can ask of a comparison, a transfer or a self-training. This file needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from vitreous.arguments import Budget, Count, Range, SideLength
from vitreous.config.overrides import override_texts
from vitreous.errors import UserError
from vitreous.training.request import FitRequest, LabelledRequest, StudentRequest

Equal = Literal["time", "flops"]  # what the trainings of all models of a comparison have the same of
Protocol = Literal["vtab-1k", "full", "linear", "knn", "fewshot-5"]  # how a model is transferred to a task
COMPARISON_FIELDS = ("optimizer.learning_rate", "share", "split_seed")  # fields that a comparison sets itself
CONFIDENCE_ABOVE_CHANCE = 0.3  # of what there is above chance; Noisy Student has 0.3 with 1,000 classes
SPLIT_FIELDS = ("validation", "split_seed", "share")  # fields of a training that say how images are split


@dataclass(frozen=True)
class CompareRequest:
    """Models to train, or to measure as they are, on the same data."""

    data: str | Path
    """DATA: A folder with one subfolder per class, {formats}, shards, data:NAME, or
    the word builtin."""
    _: KW_ONLY
    models: Sequence[str | Path]
    """NAME,NAME,...: Models to train, such as Ti/16,R+Ti/16,bit-r50x1,efficientnet-b0, with fields after colons where
    wanted: P/4@32:attention=neighbourhood:window=3. Paths of runs, bundles or foreign weights are measured as they
    are."""
    budget: Budget | None = None
    """TIME: How long everything may take, such as 10m or 2h; each training gets the same share of it."""
    fractions: Sequence[Annotated[float, Range(gt=0, le=1)]] = (1.0,)
    """FRACTION,FRACTION,...: Fractions of the training images to train with, such as 0.01,0.1,1; smaller ones are part
    of larger."""
    repeats: Count = 3
    """COUNT: How many trainings of each model with each fraction."""
    equal: Equal = "time"
    """What each training has the same of: time, or floating-point operations."""
    image_size: SideLength | None = None
    """PIXELS: Side of every model's input in pixels, where its name does not say it."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """NAME=VALUE: Set one field of every training, such as batch_size=128; may be repeated."""

    def check(self) -> None:
        if not self.fractions:
            raise UserError("fractions: none given; give some, such as 0.1 and 1.")
        for fraction in self.fractions:
            if list(self.fractions).count(fraction) > 1:
                raise UserError(f"fractions: {fraction:g} is given twice; give each once.")
        if owned := [name for name in COMPARISON_FIELDS if name in override_texts(self.overrides)]:
            raise UserError(f"{owned[0]}: a comparison chooses it itself, for all models alike; leave it out.")


@dataclass(frozen=True)
class TransferRequest:
    """A model, and the tasks that it is transferred to."""

    model: str | Path
    """MODEL: A bundle, a run folder, a published name such as s16, or anything that `vitreous import` reads."""
    _: KW_ONLY
    tasks: Sequence[str | Path] = ("all",)
    """natural|specialized|structured|all|NAME,...: VTAB's groups, names that `vitreous data list` shows, or paths of
    data with labels; pets=PATH says that the data at PATH are Pets. Several with commas between them."""
    protocols: Sequence[Protocol] = ("vtab-1k",)
    """vtab-1k|full|linear|knn|fewshot-5,...: vtab-1k: fine-tune on 1,000 images. full: on all. linear, knn, fewshot-5:
    on frozen features. Several with commas between them."""
    budget: Budget | None = None
    """TIME: How long everything may take, such as 15m; it is divided fairly, and what does not fit is measured on a
    random part of the images. Default: the paper's settings, which take an accelerator."""
    image_size: SideLength | None = None
    """PIXELS: Side of the model's input in pixels. Default: the model's own; 384 for vtab-1k and full without a
    budget."""
    preprocess: str | None = None
    """TEXT: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic"."""


@dataclass(frozen=True)
class SelfTrainRequest(LabelledRequest):
    """A teacher, and rounds of students."""

    labelled: str | Path
    """LABELLED: A folder with one subfolder per class, {formats}."""
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
    confidence: Annotated[float, Range(0, 1)] | None = None
    """PROBABILITY: The least probability of a label that is learned from. Default: 30 % of the way from chance (1 over
    the number of classes) to 1: 0.65 with two classes, 0.37 with ten, and the paper's 0.3 with 1,000."""
    per_class: Count | None = None
    """COUNT: How many images of each class to learn from, the most confident first; rare classes come in copies.
    Default: all that are confident enough, divided by the classes."""
    pseudo_labels: Literal["soft", "hard"] = "soft"
    """soft: learn the teacher's probabilities; hard: learn its likeliest class."""

    def check(self) -> None:
        super().check()
        if self.student is not None:
            FitRequest(self.labelled, model=self.student, image_size=self.image_size).check()
        if self.start is not None and self.student is not None:
            raise UserError("student and weights: the weights say which model it is; give one of the two.")
        if self.teacher is not None and self.model is not None:
            raise UserError(
                "model and teacher: the teacher is there already; give student for the model of the students."
            )

    def min_confidence(self, classes: int) -> float:
        """The least probability of a label that is learned from."""
        chance = 1 / classes
        return chance + CONFIDENCE_ABOVE_CHANCE * (1 - chance) if self.confidence is None else self.confidence

    def first_round(self, budget: str | None) -> FitRequest:
        """The training of the first teacher within this budget; its images are split already."""
        overrides = {name: value for name, value in self.overrides.items() if name not in SPLIT_FIELDS}
        shared = {one.name: getattr(self, one.name) for one in fields(LabelledRequest)}
        return FitRequest(self.labelled, **{**shared, "budget": budget, "overrides": override_texts(overrides)})

    def splitting(self) -> FitRequest:
        """How the labelled images are split for all rounds: as for the first teacher's, with all overrides."""
        return replace(self.first_round(self.budget), overrides=override_texts(self.overrides))

    def student_round(self, number: int, budget: str | None) -> StudentRequest:
        """The request of a student, with a seed of its own."""
        from vitreous.data.rng import derived_seed

        first = self.first_round(budget)
        values: dict[str, Any] = {one.name: getattr(first, one.name) for one in fields(FitRequest)}
        values |= {"model": self.student or self.model, "seed": derived_seed(self.seed, number)}
        return StudentRequest(**values, unlabelled=str(self.unlabelled), pseudo_labels=self.pseudo_labels, round=number)
