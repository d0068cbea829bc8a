"""Noisy Student (Xie et al. 2020): a teacher, then students that learn from its labels and become the next teachers.

OUT/config.json     what was asked for, and what the data were
OUT/round-0, ...    each round a run folder of its own
OUT/labels/round-1  what the teacher of this round predicted; labels/final: what the kept model predicts
OUT/bundle          the kept round's, so that OUT is a model like any run folder
OUT/report.html, OUT/result.json

What a round has finished stays, so the same command again goes on with the next.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from vitreous.callbacks import Callbacks
from vitreous.data.duplicates import note_duplicates, without_duplicates
from vitreous.data.opening import open_dataset, open_unlabelled
from vitreous.data.source import Data, random_subset
from vitreous.distributed.meter import Cost, Meter
from vitreous.errors import UserError
from vitreous.evaluation.classify import score_classes
from vitreous.evaluation.intervals import Paired
from vitreous.inference.opening import open_classifier
from vitreous.model.predictions import is_right
from vitreous.storage.files import new_folder, write_file
from vitreous.storage.manifest import MANIFEST
from vitreous.studies.folder import StudyConfig, hold_study, open_deadline, open_study, read_study, write_result
from vitreous.studies.requests import SelfTrainRequest
from vitreous.studies.self_train.labelling import (
    Labelling,
    SelfTrainContext,
    label_images,
    prepare_teacher_targets,
    read_labels,
    student_data,
    write_labels,
)
from vitreous.studies.self_train.page import rounds_page
from vitreous.studies.self_train.result import (
    Round,
    SelfTrainResult,
    best_round,
    choice_remarks,
    describe_round,
    read_self_training,
    round_remarks,
)
from vitreous.training.deadline import Deadline
from vitreous.training.folder import REPORT, RESULT, DataIdentity, read_config
from vitreous.training.labelled import Labelled
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult, read_result
from vitreous.training.start import Runtime, choose_training, split_for
from vitreous.training.step import check_training_memory
from vitreous.training.teaching.teacher import open_teacher, teacher_from_bundle
from vitreous.training.train import train
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.source import open_weights

CLOSING_FRACTION = 0.1  # the fraction of a budget that is kept for the last labels and the page
WRITING_SECONDS = 3.0  # what the page takes on two quiet cores
PAIRING_FRACTION = 0.3  # of the time left after the rounds, in which the kept student meets the first teacher
MIN_ROUND_SECONDS = 1.0  # what a round is given however late it is


def self_train(
    request: SelfTrainRequest, folder: Path, runtime: Runtime, callbacks: Callbacks, *, overwrite: bool = False
) -> SelfTrainResult:
    """Train a teacher, then students on its labels, each round in a run folder of its own; or go on with that."""
    deadline = open_deadline(request.budget, WRITING_SECONDS, runtime, callbacks)
    # the start-up counts for the whole budget, not for that of a round
    callbacks = replace(callbacks, started=None)
    is_finished = not overwrite and all((folder / name).exists() for name in (RESULT, REPORT))
    try:
        context = _open_images(request, folder, runtime, callbacks, deadline)
    except UserError as error:
        saved = read_study(folder, "self-train") if is_finished else None
        if saved is None:
            raise
        saved.check_same(replace(saved, request=request), {}, folder)
        callbacks.message(f"Its data cannot be compared with those that it learned from: {error}")
        return read_self_training(folder)
    unlabelled = DataIdentity.of(Data({"train": context.unlabelled}, ()))
    config = StudyConfig(request, {"labelled": DataIdentity.of(context.labelled), "unlabelled": unlabelled})
    places = {"labelled": str(request.labelled), "unlabelled": str(request.unlabelled)}
    saved = open_study(folder, config, places, overwrite=overwrite)
    if saved is not None and is_finished and _has_bundle(folder, callbacks):
        callbacks.message(f"{folder} is finished; nothing to do.")
        return read_self_training(folder)
    if saved is None:
        _check_rounds(context)
    with hold_study(folder, "self-train", saved, callbacks, overwrite):
        config.write(folder)
        for note in context.notes:
            callbacks.message(note)
        measured = [k for k in range(request.rounds + 1) if (context.round_place(k) / RESULT).exists()]
        context = replace(context, earlier_seconds=sum(_read_round(context, k).spent.seconds for k in measured))
        done = [_run_round(context, 0)]
        while done[-1].finished and len(done) <= request.rounds:
            done.append(_run_round(context, len(done)))
        rounds = tuple(
            describe_round(k, context.round_place(k), one, request, context.labels_place(k), context.earlier_labels(k))
            for k, one in enumerate(done)
        )
        best = best_round(rounds)
        if not done[-1].finished:
            return _result(context, rounds, best, finished=False)
        # the labels that the final ones are compared with: the kept student's own, or another teacher's last
        compared = best or (request.rounds if request.rounds > 1 else None)
        labels = None if compared is None else read_labels(context.labels_place(compared))
        paired = _compare_with_teacher(context, best)
        final = _final_labels(context, best, labels)
        with new_folder(folder / "bundle") as place:
            for path in (context.round_place(best) / "bundle").iterdir():
                if path.name != MANIFEST:
                    shutil.copyfile(path, place / path.name)
        changed = len(final.changed(labels))
        result = _result(context, rounds, best, finished=True, changed=changed, paired=paired)
        page = rounds_page(folder, request, result, context.unlabelled, final, labels, compared)
        write_result(folder, "self-train", result.to_json(), page)
    return result


def _open_images(
    request: SelfTrainRequest, folder: Path, runtime: Runtime, callbacks: Callbacks, deadline: Deadline | None
) -> SelfTrainContext:
    whole = note_duplicates(open_dataset(request.labelled))
    unlabelled, notes = open_unlabelled(request.unlabelled)
    others = without_duplicates(unlabelled, list(whole.splits.values()))
    if not len(others):
        raise UserError(
            f"{request.unlabelled}: all {len(unlabelled):,} images are among the labelled ones ({request.labelled}), "
            "so there is nothing to label; give other images."
        )
    duplicates = len(unlabelled) - len(others)
    left_out = (f"{duplicates:,} of {request.unlabelled}'s images are labelled ones, and left out.",) * bool(duplicates)
    base = None if request.start is None else open_weights(request.start, request.preprocess)
    training = choose_training(request.splitting(), whole, base, runtime.device.type)
    labelled = replace(split_for(training, whole), notes=())
    notes = (*whole.notes, *notes, *left_out)
    return SelfTrainContext(folder, runtime, callbacks, request, labelled, others, duplicates, notes, deadline)


def _has_bundle(folder: Path, callbacks: Callbacks) -> bool:
    try:
        load_bundle(folder / "bundle")
    except UserError as error:
        callbacks.message(f"{str(error).rstrip('.')}: it is written again from the kept round.")
        return False
    return True


def _check_rounds(context: SelfTrainContext) -> None:
    """Refuse what no round could do, before anything is written."""
    request, data = context.request, context.labelled
    base = None if request.start is None else open_weights(request.start, request.preprocess)
    asked: list[FitRequest] = [request.student_round(1, request.budget)]
    if request.teacher is not None:
        open_teacher(request.teacher, data.classes)
    else:
        asked.append(request.first_round(request.budget))
    for one in asked:
        training = choose_training(one, data, base, context.runtime.device.type, is_split=True)
        check_training_memory(training, len(data.train), context.runtime.world)


def _read_round(context: SelfTrainContext, number: int) -> FitResult:
    found = read_result(context.round_place(number))
    assert isinstance(found, FitResult)  # as its request is
    return found


def _run_round(context: SelfTrainContext, number: int) -> FitResult:
    """The result of a round: a teacher (round 0) or a student; read from its folder if the round is finished."""
    request, place, say = context.request, context.round_place(number), context.callbacks.message
    is_given = number == 0 and request.teacher is not None
    if (place / RESULT).exists() and (is_given or (place / REPORT).exists()):  # a page that is lost is written again
        return _read_round(context, number)
    if is_given:
        return _given_teacher(context, str(request.teacher))
    budget = round_budget(context, number)
    if number == 0:
        say(f"Round 0 of {request.rounds}: the teacher learns from the labelled images.")
        fit, method = request.first_round(budget), Labelled(data=lambda _: context.labelled, is_split=True)
    else:
        say(f"Round {number} of {request.rounds}: a noised student.")
        fit = request.student_round(number, budget)
        method = Labelled(
            data=lambda training: student_data(context, training, number),
            is_split=True,
            typical=context.labelled.train,  # validation and test images are like these
            name=f"a noised student of round {number}, {request.pseudo_labels} labels",
        )
    return train(fit, place, context.runtime, context.callbacks, method)


def round_budget(context: SelfTrainContext, number: int) -> str | None:
    """A round's time: as it was when the round began, else an equal fraction of what is left."""
    if context.deadline is None:
        return None
    if (saved := read_config(context.round_place(number))) is not None:
        return saved.request.budget
    reserved = CLOSING_FRACTION * context.deadline.seconds + context.earlier_seconds
    seconds = context.deadline.seconds_per_part(context.request.rounds + 1 - number, reserved)
    return f"{max(MIN_ROUND_SECONDS, seconds):.1f}s"


