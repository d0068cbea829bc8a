"""One round of Noisy Student (Xie et al. 2020): a teacher labels images, and a noised student learns from both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitreous.callbacks import Callbacks
from vitreous.data.joined import join_sources
from vitreous.data.pseudo_labels import Choice, choose_labels
from vitreous.data.source import Data, Shares, Source
from vitreous.errors import UserError
from vitreous.studies.self_training.labelling import Labelling, label_images, read_labels, write_labels
from vitreous.training.context import Runtime, TrainingContext
from vitreous.training.labelled import Labelled
from vitreous.training.request import FitRequest, StudentRequest
from vitreous.training.result import FitResult
from vitreous.training.teaching.teacher import open_teacher
from vitreous.training.train import train

LABELLED = 1 / 15
"""The least share of the images that a person labelled: with fewer they come several times. The paper's batches have
14 unlabelled images for each labelled one."""
LABELLING = 0.3
"""The share of a round's time after which the teacher labels no more images."""


@dataclass(frozen=True)
class PseudoLabels:
    """What a student learns from, and where its labels are kept."""

    labelled: Data
    """With the val split that all rounds share."""
    unlabelled: Source
    teacher: Path
    """The folder of the round before."""
    labels: Path
    """The folder of this round's labels, which need not be there yet."""
    earlier: Path | None
    """The folder of the labels of the round before, where it has some."""
    confidence: float
    each: int | None


def train_first_teacher(
    request: FitRequest, folder: Path, runtime: Runtime, callbacks: Callbacks, labelled: Data
) -> FitResult:
    """What `fit` does, on images with the val split that all rounds share."""
    return train(request, folder, runtime, callbacks, Labelled(data=lambda context: labelled, is_split=True))


def train_student(
    request: StudentRequest, folder: Path, runtime: Runtime, callbacks: Callbacks, lesson: PseudoLabels
) -> FitResult:
    """What `fit` does, on the labelled images and those of the others whose label is taken."""
    method = Labelled(
        data=lambda context: _student_data(context, lesson),
        is_split=True,
        typical=lesson.labelled.train,  # by such it will be judged
        name=f"a noised student of round {request.round}, {request.labels} labels",
    )
    return train(request, folder, runtime, callbacks, method)


def _student_data(context: TrainingContext[FitRequest], lesson: PseudoLabels) -> Data:
    """The labelled images, and those of the others whose label is taken."""
    request = context.request
    assert isinstance(request, StudentRequest)
    labelling = _labelling(context, request, lesson)
    choice = choose_labels(labelling.probabilities, confidence=lesson.confidence, each=lesson.each)
    if not choice.copies.any():
        raise UserError(
            f"confidence={lesson.confidence:g}: the teacher is not as confident of any of {len(labelling.index):,} "
            f"images; write to another folder with a lower confidence (teacher={str(lesson.teacher)!r} need not be "
            "trained again), or label more images."
        )
    if not lesson.labels.is_dir():
        earlier = None if lesson.earlier is None else read_labels(lesson.earlier)
        classes = lesson.labelled.classes
        write_labels(lesson.labels, labelling, lesson.unlabelled, classes, choice=choice, earlier=earlier)
    _say_labels(context.callbacks, request, lesson, labelling, choice)
    splits = {**lesson.labelled.splits, "train": _joined(request, lesson, labelling, choice)}
    return Data(splits, lesson.labelled.classes)


def _labelling(context: TrainingContext[FitRequest], request: StudentRequest, lesson: PseudoLabels) -> Labelling:
    """The teacher's labels, as they were kept, or made now."""
    if (kept := read_labels(lesson.labels)) is not None:
        return kept
    teacher = open_teacher(lesson.teacher, lesson.labelled.classes, context.runtime.device)
    context.callbacks.message(f"The teacher of round {request.round} labels {len(lesson.unlabelled):,} images.")
    deadline = context.deadline
    return label_images(
        teacher,
        lesson.unlabelled,
        lesson.labelled.splits.get("val"),
        seed=request.seed,
        workers=context.runtime.workers,
        late=lambda: deadline is not None and deadline.now() > LABELLING * deadline.seconds,
    )


def _say_labels(
    callbacks: Callbacks, request: StudentRequest, lesson: PseudoLabels, labelling: Labelling, choice: Choice
) -> None:
    classes = lesson.labelled.classes
    different = int((choice.copies > 0).sum())
    if labelling.asked < len(lesson.unlabelled):
        callbacks.message(
            f"There was time to label {labelling.asked:,} of {len(lesson.unlabelled):,} images, chosen at "
            "random; a longer budget would label them all."
        )
    if unreadable := labelling.asked - len(labelling.index):
        callbacks.message(f"{unreadable:,} images of {request.unlabelled} cannot be read, and have no label.")
    callbacks.message(
        f"{different:,} of {len(labelling.index):,} labels are taken, {choice.each:,} of each class at most; with "
        f"copies for rare classes {len(choice.rows):,}."
    )
    if none := [classes[label] for label in np.flatnonzero(choice.sure == 0)]:
        more = f" and {len(none) - 1} more" if len(none) > 1 else ""
        callbacks.message(f"No image is surely {none[0]}{more}: of these the student sees labelled ones only.")


def _joined(request: StudentRequest, lesson: PseudoLabels, labelling: Labelling, choice: Choice) -> Source:
    """Labelled images, often enough to count, then the others, each as often as it is taken."""
    rows = choice.rows
    train, classes = lesson.labelled.train, lesson.labelled.classes
    times = max(1, int(np.ceil(LABELLED / (1 - LABELLED) * len(rows) / len(train))))
    again = train.subset(np.tile(np.arange(len(train)), times))
    labels = np.concatenate([again.labels, choice.labels[rows]])
    soft: Shares | None = None
    if request.labels == "soft":
        certain = np.eye(len(classes), dtype=np.float32)[again.labels]
        soft = np.concatenate([certain, labelling.probabilities[rows]])
    others = lesson.unlabelled.subset(labelling.index[rows])
    return join_sources([again, others], labels, classes, soft)
