"""What every training of a comparison gets, planned once, when the comparison begins, from the speed of every model.

A cell is one training: a model, a fraction of the training images, a seed. All cells get the same time, or the same
floating-point operations; so do cells that are added later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from vitreous.config.overrides import parse_overrides
from vitreous.errors import UserError
from vitreous.model.family import check_one_size, named_config
from vitreous.studies.requests import CompareRequest
from vitreous.training.deadline import MARGIN, Deadline, format_budget
from vitreous.weights.published import hub_name

RATE_FACTORS = (0.3, 1.0, 3.0)  # factors of the recipe's learning rate that are tried for every model
TRIAL_FRACTION = 0.5  # what a trial may take, as a fraction of a cell's time
BIAS_FRACTION = 0.05  # the fraction of the whole time in which the models' inductive bias is measured
TESTING_FRACTION = 0.1  # the fraction of the whole time in which all models are measured, outside the time of each
VALIDATION_FRACTION = 0.25  # the fraction of a trial, the shortest training, that its evaluations may take
MIN_STEPS = 10  # steps of a training; after fewer, all learning rates and models look the same
TIMED_STEPS = 2  # steps that every training takes to see how long one lasts
MIN_IMAGES = 50  # images that a learning rate is chosen by, and that accuracies are of, where there are as many
START_SECONDS = 3.0  # of every training: to start the processes that decode, and to write the bundle
BUDGET_SLACK = 1.1
"""Factor by which the budget named in an error exceeds the least that was computed: measured speeds vary."""
BIAS_FORWARD_PASSES = 40  # how often an image is looked at to measure the bias, roughly, gradients counted in
MIN_BIAS_IMAGES, MAX_BIAS_IMAGES = 16, 200  # fewer say little, more hardly change a mean


@dataclass(frozen=True)
class Candidate:
    """One model of a comparison."""

    name: str  # as the person wrote it
    model: str | None  # the preset to train; None for a finished model
    overrides: dict[str, str] = field(default_factory=dict)
    """Fields of its configuration that were set otherwise, such as {"model.window": "3"}."""

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.+@=-]", "_", self.name.strip("/").replace("/", "-"))


def read_candidates(models: Sequence[str | Path], image_size: int | None) -> tuple[Candidate, ...]:
    """The models, each once: presets such as "Ti/16", with fields as in "P/4@32:attention=axial", or paths."""
    if not models:
        raise UserError("models: none given; name some, such as Ti/16 and bit-r50x1, or give paths of runs or bundles.")
    found = [_read_candidate(str(model), image_size) for model in models]
    folders = [candidate.folder for candidate in found]
    for candidate in found:
        if folders.count(candidate.folder) > 1:
            raise UserError(f"models: {candidate.name} is given twice; name each model once.")
    return tuple(found)


def _read_candidate(text: str, image_size: int | None) -> Candidate:
    if not text.strip():
        raise UserError("models: an empty name; give names and paths with single commas between them.")
    try:
        if Path(text).exists():
            return Candidate(str(Path(text)), None)
        if hub_name(text) is not None:
            return Candidate(text, None)
    except (OSError, ValueError):  # too long a name, or a null byte
        pass
    name, *settings = text.split(":")
    try:
        config = named_config(name)
    except UserError as error:
        raise UserError(
            f"{str(error).rstrip('.?')}, or the path of a run or a bundle; nothing lies at {text}."
        ) from None
    check_one_size(name, image_size)
    overrides = {f"model.{field}": value for field, value in parse_overrides(settings).items()}
    for change in overrides:
        if not hasattr(config, change.removeprefix("model.")):
            raise UserError(f"model {text!r}: {name} has no field {change.removeprefix('model.')!r}; leave it out.")
    return Candidate(text, name, overrides)


class CellKey(NamedTuple):
    """Which training."""

    model: str
    fraction: float
    seed: int


def cells_of(models: Sequence[str], request: CompareRequest) -> list[CellKey]:
    """In the order in which they are done: all models side by side, so that an early end can be compared."""
    fractions = sorted(request.fractions)
    return [CellKey(m, fraction, seed) for seed in range(request.repeats) for fraction in fractions for m in models]


@dataclass(frozen=True)
class ModelSpeed:
    """Seconds that a model takes."""

    image: float  # to predict one image, decoding included
    step: float = 0.0  # for one training step; this and the next are 0 for a finished model, which is only measured
    step_flops: float = 0.0  # floating-point operations of one step


@dataclass(frozen=True)
class ComparePlan:
    """What holds for every training."""

    cell_seconds: float
    tuned: bool  # whether learning rates are tried; else every model has the recipe's own
    tuned_on: float  # the fraction of the images on which they are tried: the largest that was asked for at first
    evaluations: int  # how often each training looks at its validation images
    val_images: int  # validation images that choose weights and learning rates, a random subset
    measured_images: int  # images that accuracies are measured on, a random subset
    cell_flops: float | None = None  # with equal operations
    bias_images: int = 0  # on which the inductive bias is measured; 0 where there is no time for it
    image_seconds: dict[str, float] = field(default_factory=dict)  # what each model takes to predict an image


def plan_comparison(
    request: CompareRequest,
    speeds: Mapping[str, ModelSpeed],
    deadline: Deadline,
    *,
    val: int,
    measured: int,
    evaluations: int,
) -> ComparePlan:
    """The plan that fills the time left; if that is too short, the error names the least budget.

    val, measured: how many images there are. evaluations: in each training, at most.
    """
    trained = {name: speed for name, speed in speeds.items() if speed.step_flops}
    cells = len(request.fractions) * request.repeats
    parts, tuned_parts = len(trained) * cells, len(trained) * (cells + TRIAL_FRACTION * len(RATE_FACTORS))
    fewest_evaluations = evaluations if "evaluations" in request.overrides else 1
    fewest_images = min(val, MIN_IMAGES)
    shortest = {name: _least_seconds(speed, fewest_evaluations, fewest_images) for name, speed in trained.items()}
    least = _least_cell(request, trained, shortest)
    least_tuned = max(least, max(shortest.values()) / TRIAL_FRACTION)
    measuring = sum(speed.image * (cells if name in trained else 1) for name, speed in speeds.items())
    least_measuring = min(measured, MIN_IMAGES) * measuring
    reserved = (BIAS_FRACTION + TESTING_FRACTION) * deadline.seconds
    tuned = deadline.seconds_per_part(tuned_parts, reserved) >= least_tuned
    seconds = deadline.seconds_per_part(tuned_parts if tuned else parts, reserved)
    if seconds < least or least_measuring > TESTING_FRACTION * deadline.seconds:
        gone = deadline.seconds - deadline.left() + deadline.writing
        first, second = (
            format_budget(
                BUDGET_SLACK
                * max(
                    (gone + each / MARGIN) / (1 - BIAS_FRACTION - TESTING_FRACTION), least_measuring / TESTING_FRACTION
                )
            )
            for each in (least * parts, least_tuned * tuned_parts)
        )
        slow = max(trained, key=lambda name: trained[name].step)
        raise UserError(
            f"budget {deadline.text!r}: too short for {parts} cells ({len(trained)} models x "
            f"{len(request.fractions)} fractions x {request.repeats} seeds) of at least {MIN_STEPS} steps each, of "
            f"which {slow} takes about {trained[slow].step:.2g} s for one here; give at least {first}, or {second} to "
            f"try {len(RATE_FACTORS)} learning rates for each model too."
        )
    fitting = (
        VALIDATION_FRACTION
        * (TRIAL_FRACTION if tuned else 1.0)
        * seconds
        / max(speed.image for speed in trained.values())
    )
    while evaluations > fewest_evaluations and fitting / (evaluations + 1) < fewest_images:
        evaluations -= 1
    val_images = min(val, max(fewest_images, int(fitting / (evaluations + 1))))
    flops = None
    if request.equal == "flops":
        beside = {name: (evaluations + 1) * val_images * speed.image for name, speed in trained.items()}
        flops = equal_flops(
            {name: max(seconds - START_SECONDS - beside[name], seconds / 2) for name in trained},
            {name: speed.step_flops / speed.step for name, speed in trained.items()},
        )
    looks = BIAS_FORWARD_PASSES * sum(speed.image for speed in speeds.values())
    bias_images = min(MAX_BIAS_IMAGES, int(BIAS_FRACTION * deadline.seconds / looks))
    return ComparePlan(
        cell_seconds=round(seconds, 1),
        tuned=tuned,
        tuned_on=max(request.fractions),
        evaluations=evaluations,
        val_images=val_images,
        measured_images=min(measured, max(MIN_IMAGES, int(TESTING_FRACTION * deadline.seconds / measuring))),
        cell_flops=None if flops is None else float(f"{flops:.6g}"),
        bias_images=bias_images if bias_images >= MIN_BIAS_IMAGES else 0,
        image_seconds={name: speed.image for name, speed in speeds.items()},
    )


def _least_seconds(speed: ModelSpeed, evaluations: int, val_images: int) -> float:
    """Of a training of `MIN_STEPS`, with one more evaluation at the end."""
    steps = (TIMED_STEPS + MIN_STEPS) * speed.step
    return (START_SECONDS + steps + (evaluations + 1) * val_images * speed.image) / MARGIN


def _least_cell(request: CompareRequest, trained: Mapping[str, ModelSpeed], shortest: Mapping[str, float]) -> float:
    """Seconds of a cell in which every model takes these steps; with equal operations, on average."""
    if request.equal == "time":
        return max(shortest.values())
    flops = max(speed.step_flops for speed in trained.values())
    return fmean(
        shortest[name] + MIN_STEPS * (flops / speed.step_flops - 1) * speed.step for name, speed in trained.items()
    )


def check_fits(name: str, speed: ModelSpeed, plan: ComparePlan, folder: Path) -> None:
    """Refuse a model that is added to a comparison whose trainings are too short for it."""
    least, seconds = _least_seconds(speed, plan.evaluations, plan.val_images), plan.cell_seconds
    if least > (TRIAL_FRACTION if plan.tuned else 1.0) * seconds:
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
