"""A transfer of a model: frozen features of every task first, then one fine-tuning after another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from vitreous.callbacks import Callbacks
from vitreous.config.fields import from_fields
from vitreous.data.datasets.store import data_root
from vitreous.errors import UserError
from vitreous.inference.engine import InferenceModel
from vitreous.inference.opening import CONVERSION_PAYS_SECONDS, open_engine, open_model
from vitreous.inference.speed import machine_features
from vitreous.inputs import counted, read_json
from vitreous.interrupt import Interrupted
from vitreous.model.family import count_flops, count_parameters
from vitreous.storage.files import write_file
from vitreous.studies.folder import StoppedError, StudyConfig, hold_study, open_deadline, open_study, write_result
from vitreous.studies.requests import Protocol, TransferRequest
from vitreous.studies.transfer.finetuning import FINE_TUNED, TransferContext, measure_fine_tuned
from vitreous.studies.transfer.frozen import FROZEN, measure_frozen
from vitreous.studies.transfer.page import transfer_page
from vitreous.studies.transfer.result import Absent, Task, TaskScore, TransferredModel, TransferResult
from vitreous.studies.transfer.tasks import OpenTask, name_tasks, open_task
from vitreous.training.deadline import MARGIN, Deadline, format_budget
from vitreous.training.folder import CONFIG, DataIdentity, run_folder, run_name
from vitreous.training.start import Runtime
from vitreous.weights.adapt import adapt
from vitreous.weights.bundle import Bundle, weights_digest

WRITING_SECONDS = 4.0  # what the page takes on two quiet cores
MIN_SECONDS = 20.0  # below which nothing can be learned or measured that is worth a line


class TaskUnit(NamedTuple):
    """What gets an equal part of the time: one fine-tuning, or all protocols that share a task's features."""

    task: OpenTask
    protocols: tuple[Protocol, ...]


def transfer(
    request: TransferRequest, out: str | Path | None, runtime: Runtime, callbacks: Callbacks, *, overwrite: bool = False
) -> TransferResult:
    """Transfer a model to every task under every protocol, or resume that: finished units are only read."""
    deadline = open_deadline(request.budget, WRITING_SECONDS, runtime, callbacks)
    tasks, missing = _open_tasks(request)
    given = open_model(request.model, request.preprocess)
    name = f"{run_name(request.model)}-transfer"
    folder, *_ = [run_folder(out, task.place, name) for task in tasks]  # refused where it lies among any images
    plan: dict[str, Any] = {
        "weights": weights_digest(given.model),
        "tasks": {one.name: asdict(one.summary) for one in tasks},
    }
    config = StudyConfig(request, {one.name: DataIdentity.of(one.data) for one in tasks}, plan)
    places = {one.name: one.summary.place for one in tasks}
    saved = open_study(folder, config, places, ("tasks", "protocols"), overwrite=overwrite)
    if saved is not None:
        if saved.plan["weights"] != plan["weights"]:
            raise UserError(
                f"{request.model}: other weights than when {folder} began; bring those back to go on with it, begin "
                "anew with --overwrite, or write to another folder (--out)."
            )
        known = {**saved.plan, "tasks": {**saved.plan["tasks"], **plan["tasks"]}}
        config = replace(config, data={**saved.data, **config.data}, plan=known)
    bundle = given
    if request.image_size is not None:
        network, preprocess = adapt(given.model, given.preprocess, image_size=request.image_size)
        bundle = replace(given, model=network, preprocess=preprocess)
    context = TransferContext(folder, runtime, callbacks, request, given)
    units = _units_left(tasks, request.protocols, None if overwrite else folder)
    if deadline is not None and units:
        _check_time(deadline, len(units))
    absent = list(missing)
    complete = False
    with hold_study(folder, "transfer", saved, callbacks, overwrite):
        config.write(folder)
        for one in missing:
            callbacks.message(f"{one.task}: missing, {one.reason}.")
        try:
            model = _open_frozen(context, bundle, units, deadline)
            for number, unit in enumerate(units):
                seconds = None if deadline is None else deadline.seconds_per_part(len(units) - number)
                for score in _measure(context, model, unit, seconds):
                    if isinstance(score, TaskScore):
                        _write_score(context, score)
                        continue
                    callbacks.message(f"{score.task}, {score.protocol}: left out ({score.reason}).")
                    absent.append(score)
            complete = True
        except (StoppedError, Interrupted):  # what is there by then is written
            pass
        known_tasks = {name: from_fields(Task, one, folder / CONFIG) for name, one in config.plan["tasks"].items()}
        result = _result(context, bundle, tasks, known_tasks, absent, complete)
        if complete and not any(score.task in places for score in result.scores):
            first = next(one for one in absent if one.protocol is not None)
            raise UserError(f"{first.task}, {first.protocol}: {first.reason}.")
        if result.scores or complete:
            write_result(folder, "transfer", result.to_json(), transfer_page(result))
    return result


