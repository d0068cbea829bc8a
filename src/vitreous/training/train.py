"""One training, from data to bundle: open, plan, start, train, measure, write.

`train` is the whole of it. What differs between learning with labels and without is its `method`: `labelled.Labelled`
or `unlabelled.Unlabelled`. A training that was interrupted is resumed by the same call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from vitreous.callbacks import Callbacks
from vitreous.config.train import Training
from vitreous.data.shards.opening import is_shards
from vitreous.data.source import Data
from vitreous.distributed.launcher import local_rank, local_world_size
from vitreous.distributed.meter import Meter
from vitreous.distributed.process_group import announce
from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.inference.memory_needs import check_training_memory
from vitreous.model.family import build_network
from vitreous.model.lora import merge_lora
from vitreous.model.network import Network
from vitreous.storage.files import write_file
from vitreous.storage.lock import hold_folder
from vitreous.storage.overwrite import check_folder
from vitreous.training.checkpoint import has_checkpoint
from vitreous.training.context import Ending, Method, Opened, RequestT, Result, Runtime, Start, TrainingContext
from vitreous.training.deadline import Deadline, Replanner, StepTimes, plan_steps
from vitreous.training.folder import (
    RESULT,
    ConfigFile,
    RunConfig,
    check_finished,
    check_same_request,
    digest_splits,
    make_run_folder,
    open_run,
    remove_run,
    save_extra,
    training_to_json,
)
from vitreous.training.loop import Loop, Outcome
from vitreous.training.page import restore_run_page, write_run_page
from vitreous.training.result import read_result
from vitreous.training.start import training_loader
from vitreous.training.step import StepSchedule
from vitreous.training.track import check_tensorboard, tracked
from vitreous.weights.bundle import Bundle, load_bundle, save_bundle

NO_STEPS = "The time that is left is too short to train further: the classifier on frozen features is the result."
ONE_STEP = "With what is left to measure and to write, the time is up: one step is taken."


def train(
    request: RequestT,
    folder: Path,
    runtime: Runtime,
    callbacks: Callbacks,
    method: Method[RequestT, Result],
    *,
    overwrite: bool = False,
) -> Result:
    """Train in a run folder, or resume what was begun there; what came of it.

    overwrite: a training that the folder holds is deleted as soon as the new request is known to be sound.
    """
    with _failures_announced(), ExitStack() as held, ExitStack() as loaders:
        context = _begin(request, folder, runtime, callbacks, method, loaders)
        saved = None if overwrite else context.world.on_main(lambda: _open_folder(context))
        if saved is not None and (result := context.world.on_main(lambda: _finished(context, method, saved))):
            return result
        data = _open_consistent(lambda: method.open_data(context), str(request.data), context.world)
        if saved is not None:
            saved.check_data(data, folder)
            context = _resuming(context, saved)
        opened = method.open(context, data, saved)
        check_training_memory(opened.training, len(opened.data.train), context.world, local_world_size())
        # not before: a mistake in the request should leave nothing behind
        resumed = context.world.on_main(lambda: _claim_folder(context, saved, held, overwrite))
        _say_what(context, opened, method.title(context, opened.training), resumed=saved is not None)
        loader = context.keep_open(training_loader(opened.data.train, opened.training, runtime.workers, context.world))
        start = method.start(context, opened, loader, saved, resumed)
        config, times = _plan(context, method, data, opened, start, saved)
        outcome, schedule = _take_steps(context, method, opened, start, config, times)
        # with a budget, the clock may have changed the steps
        training = replace(config.training, epochs=schedule.steps / loader.steps_per_epoch)
        opened = replace(opened, training=training)
        network = _kept_network(training, outcome)
        ending = method.measure(context, opened, start, config, network, outcome)
        if context.world.is_main:
            _write(context, method, opened, network, outcome, ending, config)
        return ending.result


@contextmanager
def _failures_announced() -> Iterator[None]:
    """Within, an error is told to the other processes, which would else wait for this one."""
    try:
        yield
    except BaseException as error:
        if (lost := announce(error)) is not None:
            raise lost from error
        raise


def _begin(
    request: RequestT,
    folder: Path,
    runtime: Runtime,
    callbacks: Callbacks,
    method: Method[RequestT, Result],
    loaders: ExitStack,
) -> TrainingContext[RequestT]:
    if runtime.tensorboard:
        check_tensorboard()
    meter, world = Meter(began=callbacks.started), runtime.world
    deadline = None if request.budget is None else Deadline(request.budget, method.writing_seconds, meter, world)
    if not world.is_main:
        callbacks = Callbacks(should_stop=callbacks.should_stop, started=callbacks.started)
    return TrainingContext(request, folder, runtime, callbacks, meter, deadline, loaders)


def _open_folder(context: TrainingContext[RequestT]) -> RunConfig | None:
    """The configuration of the training that was begun in the folder; refused where the request is another."""
    saved = open_run(context.folder)
    if saved is not None:
        check_same_request(saved, context.request, context.folder)
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
        check_finished(saved, data, folder)
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


def _open_consistent(open_data: Callable[[], Data], place: str, world: World) -> Data:
    """What `open_data` gives, refused where another process sees other images or labels at that place.

    Of shards one process per machine makes or fetches the index, which is then there for the others.
    """
    if world.size == 1:
        return open_data()
    waits = is_shards(place) and local_rank() > 0
    data = None if waits else open_data()
    world.any_rank(False)  # until all have come so far
    opened = open_data() if data is None else data
    found = world.all_gather_object((opened.classes, digest_splits(opened)))
    for rank, other in enumerate(found):
        if other != found[0]:
            raise UserError(
                f"{place}: process {rank} sees other images, classes or labels there than process 0; give all machines "
                "the same data."
            )
    return opened


def _resuming(context: TrainingContext[RequestT], saved: RunConfig) -> TrainingContext[RequestT]:
    """Without a deadline: resuming exactly comes before the time."""
    if context.deadline is not None:
        context.callbacks.message(
            f"The budget of {context.request.budget} counted until the interruption; the plan that was made then, "
            f"{saved.schedule.steps:,} steps, is kept."
        )
    return replace(context, deadline=None)


def _claim_folder(
    context: TrainingContext[RequestT], saved: RunConfig | None, held: ExitStack, overwrite: bool
) -> bool:
    """Make the run folder ours until the end, and say whether it has a checkpoint.

    One that is another's, or that another training is in, is refused.
    """
    folder = context.folder
    check_folder(folder / "bundle")
    make_run_folder(folder)
    held.enter_context(hold_folder(folder, context.callbacks.message))
    if overwrite and open_run(folder) is not None:
        remove_run(folder)
        make_run_folder(folder)
    if open_run(folder) != saved or (folder / RESULT).exists():
        raise UserError(f"{folder}: another process has just trained in it; repeat the command.")
    return has_checkpoint(folder / "checkpoints")


def _say_what(context: TrainingContext[RequestT], opened: Opened, title: str, resumed: bool) -> None:
    model, data = opened.training.model, opened.data
    images = ", ".join(f"{len(source):,} {split}" for split, source in data.splits.items())
    classes = f" of {len(data.classes)} classes" if data.classes else ""
    context.callbacks.message(
        f"{'Resuming' if resumed else 'Training'}: {model.describe()} at {model.image_size[0]}x{model.image_size[1]} "
        f"({title}): {images} images{classes}."
    )
    for note in data.notes:
        context.callbacks.message(note)


def _plan(
    context: TrainingContext[RequestT],
    method: Method[RequestT, Result],
    data: Data,
    opened: Opened,
    start: Start,
    saved: RunConfig | None,
) -> tuple[ConfigFile, StepTimes | None]:
    """The configuration with its number of steps, as the folder keeps it; with a budget, as many as fit."""
    if saved is not None:
        return ConfigFile(context.folder, saved, context.world.is_main), None
    training, times = opened.training, None
    if context.deadline is not None:
        reserved = method.reserve(opened, start, context.deadline)
        training, times = plan_steps(training, start.objective, start.loader, reserved, context.deadline, context.world)
        if times is None:
            context.callbacks.message(NO_STEPS if training.epochs == 0 else ONE_STEP)
    steps = training.epochs and max(1, round(training.epochs * start.loader.steps_per_epoch))
    config = RunConfig.of(
        context.request,
        training,
        int(steps),
        data,
        weights=opened.weights,
        teacher=None if opened.teacher is None else opened.teacher.digest,
        teacher_flops=opened.teacher_flops,
        probe=start.probe,
        subsets=start.subsets,
    )
    file = ConfigFile(context.folder, config, context.world.is_main)
    file.update()
    method.describe_start(context, replace(opened, training=training), start, config.steps)
    return file, times


def _take_steps(
    context: TrainingContext[RequestT],
    method: Method[RequestT, Result],
    opened: Opened,
    start: Start,
    config: ConfigFile,
    times: StepTimes | None,
) -> tuple[Outcome, StepSchedule]:
    """Train to the end, or until it is stopped."""
    schedule = config.schedule
    check_clock: Callable[[int], None] = lambda step: None  # noqa: E731
    if times is not None and context.deadline is not None:
        written = lambda: config.update(replans=tuple(schedule.replans))  # noqa: E731
        check_clock = Replanner(schedule, times, context.deadline.now, written).check
    loop = Loop(
        start.objective,
        start.loader,
        config.training,
        schedule,
        context.folder,
        evaluate=start.evaluate,
        keep_last=method.keep_last,
        name_of=opened.data.train.name,
        meter=context.meter,
        check_clock=check_clock,
        world=context.world,
    )
    with ExitStack() as stack:
        step = method.watch(context)
        if context.runtime.tensorboard and context.world.is_main:
            step = stack.enter_context(tracked(step, context.folder))
        outcome = loop.run(step, context.callbacks.should_stop)
    for remark in outcome.remarks:
        context.callbacks.message(remark)
    return outcome, schedule


def _kept_network(training: Training, outcome: Outcome) -> Network:
    network = build_network(training.model, seed=None)
    network.load_state_dict(merge_lora(outcome.best["model"]))
    return network.eval()


def _write(
    context: TrainingContext[RequestT],
    method: Method[RequestT, Result],
    opened: Opened,
    network: Network,
    outcome: Outcome,
    ending: Ending[Result],
    config: ConfigFile,
) -> None:
    """The bundle, what is saved beside it, and of a training that has come to its end the result and the page."""
    folder, training = context.folder, opened.training
    for name, tensors in outcome.best.items():
        if name != "model":
            save_extra(folder / name, tensors, training)
    info = {
        "request": asdict(context.request),
        "training": training_to_json(training),
        "spent": asdict(ending.result.spent),
    }
    save_bundle(folder / "bundle", network, training.preprocess, ending.labels, card=ending.card, info=info)
    if not outcome.finished:
        return
    write_file(folder / RESULT, json.dumps(ending.result.to_json(), indent=2) + "\n")
    if method.page:
        bundle = Bundle(network, training.preprocess, tuple(ending.labels), path=folder / "bundle", info=info)
        seconds = None if context.deadline is None else context.deadline.left()
        write_run_page(folder, bundle, config.config, ending.result, seconds)
