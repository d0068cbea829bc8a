"""What every training of a comparison gets, planned once, when the comparison begins, from the speed of every model.

A cell is one training: a model, a fraction of the training images, a seed. All cells get the same time, or the same
floating-point operations; so do cells that are added later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from vitreous.errors import UserError
from vitreous.studies.compare.request import CompareRequest
from vitreous.studies.timing import Speed
from vitreous.training.deadline import MARGIN, Deadline, format_budget

GRID = (0.3, 1.0, 3.0)
"""Factors of the recipe's learning rate that are tried for every model."""
TRIAL = 0.5
"""What a trial may take, as a fraction of a cell's time."""
BIAS = 0.05
"""The fraction of the whole time in which the models' inductive bias is measured."""
TESTING = 0.1
"""The fraction of the whole time in which all models are measured, outside the time of each."""
VALIDATING = 0.25
"""The fraction of a trial, the shortest training, in which its validation images may be looked at."""
MIN_STEPS = 10
"""Steps of a training; after fewer, neither a learning rate nor a model can be told from another."""
TIMED_STEPS = 2
"""Steps that every training takes to see how long one lasts."""
MIN_IMAGES = 50
"""Images that a learning rate is chosen by, and that accuracies are of, where there are as many."""
START_SECONDS = 3.0
"""Of every training: to start the processes that decode, and to write the bundle."""
SLACK = 1.1
"""Times as long as was computed is the budget that is said to do: speeds differ from one measurement to the next."""
BIAS_LOOKS = 40
"""How often an image is looked at to measure the bias, roughly, gradients counted in."""
MIN_BIAS_IMAGES, MAX_BIAS_IMAGES = 16, 200
"""Fewer say little, more hardly change a mean."""


@dataclass(frozen=True)
class CellKey:
    """Which training."""

    model: str
    fraction: float
    seed: int


def cells_of(models: Sequence[str], request: CompareRequest) -> list[CellKey]:
    """In the order in which they are done: all models side by side, so that an early end can be compared."""
    fractions = sorted(request.fractions)
    return [CellKey(m, fraction, seed) for seed in range(request.seeds) for fraction in fractions for m in models]


@dataclass(frozen=True)
class ModelWork:
    """What is known of a model before it is trained."""

    speed: Speed
    step_flops: float = 0.0
    """Floating-point operations of one training step; 0 for a finished model, which is only measured."""


@dataclass(frozen=True)
class ComparePlan:
    """What holds for every training."""

    cell_seconds: float
    tuned: bool
    """Whether learning rates are tried; else every model has the recipe's own."""
    tuned_on: float
    """The fraction of the images on which they are tried: the largest that was asked for at first."""
    evaluations: int
    """How often each training looks at its validation images."""
    val_images: int
    """The validation images that choose weights and learning rates, a random part of all."""
    measured_images: int
    """The images that accuracies are of, a random part of all."""
    cell_flops: float | None = None
    """With equal operations."""
    bias_images: int = 0
    """On which the inductive bias is measured; 0 where there is no time for it."""
    speeds: dict[str, Speed] = field(default_factory=dict)


