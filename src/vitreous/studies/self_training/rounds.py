"""What each round of a self-training came to, read from its folders, and which of them is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from vitreous.data.pseudo_labels import choose_labels
from vitreous.data.source import Data
from vitreous.data.subset import random_subset
from vitreous.evaluate.paired import Paired, pair_answers
from vitreous.model.family import count_parameters, describe
from vitreous.report.rounds import Round, RoundLabels, RoundScore
from vitreous.studies.self_training.labelling import ask_teacher, read_labels
from vitreous.studies.self_training.request import SelfTrainRequest
from vitreous.training.context import Runtime
from vitreous.training.folder import read_config
from vitreous.training.result import FitResult
from vitreous.training.teaching.teacher import open_teacher
from vitreous.weights.bundle import load_bundle


def tell_round(
    number: int, folder: Path, result: FitResult, request: SelfTrainRequest, labels: Path, earlier: Path | None
) -> Round:
    """What is said of a round.

    folder: where the round is now; its result has the path of when it was trained.
    labels, earlier: the folders of its labels and of those before, where there are any.
    """
    trained = read_config(folder)
    config = load_bundle(folder / "bundle").model.config if trained is None else trained.training.model
    return Round(
        number=number,
        run=str(folder),
        model=describe(config),
        parameters=count_parameters(config),
        images=result.images,
        validation=RoundScore.of(result.validation),
        test=RoundScore.of(result.test),
        labels=_tell_labels(result.classes, request, labels, earlier),
        spent=result.spent,
    )


def _tell_labels(
    classes: tuple[str, ...], request: SelfTrainRequest, labels: Path, earlier: Path | None
) -> RoundLabels | None:
    found, before = read_labels(labels), None if earlier is None else read_labels(earlier)
    if found is None:  # the first teacher learned from none
        return None
    choice = choose_labels(found.probabilities, confidence=request.confidence, each=request.per_class)
    copies = [int(choice.copies[choice.labels == k].sum()) for k in range(len(classes))]
    return RoundLabels(
        looked_at=len(found.index),
        temperature=found.temperature,
        sure=dict(zip(classes, choice.sure.tolist(), strict=True)),
        taken=dict(zip(classes, choice.taken(len(classes)).tolist(), strict=True)),
        with_copies=dict(zip(classes, copies, strict=True)),
        changed=None if before is None else len(found.changed(before)),
    )


def best_round(rounds: tuple[Round, ...]) -> int:
    """The round with the highest validation accuracy, of equals the last; the last of all without validation images.

    The loss is no judge here: a student of soft labels is less sure than its teacher, be it right more often or not.
    """
    accuracy = {one.number: one.validation.accuracy for one in rounds if one.validation is not None}
    return max(accuracy or [rounds[-1].number], key=lambda number: (accuracy.get(number, 0.0), number))


def compare_rounds(
    folders: tuple[Path, Path], data: Data, machine: Runtime, seed: int, seconds: float | None
) -> Paired | None:
    """Two rounds on the test images, or where there are none the validation images; None without either.

    seconds: how long it may take; where that is too short, a random part is looked at by both.
    """
    split = next((name for name in ("test", "val") if name in data.splits), None)
    if split is None:
        return None
    source, began = random_subset(data.splits[split], seed), time.monotonic()
    right = []
    for number, folder in enumerate(folders, start=1):
        end = None if seconds is None else began + number * seconds / len(folders)
        model = open_teacher(folder, data.classes, machine.device)
        scores, labels = ask_teacher(model, source, machine.workers, _past(end))
        right.append((scores.argmax(dim=1) == labels).numpy())
    both = min(map(len, right))  # both saw the images in one order
    return pair_answers(split, right[0][:both], right[1][:both]) if both else None


def _past(end: float | None) -> Callable[[], bool]:
    return lambda: end is not None and time.monotonic() > end


def given_teacher_kept(rounds: tuple[Round, ...], best: int) -> tuple[str, ...]:
    """What to say where a given teacher did better than the students on the validation images."""
    students = [one for one in rounds[1:] if one.validation is not None]
    if best or not students:
        return ()
    student = max(students, key=lambda one: (one.validation.accuracy if one.validation else 0.0, one.number))
    return (
        "The teacher that was given is kept: no student was better on the validation images. If it has learned from "
        f"these images before, its accuracy on them says nothing; the best student is round {student.number}.",
    )


def smaller_students(rounds: tuple[Round, ...]) -> tuple[str, ...]:
    """What to say of students that are smaller than their teacher."""
    return tuple(
        f"The student of round {one.number} is smaller than its teacher ({one.model} after {before.model}); Noisy "
        "Student takes students as large or larger."
        for before, one in pairwise(rounds)
        if one.parameters < before.parameters
    )
