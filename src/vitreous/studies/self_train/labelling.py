"""A teacher's labels of images without any: how they are made and kept, and the data that a student learns from.

A folder of labels has labels.csv, one line per image that a person or `fit` can read, and labels.safetensors with all
probabilities, which is what students learn from. Letters: n images, K classes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.callbacks import Callbacks
from vitreous.data.batch import Rows
from vitreous.data.folder import FolderSource
from vitreous.data.joined import JoinedSource
from vitreous.data.pseudo_labels import Choice, choose_labels
from vitreous.data.source import Data, Labels, Probabilities, Source, random_subset
from vitreous.errors import UserError
from vitreous.evaluation.calibration import fit_temperature
from vitreous.inputs import counted, read_json, utf8_text
from vitreous.memory import check_memory
from vitreous.model.family import inference_batch
from vitreous.model.predictions import class_probabilities, predicted_class
from vitreous.storage.files import new_folder, write_tensors
from vitreous.storage.manifest import check_manifest
from vitreous.studies.folder import Study
from vitreous.studies.requests import SelfTrainRequest
from vitreous.training.deadline import Deadline
from vitreous.training.method import TrainingContext
from vitreous.training.request import FitRequest
from vitreous.training.teaching.teacher import Teacher, open_teacher, predict_batches
from vitreous.weights.reading import read_safetensors

MIN_LABELLED_FRACTION = 1 / 15
"""The least fraction of images that a person labelled: with fewer they come several times. The paper's batches have 14
unlabelled images for each labelled one."""
LABELLING_FRACTION = 0.3  # the fraction of a round's time after which the teacher labels no more images
TABLE, TENSORS, METADATA = "labels.csv", "labels.safetensors", "labels.json"
COLUMNS = ("path", "label", "probability", "second", "second_probability", "taken", "changed", "before")


@dataclass(frozen=True)
class Labelling:
    """A teacher's predictions for images."""

    index: Labels
    """(n,) which images of the source these are, in rising order; those that could not be read are missing."""
    probabilities: Probabilities  # (n, K)
    temperature: float  # by which the teacher's logits were divided, fitted to the validation images; 1 without any
    asked: int  # images of the source that there was time to look at

    @property
    def labels(self) -> Labels:
        """(n,) the likeliest class of each."""
        return predicted_class(self.probabilities).astype(np.int64)

    def margins(self) -> Probabilities:
        """(n,) probability of the first class less that of the second; small if the label is uncertain."""
        first, second = np.sort(self.probabilities, axis=1)[:, -1:-3:-1].T
        return first - second

    def before(self, earlier: Labelling | None) -> Labels:
        """(n,) the class that an earlier teacher gave each of these images; -1 where it gave none."""
        found = np.full(len(self.index), -1, dtype=np.int64)
        if earlier is not None:
            _, here, there = np.intersect1d(self.index, earlier.index, assume_unique=True, return_indices=True)
            found[here] = earlier.labels[there]
        return found

    def changed(self, earlier: Labelling | None) -> Labels:
        """The rows whose label differs from the one that an earlier teacher gave."""
        before = self.before(earlier)
        return np.flatnonzero((before >= 0) & (before != self.labels))


def prepare_teacher_targets(
    teacher: Teacher, source: Source, workers: int, late: Callable[[], bool] = lambda: False
) -> tuple[Tensor, Tensor]:
    """(n, K) logits and (n,) labels of the images that can be read, as evaluation sees them.

    late: asked after each batch whether it is time to stop.
    """
    logits, index = Rows(len(source)), Rows(len(source))
    for numbers, found in predict_batches(teacher, source, teacher.logits, workers):
        index.add(numbers)
        logits.add(found)
        if late():
            break
    return logits.all(), torch.from_numpy(source.labels)[index.all()]


def label_images(
    teacher: Teacher,
    source: Source,
    validation: Source | None,
    *,
    seed: int,
    workers: int,
    late: Callable[[], bool] = lambda: False,
) -> Labelling:
    """The probabilities that a teacher gives the classes of each image.

    validation: images with right labels, which set the temperature.
    late: asked after each batch whether it is time to stop; the images come in a random order, so that those which
        were labelled in time are a random subset.
    """
    width = teacher.network.config.classes
    check_memory(8.0 * len(source) * width, f"labels of {len(source):,} images", "give fewer images")
    temperature = 1.0 if validation is None else fit_temperature(*prepare_teacher_targets(teacher, validation, workers))
    numbered = source.with_labels(np.arange(len(source), dtype=np.int64), ())
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += inference_batch(teacher.network.config)
        return late()

    found, index = prepare_teacher_targets(teacher, random_subset(numbered, seed), workers, stop)
    order = index.argsort()
    shares = class_probabilities((found[order] / temperature).double()).float()
    return Labelling(index[order].numpy(), shares.numpy(), temperature, min(asked, len(source)))


def write_labels(
    folder: Path,
    labelling: Labelling,
    source: Source,
    classes: Sequence[str],
    *,
    choice: Choice | None = None,
    earlier: Labelling | None = None,
) -> None:
    """Keep them in a folder that is complete or not there; choice: how often a student meets each image."""
    metadata = {"temperature": labelling.temperature, "asked": labelling.asked}
    with new_folder(folder) as place:
        (place / TABLE).write_bytes(_table(labelling, source, classes, choice, earlier).encode())
        (place / METADATA).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
        tensors = {"index": labelling.index, "probabilities": labelling.probabilities}
        write_tensors(place / TENSORS, {name: torch.from_numpy(array) for name, array in tensors.items()})


