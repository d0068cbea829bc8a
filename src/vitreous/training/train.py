"""The skeleton of every training: request, data, start, plan, loop, finish, report. A verb fills in what differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import torch

from vitreous.callbacks import Callbacks, Event
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Data, Source, Split
from vitreous.distributed.joining import announce
from vitreous.distributed.launcher import local_processes
from vitreous.distributed.meter import Cost, Meter
from vitreous.distributed.world import ALONE, World
from vitreous.errors import UserError
from vitreous.inference.needs import check_training_memory
from vitreous.model.family import build_network, describe
from vitreous.model.lora import merge_lora
from vitreous.model.network import Network
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Objective
from vitreous.objectives.setting import Setting
from vitreous.storage.lock import hold_folder
from vitreous.storage.overwrite import check_folder
from vitreous.training.budget.clock import Clock
from vitreous.training.budget.looking import random_part
from vitreous.training.budget.steps import Afterwards, parse_budget, plan
from vitreous.training.consistency import open_consistent
from vitreous.training.ending import Ending, Result, WriteReport, write_ending
from vitreous.training.folder import REPORT, RESULT, RunConfig, check_same_request, make_run_folder, open_run
from vitreous.training.loaders import training_loader
from vitreous.training.loop import Evaluate, Loop, Outcome
from vitreous.training.pace import Pace, Timekeeper, Timetable
from vitreous.training.request import Request
from vitreous.training.result import FrozenProbe
from vitreous.training.runtime import Runtime
from vitreous.training.state import has_checkpoint
from vitreous.training.track import check_tensorboard, tracked

NO_STEPS = "The time that is left is too short to train further: the classifier on frozen features is the result."
ONE_STEP = "With what is left to measure and to write, the time is up: one step is taken."

Asked = TypeVar("Asked", bound=Request)


class TrainingRun(ABC, Generic[Asked, Result]):
    """One training in a run folder; `run` does it, or what is left of it."""

    keep_last: ClassVar[bool] = False
    """Keep the last weights, not the best by validation."""
    writing: ClassVar[float] = 4.5
    """Seconds that the bundle, the report and the end of the process take on two quiet cores."""

    def __init__(
        self,
        request: Asked,
        folder: Path,
        machine: Runtime,
        callbacks: Callbacks,
        report: WriteReport,
    ) -> None:
        self.meter = Meter(began=callbacks.started)
        self.request, self.folder, self.machine = request, folder, machine
        self.world, self.report = machine.world, report
        # only the first process of several speaks
        self.callbacks = (
            callbacks if self.world.is_main else Callbacks(should_stop=callbacks.should_stop, started=callbacks.started)
        )
        self.clock: Clock | None = None
        if request.budget is not None:
            self.clock = Clock(request.budget, parse_budget(request.budget), self.writing, self.meter, self.world)
        self.probe: FrozenProbe | None = None
        self.weights: str | None = None
        self.taught_by: str | None = None
        self.teacher_flops: float | None = None
        self.unreadable: dict[str, str] = {}
        self.parts: dict[Split, int] = {}
        # what follows is made on the way, in this order
        self.held: ExitStack
        self.open: ExitStack
        self.saved: RunConfig | None = None
        self.config: RunConfig
        self.training: Training
        self.data: Data
        self.checkpointed = False
        self.loader: Loader
        self.objective: Objective
        self.evaluate: Evaluate | None = None

    # What a verb fills in

    @abstractmethod
    def read_result(self) -> Result:
        """What a finished training came to."""

    @abstractmethod
    def open_data(self) -> Data:
        """The data that the request names."""

    @abstractmethod
    def choose_training(self, data: Data) -> Training:
        """What the recipe makes of these data, with what the person set otherwise."""

    @abstractmethod
    def split_data(self, data: Data) -> Data:
        """The data with a val split, where one is wanted."""

    @abstractmethod
    def start_network(self) -> Network:
        """The network before the first step; where there is a checkpoint, that takes its place."""

    @abstractmethod
    def make_evaluate(self) -> Evaluate | None:
        """What is measured now and then on the val split."""

    @abstractmethod
    def afterwards(self, clock: Clock) -> Afterwards:
        """What the time must do for beside the steps, judged by what was measured so far."""

    @abstractmethod
    def end(self, network: Network, outcome: Outcome, pace: Pace) -> Ending[Result]:
        """Measure the kept network, and say what it all came to; it may still change the network."""

    def manner(self) -> str:
        """What it learns by, in a word or two."""
        return self.training.objective.kind

    def setting(self) -> Setting:
        """What the objective may need to know."""
        labels = torch.from_numpy(self.data.train.labels)
        return Setting(self.training.seed, labels, self.world, self.training.preprocess)

    def say_start(self, steps: int) -> None:
        """What is to be said before the first step of a new training."""

    def watch(self, listener: Callable[[Event], None]) -> Callable[[Event], None]:
        """The listener, with what the verb wants to hear itself."""
        return listener

    def work(self, outcome: Outcome, pace: Pace) -> Cost:
        """Images and floating-point operations of the steps."""
        return Cost(images=outcome.images)

    # The skeleton

    def run(self) -> Result:
        """Do what is left to do."""
        try:
            saved, result = self.world.on_main(self._look_into_folder)
            if result is not None:
                return result
            if self.machine.tensorboard:
                check_tensorboard()
            with ExitStack() as self.held, ExitStack() as self.open:
                return self._run(saved)
        except BaseException as error:
            if (lost := announce(error)) is not None:  # else other processes would wait for this one
                raise lost from error
            raise

    def _look_into_folder(self) -> tuple[RunConfig | None, Result | None]:
        """What a training that was begun here needs to go on, and what it came to where it is finished."""
        saved = open_run(self.folder)
        if saved is None:
            return None, None
        check_same_request(saved, self.request, self.folder)
        if not (self.folder / RESULT).exists():
            return saved, None
        result = self.read_result()
        self.callbacks.message(self._restore_report())
        return saved, result

    def _run(self, saved: RunConfig | None) -> Result:
        opened = open_consistent(self.open_data, str(self.request.data), self.world)
        self.saved = saved
        if saved is None:
            self.training = self.choose_training(opened)
        else:
            saved.check_data(opened, self.folder)
            self.training, self.probe, self.weights = saved.training, saved.probe, saved.weights
            self.taught_by, self.teacher_flops = saved.teacher, saved.teacher_flops
            # what the clock has decided stays so: exactness comes before the time
            self.parts, self.clock = dict(saved.parts), None
        self.data = self.split_data(opened)
        check_training_memory(self.training, len(self.data.train), self.world, local_processes())
        # not before: a mistake in the request should leave nothing behind
        self.checkpointed = self.world.on_main(lambda: self._claim_folder(saved))
        self._say_what(resumed=saved is not None)
        self.loader = self.keep_open(training_loader(self.data.train, self.training, self.machine.workers, self.world))
        network = self.start_network()
        self.objective = build_objective(network, self.training.objective, self.setting())
        self.objective.to(self.world.device)
        self.evaluate = self.make_evaluate()
        table: Timetable | None = None
        if saved is None:
            table = self._plan()
            steps = self.training.epochs and max(1, round(self.training.epochs * self.loader.steps_per_epoch))
            saved = RunConfig.of(
                self.request,
                self.training,
                int(steps),
                opened,
                weights=self.weights,
                teacher=self.taught_by,
                teacher_flops=self.teacher_flops,
                probe=self.probe,
                parts=self.parts,
            )
            self._keep_config(saved)
            self.say_start(saved.steps)
        self.config, pace = saved, saved.pace
        return self._finish(self._train(pace, table), pace)

    def _claim_folder(self, saved: RunConfig | None) -> bool:
        """Make the run folder ours until the end, and say whether it has a checkpoint.

        One that is another's, or that another training is in, is refused.
        """
        check_folder(self.folder / "bundle")
        make_run_folder(self.folder)
        self.held.enter_context(hold_folder(self.folder, self.callbacks.message))
        if open_run(self.folder) != saved or (self.folder / RESULT).exists():
            raise UserError(f"{self.folder}: another process has just trained in it; repeat the command.")
        return has_checkpoint(self.folder / "checkpoints")

    def _keep_config(self, config: RunConfig) -> None:
        """Write down what the clock has decided, before it counts."""
        self.config = config
        if self.world.is_main:
            config.write(self.folder)

    def keep_part(self, split: Split, count: int) -> None:
        """Only so many images of a split are looked at, as the time allows no more."""
        self.parts[split] = count
        self._keep_config(self.config.looking(self.parts))

    def part(self, split: Split) -> Source:
        """The images of a split that are looked at: all, but with a budget a random part where the time is short.

        With a budget they come in a random order, so that whoever must stop early has seen a random part too.
        """
        source = self.data.splits[split]
        if self.request.budget is None:
            return source
        return random_part(source, self.training.seed, self.parts.get(split))

    def keep_open(self, loader: Loader) -> Loader:
        """The loader, closed when the training has ended."""
        self.open.callback(loader.close)
        return loader

    @property
    def looking(self) -> World:
        """The processes among which images that are only looked at are divided; with a budget, each looks at all:
        how many there are then depends on the clock."""
        return self.world if self.request.budget is None else ALONE

    def _say_what(self, resumed: bool) -> None:
        c, splits = self.training.model, self.data.splits
        images = ", ".join(f"{len(source):,} {split}" for split, source in splits.items())
        classes = f" of {len(self.data.classes)} classes" if self.data.classes else ""
        self.callbacks.message(
            f"{'Resuming' if resumed else 'Training'}: {describe(c)} at {c.image_size[0]}x{c.image_size[1]} "
            f"({self.manner()}): {images} images{classes}."
        )
        for note in self.data.notes:
            self.callbacks.message(note)

    def _plan(self) -> Timetable | None:
        """With a budget, the training gets as many steps as fit."""
        if self.clock is None:
            return None
        self.training, table = plan(
            self.training,
            self.objective,
            self.loader,
            self.afterwards(self.clock),
            world=self.world,
            meter=self.meter,
            deadline=self.clock.deadline,
        )
        if table is None:
            self.callbacks.message(NO_STEPS if self.training.epochs == 0 else ONE_STEP)
        return table

    def _train(self, pace: Pace, table: Timetable | None) -> Outcome:
        loop = Loop(
            self.objective,
            self.loader,
            self.training,
            pace,
            self.folder,
            evaluate=self.evaluate,
            keep_last=self.keep_last,
            name_of=self.data.train.name,
            meter=self.meter,
            check_clock=self._clock_check(pace, table),
            world=self.world,
        )
        with ExitStack() as stack:
            listener = self.watch(self.callbacks.step)
            if self.machine.tensorboard and self.world.is_main:
                listener = stack.enter_context(tracked(listener, self.folder))
            outcome = loop.run(listener, self.callbacks.should_stop)
        for remark in outcome.remarks:
            self.callbacks.message(remark)
        return outcome

    def _clock_check(self, pace: Pace, table: Timetable | None) -> Callable[[int], None]:
        """What the loop calls after each step to end in time; a bend of the pace is kept in the configuration."""
        if table is None or self.clock is None:
            return lambda step: None

        def written() -> None:
            self._keep_config(self.config.bent(pace.bends))

        return Timekeeper(pace, table, clock=self.clock.now, written=written).check

    def _finish(self, outcome: Outcome, pace: Pace) -> Result:
        """Measure the kept weights, and write the bundle, the result and the report."""
        # with a budget, the clock may have changed the steps
        self.training = replace(self.training, epochs=pace.steps / self.loader.steps_per_epoch)
        network = build_network(self.training.model, seed=None)
        network.load_state_dict(merge_lora(outcome.best["model"]))
        network.eval()
        ending = self.end(network, outcome, pace)
        if self.world.is_main:
            write_ending(self.folder, self.request, self.training, network, outcome, ending)
            if outcome.finished:
                self.report(self.folder, seconds=None if self.clock is None else self.clock.left())
        return ending.result

    def spent(self, outcome: Outcome, pace: Pace) -> Cost:
        """What the training cost; all processes are ended first, for only then their time is known."""
        self.open.close()
        return self.meter.spent(self.world) + self.work(outcome, pace)

    def _restore_report(self) -> str:
        """What there is to say of a finished run; its page is written again if it is lost."""
        if (self.folder / REPORT).exists():
            return f"{self.folder} is finished; nothing to do."
        try:
            self.report(self.folder)
        except UserError as error:  # what was learned is there all the same
            return f"{self.folder} is finished; its {REPORT} is missing and cannot be written: {error}"
        return f"{self.folder} is finished; only its {REPORT} was missing, and is written again."
