"""What a self-training came to: each round, which of them is kept, and the page with images to look at by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.decode import ImageError
from vitreous.data.pseudo_labels import choose_labels
from vitreous.data.source import Labels, Source
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluation.intervals import Paired
from vitreous.inputs import read_json
from vitreous.model.family import count_parameters
from vitreous.report.rounds import DoubtfulImage, LikelyClass, Round, RoundLabels, RoundScore, SelfTrainingContent
from vitreous.report.self_training import SIDE, self_training_page
from vitreous.studies.self_train.labelling import Labelling, read_labels
from vitreous.studies.self_train.request import SelfTrainRequest
from vitreous.training.folder import RESULT, read_config
from vitreous.training.result import FitResult
from vitreous.weights.bundle import load_bundle

SHOWN_IMAGES = 24  # of each kind on the page
SHOWN_CLASSES = 3  # that are named for each image


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
        rounds = tuple(
            replace(one, run=str(folder / f"round-{one.number}")) for one in map(Round.from_json, fields["rounds"])
        )
        paired = fields["against_teacher"]
        found = {name: fields[name] for name in SelfTrainResult.__dataclass_fields__}
        found |= {"run": str(folder), "bundle": str(folder / "bundle"), "rounds": rounds}
        found |= {"spent": Cost(**fields["spent"]), **{name: tuple(fields[name]) for name in ("classes", "remarks")}}
        if paired is not None:
            found["against_teacher"] = Paired(**{name: paired[name] for name in Paired.__dataclass_fields__})
        return SelfTrainResult(**found)
    except (KeyError, TypeError):
        raise UserError(
            f"{path}: damaged, or of an older vitreous; delete it and repeat the command: what is trained is kept."
        ) from None


def describe_round(
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
    choice = choose_labels(found.probabilities, confidence=request.confidence, each=request.per_class)
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

    The loss is no judge here: a student of soft labels is less confident than its teacher, be it right more often or
    not.
    """
    accuracy = {one.number: one.validation.accuracy for one in rounds if one.validation is not None}
    return max(accuracy or [rounds[-1].number], key=lambda number: (accuracy.get(number, 0.0), number))


def round_remarks(rounds: tuple[Round, ...], best: int, given: bool) -> tuple[str, ...]:
    """What to beware of. given: whether the first teacher was given, and the rounds are finished."""
    found = []
    students = [one for one in rounds[1:] if one.validation is not None]
    if given and not best and students:
        student = max(students, key=lambda one: (one.validation.accuracy if one.validation else 0.0, one.number))
        found.append(
            "The teacher that was given is kept: no student was better on the validation images. If it has learned "
            "from these images before, its accuracy on them says nothing; the best student is round "
            f"{student.number}."
        )
    found += (
        f"The student of round {one.number} is smaller than its teacher ({one.model} after {before.model}); Noisy "
        "Student takes students as large or larger."
        for before, one in pairwise(rounds)
        if one.parameters < before.parameters
    )
    return tuple(found)


def rounds_page(
    folder: Path,
    request: SelfTrainRequest,
    result: SelfTrainResult,
    source: Source,
    final: Labelling,
    earlier: Labelling | None,
    compared: int | None,
) -> str:
    """The page.

    final: what the kept model predicts of the unlabelled images of `source`; earlier: what the teacher of the round
        `compared` predicted, if another one did.
    """
    changed = final.changed(earlier)
    most_confident = changed[np.argsort(-final.margins()[changed], kind="stable")]
    uncertain = np.argsort(final.margins(), kind="stable")
    content = SelfTrainingContent(
        name=folder.resolve().name,
        place=str(folder),
        labelled=str(request.labelled),
        unlabelled=str(request.unlabelled),
        classes=result.classes,
        rounds=result.rounds,
        best=result.best,
        confidence=request.confidence,
        kind=request.labels,
        labelled_count=result.labelled,
        unlabelled_count=result.unlabelled,
        duplicates=result.duplicates,
        doubtful=tuple(_shown(uncertain, final, earlier, source, result.classes)),
        doubtful_of=len(final.index),
        changed=tuple(_shown(most_confident, final, earlier, source, result.classes)),
        changed_of=len(changed),
        compared=compared,
        against_teacher=result.against_teacher,
        notes=result.remarks,
    )
    return self_training_page(content)


def _shown(
    rows: Labels, final: Labelling, earlier: Labelling | None, source: Source, classes: tuple[str, ...]
) -> Iterable[DoubtfulImage]:
    """The first of these images, with the classes that they may be of."""
    before = final.before(earlier)
    for row in rows[:SHOWN_IMAGES].tolist():
        index, probabilities = int(final.index[row]), final.probabilities[row]
        try:
            image = source.read(index, at_least=SIDE)
        except ImageError:  # damaged since it was labelled
            continue
        best = np.argsort(-probabilities, kind="stable")[:SHOWN_CLASSES].tolist()
        candidates = tuple(LikelyClass(classes[k], float(probabilities[k])) for k in best)
        other = before[row] >= 0 and before[row] != best[0]
        yield DoubtfulImage(source.name(index), image, candidates, classes[before[row]] if other else None)
