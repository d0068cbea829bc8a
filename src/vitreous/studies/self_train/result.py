"""What a self-training came to: each round, which of them is kept, and what to beware of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitreous.config.fields import from_fields
from vitreous.data.pseudo_labels import choose_labels
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluation.classify import ClassificationResult
from vitreous.evaluation.intervals import Paired
from vitreous.inputs import counted, read_json
from vitreous.model.family import count_parameters
from vitreous.studies.requests import SelfTrainRequest
from vitreous.studies.self_train.labelling import read_labels
from vitreous.training.folder import RESULT, read_config
from vitreous.training.result import FitResult
from vitreous.weights.bundle import load_bundle


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


@dataclass(frozen=True)
class RoundLabels:
    """The labels that a round's teacher gave, and those that its student learned from."""

    looked_at: int  # images that were read and labelled
    temperature: float  # by which the teacher's logits were divided, fitted to the validation images
    sure: dict[str, int]  # of each class, labels that were confident enough
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


@dataclass(frozen=True)
class SelfTrainResult:
    """What a self-training came to."""

    run: str
    bundle: str  # of the kept round
    finished: bool
    classes: tuple[str, ...]
    labelled: int  # images with labels that were learned from, those for validation and test aside
    unlabelled: int
    duplicates: int  # unlabelled images that were left out, as they are among the labelled ones
    rounds: tuple[Round, ...]
    best: int  # the number of the kept round: the one with the highest validation accuracy
    changed: int
    """Images that the kept model labels otherwise than the teacher it learned from, or than the last teacher where
    the first is kept."""
    spent: Cost
    against_teacher: Paired | None = None
    """The first teacher and the kept student on the same images; None where the teacher is kept."""
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        if self.against_teacher is not None:  # by images that chose the round the interval promises too much
            found["against_teacher"]["chose_the_round"] = self.against_teacher.split == "val"
        return found


def read_self_training(folder: Path) -> SelfTrainResult:
    """What a finished self-training came to, wherever its folder is now."""
    path = folder / RESULT
    try:
        fields = read_json(path)
        known = {name: fields[name] for name in SelfTrainResult.__dataclass_fields__}
        if known["against_teacher"] is not None:
            known["against_teacher"].pop("chose_the_round")
        found = from_fields(SelfTrainResult, known, path)
    except (KeyError, TypeError, AttributeError, UserError):
        raise UserError(
            f"{path}: damaged, or of an older vitreous; delete it and repeat the command: what is trained is kept."
        ) from None
    rounds = tuple(replace(one, run=str(folder / f"round-{one.number}")) for one in found.rounds)
    return replace(found, run=str(folder), bundle=str(folder / "bundle"), rounds=rounds)


def describe_round(
    number: int, folder: Path, result: FitResult, request: SelfTrainRequest, labels: Path, earlier: Path | None
) -> Round:
    """The description of a round.

    folder: where the round is now; its result has the path of when it was trained.
    labels, earlier: the folders of its labels and of the round before's, if there are any.
    """
    trained = read_config(folder)
    config = load_bundle(folder / "bundle").model.config if trained is None else trained.training.model
    return Round(
        number=number,
        run=str(folder),
        model=config.describe(),
        parameters=count_parameters(config),
        images=result.images,
        validation=RoundScore.of(result.validation),
        test=RoundScore.of(result.test),
        labels=_describe_labels(result.classes, request, labels, earlier),
        spent=result.spent,
    )


def _describe_labels(
    classes: tuple[str, ...], request: SelfTrainRequest, labels: Path, earlier: Path | None
) -> RoundLabels | None:
    found, before = read_labels(labels), None if earlier is None else read_labels(earlier)
    if found is None:  # the first teacher learned from none
        return None
    confidence = request.min_confidence(len(classes))
    choice = choose_labels(found.probabilities, confidence=confidence, each=request.per_class)
    copies = [int(choice.repeats[choice.labels == k].sum()) for k in range(len(classes))]
    return RoundLabels(
        looked_at=len(found.index),
        temperature=found.temperature,
        sure=dict(zip(classes, choice.confident.tolist(), strict=True)),
        taken=dict(zip(classes, choice.taken(len(classes)).tolist(), strict=True)),
        with_copies=dict(zip(classes, copies, strict=True)),
        changed=None if before is None else len(found.changed(before)),
    )


def best_round(rounds: tuple[Round, ...]) -> int:
    """The round with the highest validation accuracy, of equals the last; the last of all without validation images.

    The loss is not compared: a student of soft labels is less confident than its teacher even if it is more accurate.
    """
    accuracy = {one.number: one.validation.accuracy for one in rounds if one.validation is not None}
    return max(accuracy or [rounds[-1].number], key=lambda number: (accuracy.get(number, 0.0), number))


def round_remarks(rounds: tuple[Round, ...], best: int, given: bool) -> tuple[str, ...]:
    """What to beware of. given: whether the first teacher was given, and the rounds are finished."""
    found = []
    students = [one for one in rounds[1:] if one.validation is not None]
    if given and not best and students:
        found.append(
            "The teacher that was given is kept: no student was better on the validation images. If it has learned "
            "from these images before, its accuracy on them says nothing; the best student is round "
            f"{best_round(tuple(students))}."
        )
    found += (
        f"The student of round {one.number} is smaller than its teacher ({one.model} after {before.model}); Noisy "
        "Student takes students as large or larger."
        for before, one in pairwise(rounds)
        if one.parameters < before.parameters
    )
    return tuple(found)


def choice_remarks(rounds: tuple[Round, ...], best: int, request: SelfTrainRequest, classes: int) -> Iterator[str]:
    """Where labels or the kept round were hardly chosen."""
    if request.confidence is not None and request.confidence <= 1 / classes:
        yield (
            f"confidence={request.confidence:g} leaves no label out: of {classes} classes the most probable one always "
            f"has at least {1 / classes:.2g}."
        )
    scores = {one.number: one.validation for one in rounds if one.validation is not None}
    if len(rounds) > 1 and not scores:
        yield ("There are no validation images, so the last round is kept, whether it is the best or not.")
    kept, others = scores.get(best), [one.accuracy for number, one in scores.items() if number != best]
    if kept is not None and others and kept.interval[0] <= max(others):
        (low, high), n = kept.interval, counted(kept.n, "validation image")
        yield (
            f"Round {best} is kept, but {n} cannot tell it from the other rounds: it has {kept.accuracy:.1%} (95 % "
            f"interval {low:.1%} to {high:.1%}), the best other {max(others):.1%}."
        )
