"""How much training fits into a time that a person chose."""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, count

from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader
from vitreous.distributed.meter import Meter
from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.objectives.objective import Objective
from vitreous.training.budget.stages import MARGIN, MEASURING
from vitreous.training.pace import Timetable
from vitreous.training.step import Learner, train_step

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_TIME = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit})?" for unit in _SECONDS))
"""Each unit once, the larger first."""
TRYING = 0.1
"""The share of the time left after which no more kinds of steps are tried."""
MEASURED = 4
"""Steps that are tried at least, in two stages."""


def parse_budget(text: str) -> float:
    """Seconds of "90s", "5m", "1h30m" or "2h"."""
    found = _TIME.fullmatch(str(text).strip())
    seconds = sum(float(number or 0) * _SECONDS[unit] for unit, number in found.groupdict().items()) if found else 0.0
    if not 0 < seconds < math.inf:
        raise UserError(f"budget {text!r}: write a time with its unit, such as 90s, 5m or 1h30m.")
    return seconds


@dataclass(frozen=True)
class Afterwards:
    """What else the time must do for, as far as is known before the first step."""

    ending: float
    """Seconds that follow the last step."""
    evaluation: float
    """Seconds of one evaluation; 0 where nothing is evaluated."""
    evaluating: float
    """Seconds that all evaluations between steps may take."""
    fewest: int = 1
    """Steps that are worth taking at all; where fewer fit and the start is a good answer itself, none are taken."""
    step: float = 0.0
    """Seconds that a step takes at the very least, where that is known."""
    fixed: bool = False
    """Whether there are as many evaluations as the training says, whatever they take."""


def plan(
    training: Training,
    objective: Objective,
    loader: Loader,
    afterwards: Afterwards,
    *,
    world: World,
    meter: Meter,
    deadline: float,
) -> tuple[Training, Timetable | None]:
    """The training with as many steps, and as many evaluations, as fit before the deadline; and what they will take.

    Speed is measured on a copy, on batches as the training will load them. `deadline` is in seconds by the meter. Where
    too few steps fit, there is no timetable, and of a training that needs steps one step is left, else none.
    """
    evaluation = afterwards.evaluation
    ending = afterwards.ending + (evaluation if training.probe else 0.0)  # such a start is evaluated too

    def left() -> float:
        return MARGIN * (deadline - ending - world.mean_number(meter.seconds))

    good_start = afterwards.fewest > 1
    least = replace(training, epochs=(0 if good_start else 1) / loader.steps_per_epoch, evaluations=1)
    if left() <= (MEASURED + afterwards.fewest) * afterwards.step + evaluation:
        return least, None
    stages = measure_stages(training, objective, loader, world, left())
    free, evaluations = left(), training.evaluations
    if not afterwards.fixed:
        while evaluations > 1 and evaluations * evaluation > min(afterwards.evaluating, MEASURING * free):
            evaluations -= 1
    table = Timetable(
        deadline - (1 - MARGIN) / MARGIN * free, tuple(stages), evaluations, evaluation, afterwards.ending
    )
    each = table.step_seconds(0.0, 1.0)
    if not afterwards.fixed:
        evaluations = max(1, min(evaluations, int(free / (each + evaluation))))
    steps = int((free - evaluations * evaluation) / each)
    if steps < afterwards.fewest:
        return least, None
    training = replace(training, epochs=steps / loader.steps_per_epoch, evaluations=evaluations)
    return training, replace(table, evaluations=evaluations)


def measure_stages(
    training: Training, objective: Objective, loader: Loader, world: World, left: float
) -> list[tuple[float, float]]:
    """Pairs: up to this share of the training, a step takes so long. `left`: the seconds that there are.

    The last stage, which takes longest, is measured first; where that has cost a good part of the time, it stands for
    those before it.
    """
    batches = chain.from_iterable(loader.batches(epoch) for epoch in count())
    began = time.perf_counter()
    ends = training.objective.stages
    found: list[tuple[float, float]] = []
    for before, end in reversed(list(zip((0.0, *ends), ends, strict=False))):
        if not found or world.mean_number(time.perf_counter() - began) < TRYING * left:
            learner = Learner(copy.deepcopy(objective), training, world)
            seconds = min(max(0.3, left / 200), 10.0)
            taken = world.mean_number(step_seconds(learner, batches, (before + end) / 2, seconds))
        found.insert(0, (end, taken))
    return found


def step_seconds(learner: Learner, batches: Iterator[Batch], progress: float, seconds: float) -> float:
    """What a step takes at this point of the schedule, loading included, by taking some; they spoil the learner."""
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
