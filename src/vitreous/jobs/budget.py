"""How much training fits into a time that a person chose."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count

import torch
from torch import nn

from vitreous.config.train import Training
from vitreous.data.loader import Batch, Loader
from vitreous.errors import UserError
from vitreous.train.loop import precision, split
from vitreous.train.optimizer import make_optimizers

_PART = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MARGIN = 0.92
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
    training: Training, objective: nn.Module, loader: Loader, evaluate: Callable[[], object] | None, left: float
) -> Training:
    """The training with as many steps, and as many evaluations, as fit into the seconds left.

    Speed is measured on a copy, on batches as the training will load them.
    """
    start = time.monotonic()
    batches = chain.from_iterable(loader.batches(epoch) for epoch in count())
    stages = (*training.tokens, (1.0, 1.0))
    seconds = min(max(1.0, left / 200), 10.0)
    per_step, before = 0.0, 0.0
    for end, _ in stages:
        if end > before:
            per_step += (end - before) * train_speed(objective, batches, training, (before + end) / 2, seconds)
            before = end
    evaluation = 0.0
    if evaluate is not None:
        began = time.monotonic()
        with torch.inference_mode():
            evaluate()
        evaluation = time.monotonic() - began
    left = (left - (time.monotonic() - start)) * MARGIN
    evaluations = training.evaluations
    while evaluations > 1 and evaluations * evaluation > 0.15 * left:
        evaluations -= 1
    steps = max(1, int((left - (evaluations + 1) * evaluation) / per_step))
    return replace(training, epochs=steps / loader.steps_per_epoch, evaluations=min(evaluations, steps))


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
        if steps >= 2 and time.perf_counter() - started > seconds:
            break
    return (time.perf_counter() - started) / max(1, steps)
