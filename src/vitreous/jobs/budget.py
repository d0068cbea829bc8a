"""How much training fits into a time that a person chose."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.config.train import Training
from vitreous.data.loader import Batch, Loader
from vitreous.errors import UserError
from vitreous.jobs.run import update_config
from vitreous.train.meter import Meter
from vitreous.train.optimizer import make_optimizers
from vitreous.train.pace import Pace, Timekeeper, Timetable
from vitreous.train.parts import precision, split

_PART = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MARGIN = 0.97
"""The share of the time left that is planned for: a machine is never as quiet as while it is measured."""


def parse_budget(text: str) -> float:
    """Seconds of "90s", "5m", "1h30m" or "2h"; a bare number is minutes."""
    parts = _PART.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip() or not _total(parts) > 0:
        raise UserError(f"--budget {text!r}: write a time such as 90s, 5m or 1h30m.")
    return _total(parts)


def _total(parts: list[tuple[str, str]]) -> float:
    return sum(float(number) * _SECONDS[unit or "m"] for number, unit in parts)


def plan(
    training: Training,
    objective: nn.Module,
    loader: Loader,
    evaluate: Callable[[], object] | None,
    *,
    meter: Meter,
    deadline: float,
    ending: float,
) -> tuple[Training, Timetable | None]:
    """The training with as many steps, and as many evaluations, as fit before the deadline; and what they will take.

    Speed is measured on a copy, on batches as the training will load them. `deadline` is in seconds by the meter;
    `ending` is what follows the last step. Where the time is up before the first, one step is left, and no timetable.
    """
    left = deadline - ending - meter.seconds
    one_step = replace(training, epochs=1 / loader.steps_per_epoch, evaluations=1)
    if left <= 0:
        return one_step, None
    batches = chain.from_iterable(loader.batches(epoch) for epoch in count())
    seconds = min(max(0.3, left / 200), 10.0)
    stages: list[tuple[float, float]] = []
    before = 0.0
    for end in (*(end for end, _ in training.tokens), 1.0):
        if end > before:
            stages.append((end, train_speed(objective, batches, training, (before + end) / 2, seconds)))
            before = end
    evaluation = 0.0
    if evaluate is not None:
        began = time.monotonic()
        with torch.inference_mode():
            evaluate()
        evaluation = time.monotonic() - began
    left = deadline - ending - meter.seconds
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


def first_pace(training: Training, loader: Loader) -> Pace:
    """Straight through the training's epochs."""
    return Pace(max(1, round(training.epochs * loader.steps_per_epoch)))


def saved_pace(saved: dict[str, Any]) -> Pace:
    """The pace of a training that was begun, as its configuration tells it.

    It is kept to: the same steps as without the interruption, whatever the clock says now.
    """
    return Pace(saved["steps"], saved.get("bends", ()))


def clock_check(folder: Path, pace: Pace, timetable: Timetable | None, meter: Meter) -> Callable[[int], None]:
    """What a loop calls after each step to end in time; a bend of the pace is kept in the run's configuration."""
    if timetable is None:
        return lambda step: None
    return Timekeeper(
        pace, timetable, clock=lambda: meter.seconds, written=lambda: update_config(folder, bends=pace.bends)
    ).check


def train_speed(
    objective: nn.Module, batches: Iterator[Batch], training: Training, progress: float, seconds: float
) -> float:
    """Seconds that a step takes at this point of the schedule, loading included; some are tried on a copy."""
    trial = copy.deepcopy(objective).train()
    optimizers = make_optimizers(trial, training.optimizer)
    started, steps = 0.0, 0
    for batch in batches:
        for part in split(batch, training.accumulate):
            with precision():
                loss, _ = trial(part, progress)
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        trial.after_step(progress)  # type: ignore[operator]
        if not started:
            started = time.perf_counter()  # the first step warms up
            continue
        steps += 1
        if time.perf_counter() - started > seconds:
            break
    return (time.perf_counter() - started) / max(1, steps)
