"""One training, from data to bundle: open, plan, start, train, measure, write.

`train` is the whole of it. What differs between learning with labels and without is its `method`: `labelled.Labelled`
or `unlabelled.Unlabelled`. A training that was interrupted is resumed by the same call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from vitreous.callbacks import Callbacks
from vitreous.data.source import Data
from vitreous.distributed.launcher import local_world_size
from vitreous.distributed.meter import Meter
from vitreous.distributed.process_group import announce_failure
from vitreous.errors import UserError
from vitreous.inputs import counted
from vitreous.model.family import build_network
from vitreous.model.lora import merge_lora
from vitreous.model.network import Network
from vitreous.objectives.objective import Objective
from vitreous.storage.files import write_file
from vitreous.training.deadline import Deadline, Replanner, plan_steps
from vitreous.training.folder import (
    RESULT,
    RunConfig,
    check_same_request,
    lock_run_folder,
    open_run,
    save_extra,
    training_to_json,
)
from vitreous.training.loop import Loop, Outcome, check_tensorboard, tracked
from vitreous.training.method import Method, Opened, RequestT, Result, Start, TrainingContext
from vitreous.training.page import restore_run_page, write_run_page
from vitreous.training.request import FitRequest, PretrainRequest
from vitreous.training.result import FitResult, PretrainResult, read_result
from vitreous.training.start import Runtime, open_consistent, training_loader
from vitreous.training.step import StepSchedule, check_training_memory
from vitreous.weights.bundle import Bundle, load_bundle, save_bundle
from vitreous.weights.seen_images import SeenImages, find_seen_images

NO_STEPS = "There is no time to train further: the result is the classifier on frozen features."
ONE_STEP = "There is no time to train: one step is taken, which teaches next to nothing."

MAX_HASHING = 0.03  # the fraction of a budget that may go to telling which images the training has seen


def train(
    request: RequestT,
    folder: Path,
    runtime: Runtime,
    callbacks: Callbacks,
    method: Method[RequestT, Result],
    *,
    overwrite: bool = False,
) -> Result:
    """Train in a run folder, or resume what was begun there; what came of it. overwrite: a training that the folder
    holds is deleted as soon as the new request is known to be sound."""
    with _failures_announced(), ExitStack() as held, ExitStack() as loaders:
        if runtime.tensorboard:
            check_tensorboard()
        meter, world = Meter(began=callbacks.started), runtime.world
        deadline = None if request.budget is None else Deadline(request.budget, method.writing_seconds, meter, world)
        if not world.is_main:
            callbacks = Callbacks(should_stop=callbacks.should_stop, started=callbacks.started)
        context = TrainingContext(request, folder, runtime, world, callbacks, meter, deadline, loaders)
        saved = None if overwrite else world.on_main(lambda: _open_folder(request, folder))
        if saved is not None and (result := world.on_main(lambda: _finished(context, method, saved))):
            return result
        data = open_consistent(lambda: method.open_data(context), str(request.data), world)
        if saved is not None:
            saved.check_data(data, folder)
            context = _resuming(context, saved)
        opened = method.open(context, data, saved)
        check_training_memory(opened.training, len(opened.data.train), world, local_world_size())
        # not before: a mistake in the request should leave nothing behind
        resumed = world.on_main(lambda: lock_run_folder(folder, saved, held, callbacks.message, overwrite))
        _report_start(context, opened, resumed=saved is not None)
        seen = world.on_main(lambda: _find_seen_images(context, opened, method.keep_last))
        loader = training_loader(opened.data.train, opened.training, runtime.workers, world)
        loaders.enter_context(closing(loader))
        start = method.start(context, opened, loader, saved, resumed)
        opened = replace(opened, training=start.training)
        meter.end_stage("start")
        config, replan = (saved, False) if saved is not None else _plan(context, data, opened, start)
        outcome, config = _take_steps(context, method.keep_last, start, config, replan)
        meter.end_stage("steps")
        # with a budget, the clock may have changed the steps
        training = replace(config.training, epochs=config.schedule.steps / loader.steps_per_epoch)
        network = build_network(training.model, seed=None)
        network.load_state_dict(merge_lora(outcome.best["model"]))
        opened = replace(opened, training=training)
        result, labels, card = method.measure(context, opened, start, config, network.eval(), outcome)
        if world.is_main:
            bundle = _write_bundle(context, opened, network, outcome, result, labels, card, seen)
            if outcome.finished and method.page:
                seconds = None if context.deadline is None else context.deadline.left()
                write_run_page(folder, bundle, config, result, seconds)
            meter.end_stage("writing")
            result = replace(result, spent=replace(result.spent, stages=meter.spent().stages))
            if outcome.finished:
                write_file(folder / RESULT, json.dumps(result.to_json(), indent=2) + "\n")
        return result


@contextmanager
def _failures_announced() -> Iterator[None]:
    """Within, an error is told to the other processes, which would else wait for this one."""
    try:
        yield
    except BaseException as error:
        if (lost := announce_failure(error)) is not None:
            raise lost from error
        raise


def _open_folder(request: FitRequest | PretrainRequest, folder: Path) -> RunConfig | None:
    """The configuration of the training that was begun in the folder; refused where the request is another."""
    saved = open_run(folder)
    if saved is not None:
        check_same_request(saved, request, folder)
    return saved


def _finished(context: TrainingContext[RequestT], method: Method[RequestT, Result], saved: RunConfig) -> Result | None:
    """What a finished training came to; None if it is not finished, or if its bundle has to be written again."""
    folder, message = context.folder, context.callbacks.message
    if not (folder / RESULT).exists():
        return None
    result = read_result(folder)
    try:
        data: Data | None = method.open_data(context)
    except UserError as error:
        message(f"Its data cannot be compared with those that it learned from: {error}")
        data = None
    if data is not None:
        saved.check_data(data, folder, finished=True)
    if not (folder / "bundle").exists():
        message(f"{folder / 'bundle'}: is missing, and is written again from the last checkpoint.")
        (folder / RESULT).unlink()
        return None
    try:
        load_bundle(folder / "bundle")
    except UserError as error:
        raise UserError(
            f"{str(error).rstrip('.')}; or delete {folder / 'bundle'} and repeat the command: it is then written again "
            "from the last checkpoint."
        ) from None
    message(restore_run_page(folder) if method.page else f"{folder} is finished; nothing to do.")
    return result  # type: ignore[return-value]  # its kind is that of the request


def _resuming(context: TrainingContext[RequestT], saved: RunConfig) -> TrainingContext[RequestT]:
    """Without a deadline: resuming exactly comes before the time."""
    if context.deadline is not None:
        context.callbacks.message(
            f"The budget of {context.request.budget} counted until the interruption; the plan that was made then, "
            f"{saved.schedule.steps:,} steps, is kept."
        )
    return replace(context, deadline=None)


def _report_start(context: TrainingContext[RequestT], opened: Opened, resumed: bool) -> None:
    model, data = opened.training.model, opened.data
    images = ", ".join(f"{len(source):,} {split}" for split, source in data.splits.items())
    classes = f" of {len(data.classes)} classes" if data.classes else ""
    context.callbacks.message(
        f"{'Resuming' if resumed else 'Training'}: {model.describe()} at {model.image_size[0]}x{model.image_size[1]} "
        f"({opened.title}): {images} images{classes}."
    )
    for note in data.notes:
        context.callbacks.message(note)


def _find_seen_images(context: TrainingContext[RequestT], opened: Opened, keep_last: bool) -> SeenImages:
    """Of this training, and of the one that its weights came from. With a budget within a fraction of it."""
    seconds = None if context.deadline is None else MAX_HASHING * context.deadline.seconds
    seen = find_seen_images(opened.data, () if keep_last else ("val",), seconds)
    base, weights = opened.base, getattr(context.request, "weights", None)
    if base is None and weights is not None:
        with suppress(UserError):  # of a training that is resumed, the weights may be gone
            base = load_bundle(weights)
    return seen if base is None or base.seen_images is None else seen.union(base.seen_images)


def _plan(context: TrainingContext[RequestT], data: Data, opened: Opened, start: Start) -> tuple[RunConfig, bool]:
    """The configuration with its number of steps, as the folder keeps it; with a budget a first guess, which is planned
    again while the steps are taken, if there is time for some."""
    training, replan, message = opened.training, False, context.callbacks.message
    steps = int(training.epochs and max(1, round(training.epochs * start.loader.steps_per_epoch)))
    if context.deadline is not None:
        if start.reserved is not None:
            training, steps = plan_steps(training, start.reserved, context.deadline)
            training = replace(training, epochs=steps / start.loader.steps_per_epoch)
        replan = steps > 1
        if not replan:
            message(ONE_STEP if steps else NO_STEPS)
    config = RunConfig.of(
        context.request,
        training,
        steps,
        data,
        weights=opened.weights,
        teacher=None if opened.teacher is None else opened.teacher.digest,
        teacher_flops=opened.teacher_flops,
        start=opened.start,
        probe=start.probe,
        subsets=start.subsets,
    )
    if context.world.is_main:
        config.write(context.folder)
    if start.on_plan is not None:
        start.on_plan(training, steps)
    if start.probe is not None and steps:
        frozen, layers = training.freeze, training.model.layers
        kept = f"; the first {frozen} of {layers} layers stay as they are" if frozen else ""
        number = "as many steps as there is time for" if replan else counted(steps, "step")
        message(f"Training goes on from there for {number}{kept}.")
    return config, replan


def _take_steps(
    context: TrainingContext[RequestT], keep_last: bool, start: Start, config: RunConfig, replan: bool
) -> tuple[Outcome, RunConfig]:
    """Train to the end, or until it is stopped; what came of it, and the configuration with its last replanning.
    replan: plan the number of steps again while they are taken."""
    schedule, meter, deadline, replanner = StepSchedule(config.steps, config.replans), context.meter, None, None

    def replanned() -> RunConfig:
        return replace(config, replans=tuple(schedule.replans))

    def write() -> None:
        if context.world.is_main:
            replanned().write(context.folder)

    if replan and context.deadline is not None and start.reserved is not None:
        deadline = context.deadline
        replanner = Replanner(schedule, config.training, start.reserved, deadline, write)

    def evaluate(objective: Objective) -> dict[str, float]:
        assert start.evaluate is not None
        meter.end_stage("steps")
        began = 0.0 if deadline is None else deadline.now()
        found = start.evaluate(objective)
        if replanner is not None and deadline is not None:
            replanner.evaluated(deadline.now() - began)
        meter.end_stage("validation")
        return found

    loop = Loop(
        start.objective,
        start.loader,
        config.training,
        schedule,
        context.folder,
        evaluate=None if start.evaluate is None else evaluate,
        keep_last=keep_last,
        meter=meter,
        check_clock=None if replanner is None else replanner.check,
    )
    with ExitStack() as stack:
        step = start.on_step
        if context.runtime.tensorboard and context.world.is_main:
            step = stack.enter_context(tracked(step, context.folder))
        outcome = loop.run(step, context.callbacks.should_stop)
    for remark in outcome.remarks:
        context.callbacks.message(remark)
    return outcome, replanned()


def _write_bundle(
    context: TrainingContext[RequestT],
    opened: Opened,
    network: Network,
    outcome: Outcome,
    result: FitResult | PretrainResult,
    labels: Sequence[str],
    card: str,
    seen: SeenImages,
) -> Bundle:
    """The model, and what is saved beside it."""
    training = opened.training
    for name, tensors in outcome.best.items():
        if name != "model":
            save_extra(context.folder / name, tensors, training)
    request = asdict(context.request) | ({} if opened.start is None else {"weights": opened.start})
    info = {
        "request": request,
        "training": training_to_json(training),
        "spent": asdict(result.spent),
    }
    place = context.folder / "bundle"
    save_bundle(place, network, training.preprocess, labels, card=card, info=info, seen_images=seen)
    return Bundle(network, training.preprocess, tuple(labels), info, place, seen_images=seen)
