"""One round of Noisy Student (Xie et al. 2020): a teacher labels images, and a noised student learns from both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitreous.callbacks import Callbacks
from vitreous.data.pseudo_labels import Choice, choose_labels
from vitreous.data.source import Data, JoinedSource, Probabilities, Source
from vitreous.errors import UserError
from vitreous.studies.self_train.labelling import Labelling, label_images, read_labels, write_labels
from vitreous.studies.self_train.request import SelfTrainRequest
from vitreous.training.deadline import Deadline
from vitreous.training.labelled import Labelled
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult
from vitreous.training.start import Runtime
from vitreous.training.teaching.teacher import open_teacher
from vitreous.training.train import TrainingContext, train

MIN_LABELLED = 1 / 15
"""The least fraction of images that a person labelled: with fewer they come several times. The paper's batches have 14
unlabelled images for each labelled one."""
LABELLING = 0.3  # the fraction of a round's time after which the teacher labels no more images


@dataclass(frozen=True)
class SelfTrainContext:
    """What all rounds are done with."""

    request: SelfTrainRequest
    folder: Path
    runtime: Runtime
    callbacks: Callbacks
    labelled: Data
    """Split as all rounds have it: with its val split, and of the training images the fraction that is learned."""
    unlabelled: Source
    duplicates: int  # unlabelled images that were left out, as they are among the labelled ones
    notes: tuple[str, ...]
    deadline: Deadline | None

    def round_place(self, number: int) -> Path:
        return self.folder / f"round-{number}"

    def labels_place(self, number: int) -> Path:
        return self.folder / "labels" / f"round-{number}"

    def earlier_labels(self, number: int) -> Path | None:
        """Those of the round before; the first two rounds have none."""
        return self.labels_place(number - 1) if number > 1 else None


def train_student(context: SelfTrainContext, number: int, budget: str | None) -> FitResult:
    """What `fit` does, on the labelled images and those of the others whose label is taken."""
    method = Labelled(
        data=lambda training: _student_data(context, training, number),
        is_split=True,
        typical=context.labelled.train,  # by such it will be judged
        name=f"a noised student of round {number}, {context.request.labels} labels",
    )
    request = context.request.student_round(number, budget)
    return train(request, context.round_place(number), context.runtime, context.callbacks, method)


def _student_data(context: SelfTrainContext, training: TrainingContext[FitRequest], number: int) -> Data:
    """The labelled images, and those of the others whose label is taken."""
    request, classes, labels = context.request, context.labelled.classes, context.labels_place(number)
    labelling = read_labels(labels)
    if labelling is None:
        labelling = _ask_teacher(context, training, number)
    choice = choose_labels(labelling.probabilities, confidence=request.confidence, each=request.per_class)
    if not choice.repeats.any():
        raise UserError(
            f"confidence={request.confidence:g}: the teacher is not as confident of any of {len(labelling.index):,} "
            "images; write to another folder with a lower confidence (teacher="
            f"{str(context.round_place(number - 1))!r} need not be trained again), or label more images."
        )
    if not labels.is_dir():
        before = context.earlier_labels(number)
        earlier = None if before is None else read_labels(before)
        write_labels(labels, labelling, context.unlabelled, classes, choice=choice, earlier=earlier)
    _say_labels(context, training.callbacks, labelling, choice)
    return Data({**context.labelled.splits, "train": _join(context, labelling, choice)}, classes)


def _ask_teacher(context: SelfTrainContext, training: TrainingContext[FitRequest], number: int) -> Labelling:
    teacher = open_teacher(context.round_place(number - 1), context.labelled.classes, context.runtime.device)
    training.callbacks.message(f"The teacher of round {number} labels {len(context.unlabelled):,} images.")
    deadline = training.deadline
    return label_images(
        teacher,
        context.unlabelled,
        context.labelled.splits.get("val"),
        seed=training.request.seed,
        workers=context.runtime.workers,
        late=lambda: deadline is not None and deadline.now() > LABELLING * deadline.seconds,
    )


def _say_labels(context: SelfTrainContext, callbacks: Callbacks, labelling: Labelling, choice: Choice) -> None:
    classes, total = context.labelled.classes, len(context.unlabelled)
    if labelling.asked < total:
        callbacks.message(
            f"There was time to label {labelling.asked:,} of {total:,} images, chosen at random; a longer budget would "
            "label them all."
        )
    if unreadable := labelling.asked - len(labelling.index):
        callbacks.message(f"{unreadable:,} images of {context.request.unlabelled} cannot be read, and have no label.")
    callbacks.message(
        f"{int((choice.repeats > 0).sum()):,} of {len(labelling.index):,} labels are taken, {choice.each:,} of each "
        f"class at most; with copies for rare classes {len(choice.rows):,}."
    )
    if none := [classes[label] for label in np.flatnonzero(choice.confident == 0)]:
        more = f" and {len(none) - 1} more" if len(none) > 1 else ""
        callbacks.message(f"No image is surely {none[0]}{more}: of these the student sees labelled ones only.")


def _join(context: SelfTrainContext, labelling: Labelling, choice: Choice) -> Source:
    """Labelled images, often enough to count, then the others, each as often as it is taken."""
    rows = choice.rows
    train, classes = context.labelled.train, context.labelled.classes
    times = max(1, int(np.ceil(MIN_LABELLED / (1 - MIN_LABELLED) * len(rows) / len(train))))
    again = train.subset(np.tile(np.arange(len(train)), times))
    labels = np.concatenate([again.labels, choice.labels[rows]])
    soft: Probabilities | None = None
    if context.request.labels == "soft":
        certain = np.eye(len(classes), dtype=np.float32)[again.labels]
        soft = np.concatenate([certain, labelling.probabilities[rows]])
    others = context.unlabelled.subset(labelling.index[rows])
    return JoinedSource([again, others], labels, classes, soft)
