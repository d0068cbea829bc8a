"""How many images there is time to process before a deadline: a pure plan, and processing until it is time.

A training with a budget goes through these stages: start-up, features of training images for a first classifier (with
weights), steps, validation and test images, and writing. Measuring gets at most a quarter of the time; the classifier
comes before the steps; what does not fit is done with fewer images, chosen at random.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader
from vitreous.data.rng import Index, balanced_order
from vitreous.data.source import Data, Split
from vitreous.distributed.world import World
from vitreous.evaluation.features import compute_features
from vitreous.evaluation.probe import LabelledFeatures
from vitreous.model.family import count_flops
from vitreous.training.deadline import (
    MARGIN,
    MAX_MEASURING,
    Deadline,
    Reserved,
    format_budget,
)
from vitreous.training.step import StepSchedule, training_work

MIN_IMAGES = 16  # validation or test images that are processed however short the time is
PROBE_PASSES = 4
"""Over the validation images after a classifier on frozen features: for its strength, at the start, once between the
steps, and at the end."""
MIN_STEPS_AFTER_PROBE = 4  # fewer steps change little and cost an evaluation
TIMING_SECONDS = 1.0  # of a warm network, after which the cost of an image is known well enough

ImageFunction = Callable[
    [Tensor], Tensor
]  # (B, C, H, W) normalised images to (B, D) features or logits, both on the CPU


@dataclass(frozen=True)
class ImageWork:
    """The images that a training would process if it had the time."""

    features: int  # training images for a classifier on frozen features; 0 where there is none
    val: int
    test: int
    passes: int  # over the validation images, at least
    min_features: int = 1  # training images that the classifier needs at least
    step_images: int = 0  # forward passes that cost as much as the fewest steps worth taking


def image_work(data: Data, training: Training) -> ImageWork:
    val, test = (len(data.splits[split]) if split in data.splits else 0 for split in ("val", "test"))
    test = test if training.model.classes else 0  # without classes there is no accuracy
    if not training.probe:
        return ImageWork(0, val, test, passes=2, min_features=0)
    images = int(MIN_STEPS_AFTER_PROBE * _forward_passes(training))
    return ImageWork(len(data.train), val, test, PROBE_PASSES, min(len(data.train), len(data.classes)), images)


def _forward_passes(training: Training) -> float:
    """The forward passes of whole images that cost as much as the first step of a training."""
    flops = training_work(training, training.batch_size, StepSchedule(1), 1).flops
    return flops / count_flops(training.model)


def reserve(data: Data, training: Training, subsets: dict[Split, int], deadline: Deadline, *, fixed: bool) -> Reserved:
    """The val split once more, the test split, and the page; judged by the images looked at so far. subsets: images of
    splits that there is no time to see as a whole. fixed: see `Reserved`."""
    splits, seconds = data.splits, deadline.seconds_per_image
    val, test = (subsets.get(split, len(splits[split])) if split in splits else 0 for split in ("val", "test"))
    evaluation = seconds * val
    measuring = evaluation + seconds * test if training.model.classes else 0.0
    passes = PROBE_PASSES - 2 if training.probe else 0  # beside the last one
    return Reserved(
        measuring=measuring,
        evaluation=evaluation,
        all_evaluations=MAX_MEASURING * deadline.seconds - measuring - passes * evaluation,
        step=seconds * _forward_passes(training),
        min_steps=MIN_STEPS_AFTER_PROBE if training.probe else 1,
        fixed=fixed,
    )


@dataclass(frozen=True)
class ImageCosts:
    """What the first seconds have shown, in seconds."""

    spent: float  # before the first image
    per_image: float  # to decode an image and pass it through the network once
    writing: float  # the bundle, the report, and the end of the process
    fit: float = 0.0  # for each image that a classifier is fitted to


@dataclass(frozen=True)
class ImagePlan:
    """How many images are processed, and what is left for steps."""

    work: ImageWork
    features: int
    val: int
    test: int
    training_seconds: float  # for steps; below 0 where even the fewest images take longer than the budget
    min_training_seconds: float  # below which no step is worth taking
    full_budget: float  # seconds in which all of it fits

    @property
    def has_steps(self) -> bool:
        return self.training_seconds > self.min_training_seconds

    @property
    def complete(self) -> bool:
        """Whether every image is processed, and there is time for steps."""
        return not self.subsets and self.has_steps

    @property
    def subsets(self) -> dict[Split, int]:
        """Of the splits that are not measured as a whole, how many images are."""
        counts: dict[Split, int] = {"train": self.features, "val": self.val, "test": self.test}
        return {split: count for split, count in counts.items() if count < self.total(split)}

    def total(self, split: Split) -> int:
        return {"train": self.work.features, "val": self.work.val, "test": self.work.test}[split]


def plan_images(work: ImageWork, costs: ImageCosts, budget: float) -> ImagePlan:
    """The images that fit into the budget: val and test first, then features, then time for steps."""
    each, fixed = costs.per_image + costs.fit, costs.spent + costs.writing
    free = MARGIN * budget - costs.spent - costs.writing
    forwards = max(0.0, min(MAX_MEASURING * budget, free / 2)) / costs.per_image
    # half of the forward passes for each split; what one of them does not need goes to the other
    for_val = min(work.passes * work.val, max(forwards / 2, forwards - work.test))
    val = max(min(MIN_IMAGES, work.val), for_val / work.passes)
    test = max(min(MIN_IMAGES, work.test), min(work.test, forwards - for_val))
    free -= costs.per_image * (work.passes * val + test)
    features = min(work.features, max(work.min_features, int(free / each)))
    min_training_seconds = costs.per_image * work.step_images
    # the least budget that measures every image, and leaves as long for steps as the features take
    measuring, learning = costs.per_image * (work.passes * work.val + work.test), each * work.features
    enough = max(
        measuring / MAX_MEASURING,
        (fixed + 2 * measuring) / MARGIN,
        (fixed + measuring + learning + max(learning, min_training_seconds)) / MARGIN,
    )
    enough = enough * (1 + 1e-6) + 1e-3  # so that rounding leaves no image out
    val, test = (int(number + 1e-9) for number in (val, test))  # down, but for what floating-point numbers have lost
    return ImagePlan(work, features, val, test, free - each * features, min_training_seconds, enough)


def describe_plan(plan: ImagePlan, budget: str) -> str:
    """The message at the start if not everything fits: what is left out, and the budget in which it would."""
    names = {"train": "training images for the classifier", "val": "validation images", "test": "test images"}
    cut = [f"about {count:,} of {plan.total(split):,} {names[split]}" for split, count in plan.subsets.items()]
    would = f"{format_budget(plan.full_budget)} would do it all"
    if plan.training_seconds < 0:
        return (
            f"A budget of {budget} is too short: even the least, a few random images of each split, takes about "
            f"{-plan.training_seconds:.0f} s more; {would}."
        )
    if not cut:
        return f"A budget of {budget} leaves no time to train further than a classifier on frozen features; {would}."
    listed = cut[0] if len(cut) == 1 else f"{', '.join(cut[:-1])} and {cut[-1]}"
    return f"A budget of {budget} is enough to measure {listed}, chosen at random; {would}."


class ImageEstimate:
    """The plan, made again after each batch of images; a message says once if not everything fits."""

    def __init__(self, work: ImageWork, deadline: Deadline, message: Callable[[str], None], fit: float = 0.0) -> None:
        self.work, self.deadline, self.message, self.fit = work, deadline, message, fit
        self.began, self._announced = deadline.now(), False
        self._warm = 0, self.began  # images seen when all was warm, and when that was
        self.plan: ImagePlan

    def judge(self, seen: int, last: bool = False) -> bool:
        """Whether enough is known after so many images; `last`: there are no more, so it must be."""
        deadline, (before, warm) = self.deadline, self._warm
        now = deadline.now()
        if seen > before:
            deadline.seconds_per_image = (now - warm) / (seen - before)
        if not before:  # the first batch starts processes and warms up the network
            self._warm = seen, now
        spent = max(self.began, now - seen * deadline.seconds_per_image)  # what is cold counts once
        costs = ImageCosts(spent, deadline.seconds_per_image, deadline.writing, self.fit)
        self.plan = plan_images(self.work, costs, deadline.seconds)
        # where half of the time is over, one batch must do
        known = last or now > deadline.seconds / 2 or (before > 0 and now - warm >= TIMING_SECONDS)
        if known and not self._announced and not self.plan.complete:
            self.message(describe_plan(self.plan, deadline.text))
            self._announced = True
        return known


@dataclass
class StartFeatures:
    """Features of the frozen network, shared by several trainings on the same images: the first computes them."""

    train: LabelledFeatures | None = None
    val: LabelledFeatures | None = None
    seconds_per_image: float = 0.0

    def compute(
        self, data: Data, loader: Loader, batch_size: int, function: ImageFunction, validation: Loader | None
    ) -> tuple[LabelledFeatures, LabelledFeatures | None]:
        """Features of all images, however short the time; computed by the first training that asks."""
        if self.train is None:
            began = time.perf_counter()
            self.train = compute_features(function, loader.plain_batches(batch_size), len(data.train))
            if validation is not None:
                self.val = compute_features(function, validation.batches(), len(validation.source))
            self.seconds_per_image = (time.perf_counter() - began) / sum(map(len, data.splits.values()))
        if validation is not None or self.val is None:
            return self.train, self.val
        (x, y), (more_x, more_y) = self.train, self.val  # the final training learns from the val split too
        return (torch.cat([x, more_x]), torch.cat([y, more_y])), None


def time_images(function: ImageFunction, loader: Loader, estimate: ImageEstimate) -> None:
    """Process images until the estimate knows what one costs."""
    order = np.arange(len(loader.source), dtype=np.int64)
    _, seen = compute_until(function, loader, order, loader.batch_size, estimate.judge)
    estimate.judge(len(seen), last=True)


def features_in_time(
    function: ImageFunction,
    loader: Loader,
    batch_size: int,
    seed: int,
    *,
    count: int | None,
    estimate: ImageEstimate | None,
    needs_steps: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[LabelledFeatures, int]:
    """Features and labels of training images, class by class, and how many images of that order were seen. count: this
    many, all if None. estimate: it is asked after each batch whether there is time for more. needs_steps: stop if there
    will be no time for steps."""
    order = balanced_order(loader.source.labels, seed)[:count]

    def enough(seen: int) -> bool:
        if estimate is None or not estimate.judge(seen):
            return False
        return seen >= estimate.plan.features or (needs_steps and not estimate.plan.has_steps)

    found, seen = compute_until(function, loader, order, batch_size, enough, progress)
    if estimate is not None:
        estimate.judge(len(seen), last=True)
    return found, len(seen)


def logits_in_time(
    function: ImageFunction,
    loader: Loader,
    deadline: Deadline,
    *,
    planned: int = 0,
    after: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[LabelledFeatures, Index]:
    """Logits and labels of images, and which were seen, row by row: as many as planned and then as there is time for,
    fewer if the time is up. after: images that are measured next. Where an image takes longer now than it took before,
    so will they and the writing."""
    first = 0, 0.0

    def late(seen: int) -> bool:
        nonlocal first
        now = deadline.now()
        if not first[0]:  # processes had to be started for it, so how long it took tells nothing
            first = seen, now
        expected = (seen - first[0]) * deadline.seconds_per_image
        slowness = max(1.0, (now - first[1]) / expected) if expected else 1.0
        reserved = slowness * after * deadline.seconds_per_image if seen >= planned else 0.0
        return now > deadline.seconds - deadline.writing_if(slowness) - reserved

    order = np.arange(len(loader.source), dtype=np.int64)
    return compute_until(function, loader, order, loader.batch_size, late, progress)


def compute_until(
    function: ImageFunction,
    loader: Loader,
    order: Index,
    batch_size: int,
    stop: Callable[[int], bool],
    progress: Callable[[int], None] | None = None,
) -> tuple[LabelledFeatures, Index]:
    """The output of a function for images in this order, and their labels, until `stop` says yes after so many images.
    Several processes go through the order together, a batch each at a time. Also which images were seen, in the order
    of the rows; those that cannot be read have none."""
    world, seen = loader.world, len(order)
    each_round = batch_size * world.size

    def batches() -> Iterator[Batch]:
        nonlocal seen
        own = loader.plain_rounds(batch_size, _by_rank(order, batch_size, world)[world.rank])
        for done in range(each_round, len(order) + each_round, each_round):
            if (batch := next(own, None)) is not None:
                yield batch
            if stop(min(done, len(order))):
                seen = min(done, len(order))
                return

    found = compute_features(function, batches(), len(order), progress, world=world)
    return found, np.concatenate(_by_rank(order[:seen], batch_size, world))


def _by_rank(order: Index, batch_size: int, world: World) -> list[Index]:
    """By rank, the images of an order that all processes go through together."""
    starts = range(0, max(1, len(order)), batch_size * world.size)
    firsts = [[start + rank * batch_size for start in starts] for rank in range(world.size)]
    return [np.concatenate([order[first : first + batch_size] for first in own]) for own in firsts]