def _given_teacher(context: SelfTrainContext, place: str) -> FitResult:
    """The given teacher as round 0: copied, so that nothing depends on it any more, and measured."""
    meter, data, folder = Meter(), context.labelled, context.round_place(0)
    bundle = open_classifier(place)
    teacher = teacher_from_bundle(bundle, data.classes, place, context.runtime.device)
    measured = {
        split: score_classes(
            *prepare_teacher_targets(teacher, data.splits[split], context.runtime.workers), data.classes
        )
        for split in ("val", "test")
        if split in data.splits
    }
    network, seen = bundle.model.cpu(), bundle.seen_images
    save_bundle(folder / "bundle", network, bundle.preprocess, bundle.labels, info=bundle.info, seen_images=seen)
    result = FitResult(
        run=str(folder),
        bundle=str(folder / "bundle"),
        finished=True,
        classes=data.classes,
        images=0,
        steps=0,
        best_step=0,
        validation=measured.get("val"),
        test=measured.get("test"),
        metrics={},
        probe=None,
        spent=meter.spent(),
    )
    write_file(folder / RESULT, json.dumps(result.to_json(), indent=2) + "\n")
    return result


def _compare_with_teacher(context: SelfTrainContext, best: int) -> Paired | None:
    """The kept student and the first teacher on the test images, or on the validation images if there are none.

    None if the teacher is kept, or without such images. If the time is too short, both predict a random subset.
    """
    if (context.folder / RESULT).exists():  # only the page or the bundle is lost
        return read_self_training(context.folder).against_teacher
    data, deadline = context.labelled, context.deadline
    split = next((name for name in ("test", "val") if name in data.splits), None)
    if best == 0 or split is None:
        return None
    left = None if deadline is None else deadline.left() - deadline.writing - context.earlier_seconds
    seconds = None if left is None else PAIRING_FRACTION * max(0.0, left)
    source, right = random_subset(data.splits[split], context.request.seed), []
    for number in (0, best):
        began = time.monotonic()
        model = open_teacher(context.round_place(number), data.classes, context.runtime.device)

        def late(began: float = began) -> bool:
            return seconds is not None and time.monotonic() - began > seconds / 2

        logits, labels = prepare_teacher_targets(model, source, context.runtime.workers, late)
        right.append(is_right(logits, labels).numpy())
    both = min(map(len, right))  # both saw the images in one order
    return Paired.of(split, right[0][:both], right[1][:both]) if both else None


