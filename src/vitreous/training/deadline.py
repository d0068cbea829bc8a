"""A training's time budget: the time spent, the time reserved, and the number of steps that fit into the rest.

Whatever depends on a clock is the same in all processes: `Deadline.now` is a collective, and what one process measures
for itself is decided by the main one (`World.on_main`).
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count

from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader
from vitreous.distributed.meter import Meter
from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.objectives.objective import Objective
from vitreous.training.step import Learner, StepSchedule, parts_done, train_step

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_TIME = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit})?" for unit in _SECONDS))
"""Each unit once, the larger first."""
MAX_BUDGET_SECONDS = 366 * 86400
MARGIN = 0.97  # the fraction of the time left that is planned for: steps are timed while the machine is quietest
MAX_MEASURING = 0.25  # the fraction of the whole time that validation and test images may take together
MAX_TIMING = 0.1  # the fraction of the time left after which no more kinds of steps are timed
MIN_TIMED_STEPS = 4  # steps that are timed at least, in two stages
MAX_SLOWDOWN = 3.0  # times as long is reserved for writing at most, on a machine whose start-up took long
STARTUP_SECONDS = 2.2  # what the start-up of a command takes on two quiet cores
EXIT_SECONDS = 0.7  # from the last file written to the end of the process
CHECKS = 20  # of the clock: after each such fraction of the steps, or of the time
REPLAN_SLACK = 0.03  # smaller relative changes of the remaining steps cause no replanning
MIN_KEPT_STEPS = 0.5
"""The fraction of the remaining steps that one replanning keeps at least: the machine may have been slow for a moment
only, and a training that has ended cannot be continued."""


def parse_budget(text: str) -> float:
    """Seconds of "90s", "5m", "1h30m" or "2h"."""
    found = _TIME.fullmatch(str(text).strip())
    seconds = sum(float(number or 0) * _SECONDS[unit] for unit, number in found.groupdict().items()) if found else 0.0
    if not 0 < seconds <= MAX_BUDGET_SECONDS:
        raise UserError(f"budget {text!r}: write a time with its unit, such as 90s, 5m or 1h30m, at most 366d.")
    return seconds


def format_budget(seconds: float) -> str:
    """A budget of at least so many seconds: 25s, 90s, 4m, 1h15m."""
    if seconds <= 120:
        return f"{math.ceil(seconds / 5) * 5}s"
    minutes = math.ceil(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(math.ceil(minutes / 5) * 5, 60)
    return f"{hours}h{minutes}m" if minutes else f"{hours}h"


class Deadline:
    """The clock of a training with a budget. A resumed training has none: it keeps the planned steps."""

    seconds_per_image = 0.0  # to decode an image and pass it through the network, if measured

    def __init__(self, text: str, writing: float, meter: Meter, world: World) -> None:
        """text: the budget as given. writing: seconds that the bundle, the report and the end of the process take on
        two quiet cores."""
        self.text, self.seconds, self._meter, self._world = text, parse_budget(text), meter, world
        # start-up and writing are both the work of one core, so a slow start foretells slow writing
        self.writing = writing * min(MAX_SLOWDOWN, max(1.0, self.now() / STARTUP_SECONDS))

    def now(self) -> float:
        """Seconds since the start, the same in all processes."""
        return self._world.mean_number(self._meter.seconds)

    def left(self) -> float:
        """Seconds until this process should end, at least 0. For one process alone."""
        return max(0.0, self.seconds - EXIT_SECONDS - self._meter.seconds)

    def seconds_per_part(self, parts: float, reserved: float = 0.0) -> float:
        """Seconds for each of so many equal parts of what is left, beside the writing and `reserved` seconds. For one
        process alone."""
        return max(0.0, MARGIN * (self.left() - self.writing - reserved) / parts)


@dataclass(frozen=True)
class Reserved:
    """Time to reserve beside the steps, as far as is known before the first."""

    ending: float  # seconds that follow the last step
    evaluation: float  # seconds of one evaluation; 0 where nothing is evaluated
    all_evaluations: float  # seconds that all evaluations between steps may take
    min_steps: int = 1
    """Steps that are worth taking; if fewer fit and the start is a good model already, none are taken."""
    step: float = 0.0  # a lower bound of the seconds of a step; 0 if unknown
    fixed: bool = False  # whether the number of evaluations may not be reduced


@dataclass(frozen=True)
class StepTimes:
    """Times measured before a training, in seconds."""

    deadline: float  # when all must be done, by the training's clock
    stages: tuple[tuple[float, float], ...]  # pairs (up to this fraction of the training, seconds per step)
    evaluations: int
    evaluation: float  # what one takes
    ending: float  # what follows the last step

    def step_seconds(self, start: float, end: float) -> float:
        """The mean seconds of a step between two fractions of the training."""
        total, before = 0.0, 0.0
        for until, seconds in self.stages:
            total += max(0.0, min(end, until) - max(start, before)) * seconds
            before = until
        return total / (end - start)

    def evaluation_seconds(self, start: float, end: float) -> float:
        return self.evaluation * (parts_done(end, self.evaluations) - parts_done(start, self.evaluations))


def plan_steps(
    training: Training, objective: Objective, loader: Loader, reserved: Reserved, deadline: Deadline
) -> tuple[Training, StepTimes | None]:
    """The training with as many steps, and as many evaluations, as fit before the deadline; and what they will take.
    Speed is measured on a copy, on batches as the training will load them. Where too few steps fit, there are no times,
    and of a training that needs steps one step is left, else none."""
    evaluation = reserved.evaluation
    ending = reserved.ending + (evaluation if training.probe else 0.0)  # the first classifier is evaluated too

    def left() -> float:
        return MARGIN * (deadline.seconds - ending - deadline.now())

    good_start = reserved.min_steps > 1
    least = replace(training, epochs=(0 if good_start else 1) / loader.steps_per_epoch, evaluations=1)
    if left() <= (MIN_TIMED_STEPS + reserved.min_steps) * reserved.step + evaluation:
        return least, None
    stages = time_stages(training, objective, loader, left())
    free, evaluations = left(), training.evaluations
    if not reserved.fixed:
        while evaluations > 1 and evaluations * evaluation > min(reserved.all_evaluations, MAX_MEASURING * free):
            evaluations -= 1
    end = deadline.seconds - (1 - MARGIN) / MARGIN * free
    table = StepTimes(end, tuple(stages), evaluations, evaluation, reserved.ending)
    each = table.step_seconds(0.0, 1.0)
    if not reserved.fixed:
        evaluations = max(1, min(evaluations, int(free / (each + evaluation))))
    steps = int((free - evaluations * evaluation) / each)
    if steps < reserved.min_steps:
        return least, None
    training = replace(training, epochs=steps / loader.steps_per_epoch, evaluations=evaluations)
    return training, replace(table, evaluations=evaluations)


def time_stages(training: Training, objective: Objective, loader: Loader, left: float) -> list[tuple[float, float]]:
    """Pairs (up to this fraction of the training, seconds per step). left: the seconds there are. The last stage, the
    slowest, is measured first; if that took more than MAX_TIMING of the time, its speed is taken for all."""
    batches, world = chain.from_iterable(loader.batches(epoch) for epoch in count()), loader.world
    began, ends = time.perf_counter(), training.objective.stages
    found: list[tuple[float, float]] = []
    for before, end in reversed(list(zip((0.0, *ends), ends, strict=False))):
        if not found or world.mean_number(time.perf_counter() - began) < MAX_TIMING * left:
            learner = Learner(copy.deepcopy(objective), training, world)
            seconds = min(max(0.3, left / 200), 10.0)
            taken = world.mean_number(step_seconds(learner, batches, (before + end) / 2, seconds))
        found.insert(0, (end, taken))
    return found


def step_seconds(learner: Learner, batches: Iterator[Batch], progress: float, seconds: float) -> float:
    """Seconds of a step at this point of the schedule, with loading, by taking some; they change the learner."""
    started, steps = 0.0, 0
    for batch in batches:
        train_step(learner, batch, steps, progress, progress)
        if not started:
            started = time.perf_counter()  # the first step warms up
            continue
        steps += 1
        if learner.world.any_rank(time.perf_counter() - started > seconds):
            break
    return (time.perf_counter() - started) / max(1, steps)


class Replanner:
    """Changes the number of steps so that a training ends in time. Call `check` after each step."""

    def __init__(
        self, schedule: StepSchedule, times: StepTimes, clock: Callable[[], float], written: Callable[[], None]
    ) -> None:
        """clock: the seconds spent so far. written: saves the schedule for a resumed training."""
        self.schedule, self.times, self.clock, self.written = schedule, times, clock, written
        self.slowness = 1.0
        self._last: tuple[int, float] | None = None

    def check(self, step: int) -> None:
        now = self.clock()
        if self._last is None:
            self._last = step, now
            return
        before, done = self.schedule.progress(self._last[0]), self.schedule.progress(step)
        table = self.times
        soon = parts_done(done, CHECKS) == parts_done(before, CHECKS) and now - self._last[1] < table.deadline / CHECKS
        if done == 1.0 or soon:
            return
        expected = (step - self._last[0]) * table.step_seconds(before, done) + table.evaluation_seconds(before, done)
        self.slowness = (self.slowness + (now - self._last[1]) / expected) / 2
        self._last = step, now
        planned = self.schedule.steps - step
        fitting, at_best = (self._fitting(now, done, slowness) for slowness in (self.slowness, 1.0))
        steps = max(1, fitting, min(at_best, int(MIN_KEPT_STEPS * planned)))
        if abs(steps - planned) > REPLAN_SLACK * planned:
            self.schedule.replan(step, step + steps)
            self.written()

    def _fitting(self, now: float, done: float, slowness: float) -> int:
        """Steps that fit before the deadline if they take `slowness` times as long as measured."""
        table = self.times
        left = (table.deadline - now) / slowness - table.ending - table.evaluation_seconds(done, 1.0)
        return int(left / table.step_seconds(done, 1.0))
