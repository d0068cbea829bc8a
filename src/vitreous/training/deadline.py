"""A training's time budget: the time spent, the time reserved, and the number of steps that fit into the rest.

The number of steps is a guess at first and planned again while they are taken, by what they have taken so far; so no
time goes to trying them, and a machine that becomes slower or faster is noticed. Whatever depends on a clock is the
same in all processes: `Deadline.now` is a collective, and what one process measures for itself is decided by the main
one (`World.on_main`).
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median_low

from vitreous.config.train import Training
from vitreous.distributed.meter import Meter
from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.model.family import count_flops
from vitreous.training.step import StepSchedule, parts_done

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_TIME = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit})?" for unit in _SECONDS))
"""Each unit once, the larger first."""
MAX_BUDGET_SECONDS = 366 * 86400
MARGIN = 0.97  # the fraction of the time left that is planned for
MAX_MEASURING = 0.25  # the fraction of the whole time that validation and test images may take together
MAX_SLOWDOWN = 3.0  # times as long is reserved for writing at most, on a machine whose start-up took long
STARTUP_SECONDS = 2.2  # what the start-up of a command takes on two quiet cores
EXIT_SECONDS = 0.7  # from the last file written to the end of the process
MIN_FIRST_STEPS = 20  # that are planned before the first: if one takes long, it should not count for much of the whole
CHECKS = 40  # of the clock: after each such fraction of the time
RECENT_CHECKS = 5  # of whose intervals the median counts, so that neither a stall nor a lucky moment decides
WARM_UP = 2.0  # times as long as others the first step takes at least
MIN_KEPT_STEPS = 0.5
"""The fraction of the remaining steps that one replanning keeps at least, if they may fit: the machine may have been
slow for a moment only, and a training that has ended cannot be continued."""
REPLAN_SLACK = 0.03  # smaller relative changes of the remaining steps cause no replanning


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
        self._writing, self._slow_start = writing, max(1.0, self.now() / STARTUP_SECONDS)

    @property
    def writing(self) -> float:
        """Seconds that writing will take."""
        return self.writing_if(1.0)

    def writing_if(self, slowness: float) -> float:
        """The same if the machine is now so many times as slow as it was at the start."""
        return self._writing * min(MAX_SLOWDOWN, max(1.0, slowness * self._slow_start))

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
    """Time to reserve beside the steps, in seconds, as far as is known before the first."""

    measuring: float  # the validation and test images after the last step
    evaluation: float  # one evaluation; 0 where nothing is evaluated
    all_evaluations: float  # what all evaluations between steps may take
    step: float  # about what a step takes, judged by what an image costs
    min_steps: int = 1
    """Steps that are worth taking; if fewer fit and the start is a good model already, none are taken."""
    fixed: bool = False  # whether the number of evaluations may not be reduced


def plan_steps(training: Training, reserved: Reserved, deadline: Deadline) -> tuple[Training, int]:
    """The training with as many evaluations as there is time for, and a first guess at its number of steps. If there is
    time for none, 0 where the start is a good model already, else 1."""
    evaluation, evaluations = reserved.evaluation, training.evaluations
    left = deadline.seconds - deadline.now() - deadline.writing - reserved.measuring
    free = MARGIN * (left - (evaluation if training.probe else 0.0))  # the first classifier is evaluated too
    least = reserved.min_steps * reserved.step if reserved.min_steps > 1 else 0.0
    if free <= least + evaluation:
        return replace(training, evaluations=1), 0 if reserved.min_steps > 1 else 1
    if not reserved.fixed and evaluation:
        fitting = min(reserved.all_evaluations, MAX_MEASURING * free) / evaluation
        evaluations = max(1, min(evaluations, int(fitting)))
    steps = int((free - evaluations * evaluation) / max(reserved.step, 1e-9))
    return replace(training, evaluations=evaluations), max(MIN_FIRST_STEPS, steps)


class Replanner:
    """Changes the number of steps so that a training ends in time. Call `check` after each step, and `evaluated` after
    each evaluation."""

    def __init__(
        self,
        schedule: StepSchedule,
        training: Training,
        reserved: Reserved,
        deadline: Deadline,
        written: Callable[[], None],
    ) -> None:
        """written: saves the schedule for a resumed training."""
        self.schedule, self.reserved, self.deadline, self.written = schedule, reserved, deadline, written
        self._evaluations, self._evaluation = training.evaluations, 0.0  # how many in all; seconds of the latest
        ends, fraction = training.objective.stages, training.objective.keep_fraction
        starts = (0.0, *ends[:-1])
        self._stages = [(end, count_flops(training.model, fraction(a))) for a, end in zip(starts, ends, strict=True)]
        self._speeds = deque[float](maxlen=RECENT_CHECKS)  # of the latest intervals: seconds per operation of an image
        self._evaluated_at = self._began_at = 0.0  # speed at the latest evaluation, and at the beginning
        self._step, self._time, self._evaluating = 0, deadline.now(), 0.0
        self._spare = (1 - MARGIN) * (deadline.seconds - self._time)  # seconds that no step is planned for

    def evaluated(self, seconds: float) -> None:
        """An evaluation has just taken so long."""
        self._evaluating += seconds
        if self.reserved.evaluation:
            self._evaluation, self._evaluated_at = seconds, median_low(self._speeds) if self._speeds else 0.0

    def check(self, step: int) -> None:
        """After a step, before the evaluation that may follow it."""
        now, planned = self.deadline.now(), self.schedule.steps - step
        taken = now - self._time - self._evaluating
        interval = self.deadline.seconds / (CHECKS if len(self._speeds) > 2 else 5 * CHECKS)
        if not planned or (taken < interval and step > 1 < planned):
            return
        before, done = self.schedule.progress(self._step), self.schedule.progress(step)
        speed = taken / ((step - self._step) * self._step_flops(before, done)) / (WARM_UP if step == 1 else 1.0)
        self._step, self._time, self._evaluating = step, now, 0.0
        if step > 1:
            self._speeds.append(speed)
            speed = median_low(self._speeds)
            self._evaluated_at = self._evaluated_at or speed
            if len(self._speeds) == RECENT_CHECKS:
                self._began_at = self._began_at or speed
        usual = self._fitting(now, step, min([*self._speeds, speed]), 1.0, 1.0)
        since_evaluation, since_start = (
            speed / known if known else 1.0 for known in (self._evaluated_at, self._began_at)
        )
        steps = self._fitting(now, step, speed, since_evaluation, since_start)
        steps = max(steps, min(usual, int(MIN_KEPT_STEPS * planned)))
        if step == 1 and steps:  # the second tells more
            return
        if abs(steps - planned) > REPLAN_SLACK * planned:
            self.schedule.replan(step, step + steps)
            self.written()

    def _fitting(self, now: float, step: int, speed: float, measuring: float, writing: float) -> int:
        """How many more steps fit before the deadline. measuring, writing: how many times as slow they are as
        when they were reserved."""
        evaluation = self._evaluation or self.reserved.evaluation
        if self._evaluation:
            measuring *= min(MAX_SLOWDOWN, self._evaluation / self.reserved.evaluation)
        ending = measuring * self.reserved.measuring + self.deadline.writing_if(writing)
        # one that is due after this step is still to come
        evaluations = self._evaluations - parts_done(self.schedule.progress(step - 1), self._evaluations)
        left = self.deadline.seconds - now - ending - self._spare - evaluations * evaluation
        return max(0, int(left / (speed * self._step_flops(self.schedule.progress(step), 1.0))))

    def _step_flops(self, start: float, end: float) -> float:
        """Mean operations of an image in the steps between two fractions of the training."""
        total, before = 0.0, 0.0
        for until, flops in self._stages:
            total += max(0.0, min(end, until) - max(start, before)) * flops
            before = until
        return total / (end - start)