def _open_tasks(request: TransferRequest) -> tuple[tuple[OpenTask, ...], tuple[Absent, ...]]:
    """The tasks whose data are on this machine, opened, and the others."""
    if not request.protocols:
        raise UserError("protocols: none given; give some, such as vtab-1k or linear.")
    named = name_tasks(request.tasks)
    missing = tuple(
        task.absent(None, f"not in {data_root()}; get it with `vitreous data get {task.name}`")
        for task in named
        if not task.on_machine
    )
    if len(missing) == len(named):
        raise UserError(
            f"tasks: the data of none of them are here: {missing[0].task} is {missing[0].reason} (or set VITREOUS_DATA "
            "to the folder that has it)."
        )
    return tuple(open_task(task) for task in named if task.on_machine), missing


def _check_time(deadline: Deadline, units: int) -> None:
    """Refuse a time in which not even the least of each can be done."""
    if deadline.seconds_per_part(units) < MIN_SECONDS:
        needed = units * MIN_SECONDS / MARGIN + deadline.writing + deadline.seconds - deadline.left()
        raise UserError(
            f"budget {deadline.text!r}: too short to do {counted(units, 'thing')} of at least {MIN_SECONDS:g} s "
            f"each; give at least {format_budget(needed + 5)}, or fewer tasks or protocols."
        )


def _units_left(tasks: Sequence[OpenTask], protocols: Sequence[Protocol], folder: Path | None) -> list[TaskUnit]:
    """What is left to do, in its order. folder: of the scores that are done; None for a new one."""
    left: list[TaskUnit] = []
    frozen = [protocol for protocol in FROZEN if protocol in protocols]
    for together in (frozen, *([protocol] for protocol in FINE_TUNED if protocol in protocols)):
        for task in tasks:
            name = task.name
            missing = [one for one in together if folder is None or read_score(folder, name, one) is None]
            if missing:
                left.append(TaskUnit(task, tuple(missing)))
    return left


def _score_place(folder: Path, task: str, protocol: Protocol) -> Path:
    return folder / "scores" / f"{task}-{protocol}.json"


def read_score(folder: Path, task: str, protocol: Protocol) -> TaskScore | None:
    """What was measured before; None if nothing was yet."""
    place = _score_place(folder, task, protocol)
    if not place.exists():
        return None
    try:
        return from_fields(TaskScore, read_json(place), place)
    except UserError:
        raise UserError(f"{place}: damaged, or of another vitreous; delete it and repeat the command.") from None


def _write_score(context: TransferContext, score: TaskScore) -> None:
    place = _score_place(context.folder, score.task, score.protocol)
    place.parent.mkdir(exist_ok=True)
    write_file(place, json.dumps(asdict(score), indent=2, allow_nan=False) + "\n")
    low, high = score.interval
    context.callbacks.message(
        f"{score.task}, {score.protocol}: {score.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%}; images: "
        f"{score.tested}), {score.seconds:.0f} s"
    )


