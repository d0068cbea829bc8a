"""How much training fits into a time that a person chose."""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count

from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader
from vitreous.errors import UserError
from vitreous.objectives.objective import Objective
from vitreous.train.meter import Meter
from vitreous.train.pace import Timetable
from vitreous.train.step import Learner, train_step
from vitreous.world import World

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_TIME = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit})?" for unit in _SECONDS))
"""Each unit once, the larger first."""
MARGIN = 0.97
"""The share of the time left that is planned for: a machine is never as quiet as while it is measured."""


def parse_budget(text: str) -> float:
    """Seconds of "90s", "5m", "1h30m" or "2h"."""
    found = _TIME.fullmatch(str(text).strip())
    seconds = sum(float(number or 0) * _SECONDS[unit] for unit, number in found.groupdict().items()) if found else 0.0
    if not 0 < seconds < math.inf:
        raise UserError(f"budget {text!r}: write a time with its unit, such as 90s, 5m or 1h30m.")
    return seconds


def plan(
    training: Training,
    objective: Objective,
    loader: Loader,
    evaluate: Callable[[Objective], object] | None,
    *,
    world: World,
    meter: Meter,
    deadline: float,
    ending: float,
) -> tuple[Training, Timetable | None]:
    """The training with as many steps, and as many evaluations, as fit before the deadline; and what they will take.

    Speed is measured on a copy, on batches as the training will load them. `deadline` is in seconds by the meter;
    `ending` is what follows the last step. Where the time is up before the first, one step is left, and no timetable.
    """
    left = deadline - ending - world.mean_number(meter.seconds)
    one_step = replace(training, epochs=1 / loader.steps_per_epoch, evaluations=1)
    if left <= 0:
        return one_step, None
    batches = chain.from_iterable(loader.batches(epoch) for epoch in count())
    seconds = min(max(0.3, left / 200), 10.0)
    stages: list[tuple[float, float]] = []
    before = 0.0
    for end in training.objective.stages:
        learner = Learner(copy.deepcopy(objective), training, world)
        stages.append((end, world.mean_number(step_seconds(learner, batches, (before + end) / 2, seconds))))
        before = end
    evaluation = 0.0
    if evaluate is not None:
        began = time.monotonic()
        evaluate(copy.deepcopy(objective).eval())
        evaluation = world.mean_number(time.monotonic() - began)
    left = deadline - ending - world.mean_number(meter.seconds)
    reserve = (1 - MARGIN) * left
    left -= reserve
    if left <= 0:
        return one_step, None
    evaluations = training.evaluations
    while evaluations > 1 and evaluations * evaluation > 0.15 * left:
        evaluations -= 1
    table = Timetable(deadline - reserve, tuple(stages), evaluations, evaluation, ending + evaluation)
    steps = max(1, int((left - (evaluations + 1) * evaluation) / table.step_seconds(0.0, 1.0)))
    evaluations = min(evaluations, steps)
    training = replace(training, epochs=steps / loader.steps_per_epoch, evaluations=evaluations)
    return training, replace(table, evaluations=evaluations)


TIME_IS_UP = "With what is left to measure and to write, the time is up: one step is taken."


def step_seconds(learner: Learner, batches: Iterator[Batch], progress: float, seconds: float) -> float:
    """What a step takes at this point of the schedule, loading included, by taking some; they spoil the learner."""
    started, steps = 0.0, 0
    for batch in batches:
        train_step(learner, batch, steps, progress, progress)
        if not started:
            started = time.perf_counter()  # the first step warms up
            continue
        steps += 1
        if learner.world.agree(time.perf_counter() - started > seconds):
            break
    return (time.perf_counter() - started) / max(1, steps)