def plan_comparison(
    request: CompareRequest,
    works: Mapping[str, ModelWork],
    deadline: Deadline,
    *,
    val: int,
    measured: int,
    evaluations: int,
) -> ComparePlan:
    """The plan that fills the time that is left; refused, with the budget that would do, where that is too short.

    val, measured: how many images there are. evaluations: in each training, at most.
    """
    trained = {name: work for name, work in works.items() if work.step_flops}
    cells = len(request.fractions) * request.seeds
    parts, tuned_parts = len(trained) * cells, len(trained) * (cells + TRIAL * len(GRID))
    fewest_evaluations = evaluations if "evaluations" in request.overrides else 1
    fewest_images = min(val, MIN_IMAGES)
    shortest = {name: _least_seconds(work.speed, fewest_evaluations, fewest_images) for name, work in trained.items()}
    least = _least_cell(request, trained, shortest)
    least_tuned = max(least, max(shortest.values()) / TRIAL)
    measuring = sum(work.speed.image * (cells if name in trained else 1) for name, work in works.items())
    least_measuring = min(measured, MIN_IMAGES) * measuring
    reserved = (BIAS + TESTING) * deadline.seconds
    tuned = deadline.share(tuned_parts, reserved) >= least_tuned
    seconds = deadline.share(tuned_parts if tuned else parts, reserved)
    if seconds < least or least_measuring > TESTING * deadline.seconds:
        gone = deadline.seconds - deadline.left() + deadline.writing
        first, second = (
            format_budget(SLACK * max((gone + each / MARGIN) / (1 - BIAS - TESTING), least_measuring / TESTING))
            for each in (least * parts, least_tuned * tuned_parts)
        )
        slow = max(trained, key=lambda name: trained[name].speed.step)
        raise UserError(
            f"budget {deadline.text!r}: too short for {parts} cells ({len(trained)} models x "
            f"{len(request.fractions)} fractions x {request.seeds} seeds) of at least {MIN_STEPS} steps each, of which "
            f"{slow} takes {trained[slow].speed.step:.2g} s for one here; give at least {first}, or {second} to try "
            f"{len(GRID)} learning rates for each model too."
        )
    fitting = VALIDATING * (TRIAL if tuned else 1.0) * seconds / max(work.speed.image for work in trained.values())
    while evaluations > fewest_evaluations and fitting / (evaluations + 1) < fewest_images:
        evaluations -= 1
    val_images = min(val, max(fewest_images, int(fitting / (evaluations + 1))))
    flops = None
    if request.equal == "flops":
        beside = {name: (evaluations + 1) * val_images * work.speed.image for name, work in trained.items()}
        flops = equal_flops(
            {name: max(seconds - START_SECONDS - beside[name], seconds / 2) for name in trained},
            {name: work.step_flops / work.speed.step for name, work in trained.items()},
        )
    looks = BIAS_LOOKS * sum(work.speed.image for work in works.values())
    bias_images = min(MAX_BIAS_IMAGES, int(BIAS * deadline.seconds / looks))
    return ComparePlan(
        cell_seconds=round(seconds, 1),
        tuned=tuned,
        tuned_on=max(request.fractions),
        evaluations=evaluations,
        val_images=val_images,
        measured_images=min(measured, max(MIN_IMAGES, int(TESTING * deadline.seconds / measuring))),
        cell_flops=None if flops is None else float(f"{flops:.6g}"),
        bias_images=bias_images if bias_images >= MIN_BIAS_IMAGES else 0,
        speeds={name: work.speed for name, work in works.items()},
    )


def _least_seconds(speed: Speed, evaluations: int, val_images: int) -> float:
    """Of a training of the fewest steps that are worth it; it is looked at once more at the end."""
    steps = (TIMED_STEPS + MIN_STEPS) * speed.step
    return (START_SECONDS + steps + (evaluations + 1) * val_images * speed.image) / MARGIN


def _least_cell(request: CompareRequest, trained: Mapping[str, ModelWork], shortest: Mapping[str, float]) -> float:
    """Seconds of a cell in which every model takes these steps; with equal operations, on average."""
    if request.equal == "time":
        return max(shortest.values())
    flops = max(work.step_flops for work in trained.values())
    return fmean(
        shortest[name] + MIN_STEPS * (flops / work.step_flops - 1) * work.speed.step for name, work in trained.items()
    )


def check_fits(name: str, speed: Speed, plan: ComparePlan, folder: Path) -> None:
    """Refuse a model that is added to a comparison whose trainings are too short for it."""
    least, seconds = _least_seconds(speed, plan.evaluations, plan.val_images), plan.cell_seconds
    if least > (TRIAL if plan.tuned else 1.0) * seconds:
        raise UserError(
            f"{name}: a step takes {speed.step:.2g} s here, too long for the trainings of {seconds:g} s that {folder} "
            "holds; leave it out, or begin anew with a longer budget (--overwrite, or another --out)."
        )


def equal_flops(seconds: Mapping[str, float], speeds: Mapping[str, float]) -> float:
    """Operations of each cell, so that one of each model together take as long as `seconds` together.

    seconds: of each model what a cell has for its steps. speeds: operations per second of its steps. A slow model takes
    longer, a fast one less.
    """
    return sum(seconds.values()) / sum(1 / speed for speed in speeds.values())