def _measure(
    context: TransferContext, model: InferenceModel | None, unit: TaskUnit, seconds: float | None
) -> list[TaskScore | Absent]:
    """The scores of a unit; what has to be left out, and why."""
    task = unit.task
    if seconds is not None and seconds < MIN_SECONDS / 2:
        reason = "there was no time left for it; give a longer budget"
        return [task.absent(protocol, reason) for protocol in unit.protocols]
    try:
        if unit.protocols[0] not in FROZEN:
            return [measure_fine_tuned(context, task, unit.protocols[0], seconds)]
        assert model is not None
        return measure_frozen(
            model,
            task,
            unit.protocols,
            seconds,
            workers=context.runtime.workers,
            progress=context.callbacks.progress,
            already_counted=any(read_score(context.folder, task.name, one) is not None for one in FROZEN),
        )
    except UserError as error:  # too few images for this protocol, say: the other tasks can be measured
        reason = str(error).rstrip(".")
        return [task.absent(protocol, reason) for protocol in unit.protocols]


def _open_frozen(
    context: TransferContext, bundle: Bundle, units: Sequence[TaskUnit], deadline: Deadline | None
) -> InferenceModel | None:
    """The model, ready to be asked for features; None where no protocol that is left asks for any."""
    frozen = [unit for unit in units if unit.protocols[0] in FROZEN]
    if not frozen:
        return None
    hurried = deadline is not None and deadline.seconds_per_part(len(units)) * len(frozen) < 2 * CONVERSION_PAYS_SECONDS
    return open_engine(
        bundle,
        engine="torch" if hurried else "auto",
        precision="fp32",  # the model itself is measured, not its int8 version
        device=str(context.runtime.device),
        images=sum(len(source) for unit in frozen for source in unit.task.data.splits.values()),
        classifier=False,
    )


def _result(
    context: TransferContext,
    bundle: Bundle,
    tasks: Sequence[OpenTask],
    known: Mapping[str, Task],
    absent: Sequence[Absent],
    complete: bool,
) -> TransferResult:
    """What there is so far, with what earlier commands measured of `known` tasks."""
    request, config = context.request, bundle.model.config
    every = (read_score(context.folder, task, protocol) for task in known for protocol in get_args(Protocol))
    scores = [score for score in every if score is not None]
    measured = {score.task for score in scores}
    shown = {one.name: one.summary for one in tasks}
    shown |= {name: task for name, task in known.items() if name in measured}
    protocols = tuple(dict.fromkeys((*request.protocols, *(score.protocol for score in scores))))
    order = list(shown)
    return TransferResult(
        out=str(context.folder),
        finished=complete,
        model=TransferredModel(
            name=run_name(request.model),
            description=config.describe(),
            parameters=count_parameters(config),
            image_size=config.image_size,
            forward_flops=count_flops(config),
            digest=weights_digest(context.given.model),
            training_flops=training_flops(bundle.info),
        ),
        protocols=protocols,
        budget=request.budget,
        image_size=request.image_size,
        preprocess=asdict(bundle.preprocess),
        tasks=tuple(shown.values()),
        scores=tuple(sorted(scores, key=lambda one: (order.index(one.task), protocols.index(one.protocol)))),
        absent=tuple(absent),
        machine=machine_features(context.runtime.device),
        seconds=sum(score.seconds for score in scores),
        remarks=tuple(bundle.notes),
    )


def training_flops(info: Mapping[str, Any]) -> float | None:
    """What all of a model's training took; None where its bundle does not say it.

    A bundle knows only its last training: None if that started from other weights.
    """
    request, spent = info.get("request"), info.get("spent")
    if not isinstance(spent, dict) or (isinstance(request, dict) and request.get("weights") is not None):
        return None
    return float(spent["flops"]) if spent.get("flops") else None