def _final_labels(context: SelfTrainContext, best: int, earlier: Labelling | None) -> Labelling:
    place, data, deadline = context.folder / "labels" / "final", context.labelled, context.deadline
    if (kept := read_labels(place)) is not None:
        return kept
    teacher = open_teacher(context.round_place(best), data.classes, context.runtime.device)
    end = float("inf")
    if deadline is not None:
        end = max(deadline.seconds - deadline.writing - context.earlier_seconds, deadline.now() + 1)
    final = label_images(
        teacher,
        context.unlabelled,
        data.splits.get("val"),
        seed=context.request.seed,
        workers=context.runtime.workers,
        late=lambda: deadline is not None and deadline.now() > end,
    )
    write_labels(place, final, context.unlabelled, data.classes, earlier=earlier)
    return final


def _result(
    context: SelfTrainContext,
    rounds: tuple[Round, ...],
    best: int,
    *,
    finished: bool,
    changed: int = 0,
    paired: Paired | None = None,
) -> SelfTrainResult:
    data, given = context.labelled, context.request.teacher is not None and finished
    choices = choice_remarks(rounds, best, context.request, len(data.classes)) if finished else ()
    return SelfTrainResult(
        run=str(context.folder),
        bundle=str(context.folder / "bundle"),
        finished=finished,
        classes=data.classes,
        labelled=len(data.train),
        unlabelled=len(context.unlabelled),
        duplicates=context.duplicates,
        rounds=rounds,
        best=best,
        changed=changed,
        spent=sum((one.spent for one in rounds), Cost()),
        against_teacher=paired,
        remarks=(*context.notes, *round_remarks(rounds, best, given), *choices),
    )