def read_labels(folder: Path) -> Labelling | None:
    """What was kept there, after every file's digest was checked; None if nothing was."""
    if not folder.is_dir():
        return None
    check_manifest(folder)
    tensors, metadata = read_safetensors(folder / TENSORS), read_json(folder / METADATA)
    index, shares = (tensors[name].numpy() for name in ("index", "probabilities"))
    return Labelling(index, shares, metadata["temperature"], metadata["asked"])


def _table(
    labelling: Labelling, source: Source, classes: Sequence[str], choice: Choice | None, earlier: Labelling | None
) -> str:
    """One line per image: `vitreous fit labels.csv` takes it as it is."""
    before = labelling.before(earlier)
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(COLUMNS)
    for row, shares in enumerate(labelling.probabilities):
        first, second = np.argsort(-shares, kind="stable")[:2].tolist()
        earlier_label = "" if before[row] < 0 else classes[before[row]]
        index = int(labelling.index[row])  # of a file the whole path, so that the list can be read from anywhere
        name = str(source.path(index).absolute()) if isinstance(source, FolderSource) else source.name(index)
        table.writerow(
            [
                utf8_text(name),
                classes[first],
                f"{shares[first]:.4f}",
                classes[second],
                f"{shares[second]:.4f}",
                "" if choice is None else int(choice.repeats[row]),
                int(earlier_label not in ("", classes[first])),
                earlier_label,
            ]
        )
    return written.getvalue()


@dataclass(frozen=True)
class SelfTrainContext(Study):
    """The images, the request and the clock of all rounds."""

    request: SelfTrainRequest
    labelled: Data
    """Split as all rounds have it: with its val split, and of the training images the fraction that is learned."""
    unlabelled: Source
    duplicates: int  # unlabelled images that were left out, as they are among the labelled ones
    notes: tuple[str, ...]
    deadline: Deadline | None
    earlier_seconds: float = 0.0  # of rounds that were finished before this process began

    def round_place(self, number: int) -> Path:
        return self.folder / f"round-{number}"

    def labels_place(self, number: int) -> Path:
        """The labels that the teacher of a round gave."""
        return self.folder / "labels" / f"round-{number}"

    def earlier_labels(self, number: int) -> Path | None:
        """Those of the round before; the first two rounds have none."""
        return self.labels_place(number - 1) if number > 1 else None


def student_data(context: SelfTrainContext, training: TrainingContext[FitRequest], number: int) -> Data:
    """The labelled images, and those of the others whose label is taken."""
    request, classes, labels = context.request, context.labelled.classes, context.labels_place(number)
    labelling = read_labels(labels)
    if labelling is None:
        teacher = open_teacher(context.round_place(number - 1), classes, context.runtime.device)
        training.callbacks.message(f"The teacher of round {number} labels {counted(len(context.unlabelled), 'image')}.")
        deadline = training.deadline
        labelling = label_images(
            teacher,
            context.unlabelled,
            context.labelled.splits.get("val"),
            seed=training.request.seed,
            workers=context.runtime.workers,
            late=lambda: deadline is not None and deadline.now() > LABELLING_FRACTION * deadline.seconds,
        )
    confidence = request.min_confidence(len(classes))
    choice = choose_labels(labelling.probabilities, confidence=confidence, each=request.per_class)
    if not choice.repeats.any():
        raise UserError(
            f"confidence={confidence:g}: the teacher is not as confident of any of {len(labelling.index):,} "
            "images; write to another folder with a lower confidence (teacher="
            f"{str(context.round_place(number - 1))!r} need not be trained again), or label more images."
        )
    if not labels.is_dir():
        before = context.earlier_labels(number)
        earlier = None if before is None else read_labels(before)
        write_labels(labels, labelling, context.unlabelled, classes, choice=choice, earlier=earlier)
    _say_labels(context, training.callbacks, labelling, choice)
    return Data({**context.labelled.splits, "train": _join(context, labelling, choice)}, classes)


def _say_labels(context: SelfTrainContext, callbacks: Callbacks, labelling: Labelling, choice: Choice) -> None:
    classes, total = context.labelled.classes, len(context.unlabelled)
    if labelling.asked < total:
        callbacks.message(
            f"There was time to label {labelling.asked:,} of {total:,} images, chosen at random; a longer budget would "
            "label them all."
        )
    if unreadable := labelling.asked - len(labelling.index):
        callbacks.message(
            f"{counted(unreadable, 'image')} of {context.request.unlabelled} could not be read and got no label."
        )
    callbacks.message(
        f"{int((choice.repeats > 0).sum()):,} of {len(labelling.index):,} labels are taken (a probability of at least "
        f"{context.request.min_confidence(len(classes)):.2g}), {choice.each:,} of each "
        f"class at most; with copies for rare classes {len(choice.rows):,}."
    )
    if none := [classes[label] for label in np.flatnonzero(choice.confident == 0)]:
        more = f" and {len(none) - 1} more" if len(none) > 1 else ""
        callbacks.message(f"No image is surely {none[0]}{more}: the student sees only labelled images of this class.")


def _join(context: SelfTrainContext, labelling: Labelling, choice: Choice) -> Source:
    """Labelled images, often enough to count, then the others, each as often as it is taken."""
    rows = choice.rows
    train, classes = context.labelled.train, context.labelled.classes
    times = max(1, int(np.ceil(MIN_LABELLED_FRACTION / (1 - MIN_LABELLED_FRACTION) * len(rows) / len(train))))
    again = train.subset(np.tile(np.arange(len(train)), times))
    soft = labelling.probabilities[rows] if context.request.pseudo_labels == "soft" else None
    others = context.unlabelled.subset(labelling.index[rows])
    return JoinedSource([again, others.with_labels(choice.labels[rows], classes, soft)])
