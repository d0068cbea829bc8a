"""One round of Noisy Student (Xie et al. 2020): a teacher labels images, and a noised student learns from both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitreous.callbacks import Callbacks
from vitreous.config.train import Training
from vitreous.data.joined import join_sources
from vitreous.data.pseudo_labels import Choice, choose_labels
from vitreous.data.source import Data, Shares, Source
from vitreous.errors import UserError
from vitreous.studies.self_training.labelling import Labelling, label_images, read_labels, write_labels
from vitreous.training.ending import WriteReport
from vitreous.training.labelled import LabelledTraining
from vitreous.training.request import FitRequest, StudentRequest
from vitreous.training.runtime import Runtime
from vitreous.training.start import choose_training
from vitreous.training.teaching.teacher import open_teacher

LABELLED = 1 / 15
"""The least share of the images that a person labelled: with fewer they come several times. The paper's batches have
14 unlabelled images for each labelled one."""
LABELLING = 0.3
"""The share of a round's time after which the teacher labels no more images."""


@dataclass(frozen=True)
class Lesson:
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


class FirstTeacherTraining(LabelledTraining):
    """What differs from `fit`: the images are given, with the val split that all rounds share."""

    def __init__(
        self,
        request: FitRequest,
        folder: Path,
        machine: Runtime,
        callbacks: Callbacks,
        report: WriteReport,
        labelled: Data,
    ) -> None:
        super().__init__(request, folder, machine, callbacks, report)
        self.labelled = labelled

    def open_data(self) -> Data:
        """They are open."""
        return self.labelled

    def choose_training(self, data: Data) -> Training:
        """What the recipe makes of these images."""
        self.base = self._open_weights()
        return choose_training(self.request, data, self.base, self.world.device.type, divided=True)

    def split_data(self, data: Data) -> Data:
        """They are divided already."""
        return data


class StudentTraining(LabelledTraining):
    """What differs from `fit`: the training images, most of which a teacher labelled."""

    request: StudentRequest

    def __init__(
        self,
        request: StudentRequest,
        folder: Path,
        machine: Runtime,
        callbacks: Callbacks,
        report: WriteReport,
        lesson: Lesson,
    ) -> None:
        super().__init__(request, folder, machine, callbacks, report)
        self.lesson = lesson

    def manner(self) -> str:
        """Who learns, and from what."""
        return f"a noised student of round {self.request.round}, {self.request.labels} labels"

    def open_data(self) -> Data:
        """The labelled images, and those of the others whose label is taken."""
        lesson = self.lesson
        labelling = self._labelling()
        choice = choose_labels(labelling.probabilities, confidence=lesson.confidence, each=lesson.each)
        if not choice.copies.any():
            raise UserError(
                f"confidence={lesson.confidence:g}: the teacher is not as sure of any of {len(labelling.index):,} "
                f"images; write to another folder with a lower confidence (teacher={str(lesson.teacher)!r} need not "
                "be trained again), or label more images."
            )
        if not lesson.labels.is_dir():
            self._keep(labelling, choice)
        self._say_labels(labelling, choice)
        splits = {**lesson.labelled.splits, "train": self._joined(labelling, choice)}
        return Data(splits, lesson.labelled.classes)

    def choose_training(self, data: Data) -> Training:
        """What the recipe makes of so many images, of the size of the labelled ones: by such it will be judged."""
        self.base = self._open_weights()
        device, typical = self.world.device.type, self.lesson.labelled.train
        return choose_training(self.request, data, self.base, device, typical=typical, divided=True)

    def split_data(self, data: Data) -> Data:
        """They are divided already: the validation images are labelled ones, the same in all rounds."""
        return data

    def _labelling(self) -> Labelling:
        """The teacher's labels, as they were kept, or made now."""
        lesson, clock = self.lesson, self.clock
        if (kept := read_labels(lesson.labels)) is not None:
            return kept
        teacher = open_teacher(lesson.teacher, lesson.labelled.classes, self.machine.device)
        self.callbacks.message(f"The teacher of round {self.request.round} labels {len(lesson.unlabelled):,} images.")
        return label_images(
            teacher,
            lesson.unlabelled,
            lesson.labelled.splits.get("val"),
            seed=self.request.seed,
            workers=self.machine.workers,
            late=lambda: clock is not None and clock.now() > LABELLING * clock.deadline,
        )

    def _keep(self, labelling: Labelling, choice: Choice) -> None:
        lesson = self.lesson
        earlier = None if lesson.earlier is None else read_labels(lesson.earlier)
        classes = lesson.labelled.classes
        write_labels(lesson.labels, labelling, lesson.unlabelled, classes, choice=choice, earlier=earlier)

    def _say_labels(self, labelling: Labelling, choice: Choice) -> None:
        classes = self.lesson.labelled.classes
        different = int((choice.copies > 0).sum())
        if labelling.asked < len(self.lesson.unlabelled):
            self.callbacks.message(
                f"There was time to label {labelling.asked:,} of {len(self.lesson.unlabelled):,} images, chosen at "
                "random; a longer budget would label them all."
            )
        if unreadable := labelling.asked - len(labelling.index):
            self.callbacks.message(
                f"{unreadable:,} images of {self.request.unlabelled} cannot be read, and have no label."
            )
        self.callbacks.message(
            f"{different:,} of {len(labelling.index):,} labels are taken, {choice.each:,} of each class at most; with "
            f"copies for rare classes {len(choice.rows):,}."
        )
        if none := [classes[label] for label in np.flatnonzero(choice.sure == 0)]:
            more = f" and {len(none) - 1} more" if len(none) > 1 else ""
            self.callbacks.message(f"No image is surely {none[0]}{more}: of these the student sees labelled ones only.")

    def _joined(self, labelling: Labelling, choice: Choice) -> Source:
        """Labelled images, often enough to count, then the others, each as often as it is taken."""
        lesson, rows = self.lesson, choice.rows
        train, classes = lesson.labelled.train, lesson.labelled.classes
        times = max(1, int(np.ceil(LABELLED / (1 - LABELLED) * len(rows) / len(train))))
        again = train.subset(np.tile(np.arange(len(train)), times))
        labels = np.concatenate([again.labels, choice.labels[rows]])
        soft: Shares | None = None
        if self.request.labels == "soft":
            certain = np.eye(len(classes), dtype=np.float32)[again.labels]
            soft = np.concatenate([certain, labelling.probabilities[rows]])
        others = lesson.unlabelled.subset(labelling.index[rows])
        return join_sources([again, others], labels, classes, soft)
