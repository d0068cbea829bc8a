"""How many images are seen at within a deadline: a pure plan, and looking until it is time.

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
from vitreous.training.deadline import (
    MARGIN,
    MAX_MEASURING,
    MAX_SLOWDOWN,
    MIN_TIMED_STEPS,
    Deadline,
    Reserved,
    format_budget,
)

MIN_IMAGES = 16  # validation or test images that are seen at however short the time is
PROBE_PASSES = 4
"""Over the validation images after a classifier on frozen features: for its strength, at the start, once between the
steps, and at the end."""
MIN_STEPS_AFTER_PROBE = 10  # fewer steps change little and cost an evaluation
TIMING_SECONDS = 1.0  # after which the cost of looking at an image is known well enough

Function = Callable[[Tensor], Tensor]  # (B, C, H, W) normalised images to (B, D) features or logits, both on the CPU


@dataclass(frozen=True)
class ImageWork:
    """The images that a training would look at, if it had the time."""

    features: int  # training images for a classifier on frozen features; 0 where there is none
    val: int
    test: int
    passes: int  # how often the validation images are gone over, at least
    fewest: int = 1  # training images that the classifier cannot do without
    steps: int = 0  # looks that the fewest steps worth taking cost


def image_work(data: Data, training: Training) -> ImageWork:
    """The images that a training with labels would look at."""
    val, test = (len(data.splits[split]) if split in data.splits else 0 for split in ("val", "test"))
    test = test if training.model.classes else 0  # else there is nothing to be right about
    if not training.probe:
        return ImageWork(0, val, test, passes=2, fewest=0)
    steps = (MIN_TIMED_STEPS + MIN_STEPS_AFTER_PROBE) * training.batch_size
    return ImageWork(len(data.train), val, test, PROBE_PASSES, min(len(data.train), len(data.classes)), steps)


def reserve(data: Data, training: Training, subsets: dict[Split, int], deadline: Deadline, *, fixed: bool) -> Reserved:
    """The val split once more, the test split, and the page; judged by the images looked at so far. subsets: images of
    splits that there is no time to see as a whole. fixed: see `Reserved`."""
    splits, seconds = data.splits, deadline.seconds_per_image
    val, test = (subsets.get(split, len(splits[split])) if split in splits else 0 for split in ("val", "test"))
    evaluation = seconds * val
    measuring = evaluation + seconds * test if training.model.classes else 0.0
    passes = PROBE_PASSES - 2 if training.probe else 0  # beside the last one
    return Reserved(
        ending=measuring + deadline.writing,
        evaluation=evaluation,
        evaluating=MAX_MEASURING * deadline.seconds - measuring - passes * evaluation,
        fewest=MIN_STEPS_AFTER_PROBE if training.probe else 1,
        step=seconds * training.batch_size if training.probe else 0.0,
        fixed=fixed,
    )


@dataclass(frozen=True)
class ImageCosts:
    """What the first seconds have shown, in seconds."""

    spent: float  # before the first image was seen at
    per_image: float  # at one image: decoded, and once through the network
    writing: float  # the bundle, the report, and the end of the process
    learn: float = 0.0  # for each image that a classifier is fitted to


@dataclass(frozen=True)
class ImagePlan:
    """How many images are seen at, and what is left for steps."""

    work: ImageWork
    features: int
    val: int
    test: int
    training: float  # seconds for steps; below 0 where even the fewest images take longer than the budget
    worth: float  # seconds below which no step is worth taking
    enough: float  # the budget that would do it all, in seconds

    @property
    def complete(self) -> bool:
        """Whether every image is seen at, and there is time for steps."""
        return not self.subsets and self.training > self.worth

    @property
    def subsets(self) -> dict[Split, int]:
        """Of the splits that are not measured as a whole, how many images are."""
        counts: dict[Split, int] = {"train": self.features, "val": self.val, "test": self.test}
        return {split: count for split, count in counts.items() if count < self.of(split)}

    def of(self, split: Split) -> int:
        """How many images there are of a split."""
        return {"train": self.work.features, "val": self.work.val, "test": self.work.test}[split]


def plan_images(work: ImageWork, costs: ImageCosts, budget: float) -> ImagePlan:
    """The images that fit into the budget: val and test within their share, then features, then time for steps."""
    each, fixed = costs.per_image + costs.learn, costs.spent + costs.writing
    free = MARGIN * budget - costs.spent - costs.writing
    looks = max(0.0, min(MAX_MEASURING * budget, free / 2)) / costs.per_image
    # half of the looks for each split, and what one of them does not need for the other
    for_val = min(work.passes * work.val, max(looks / 2, looks - work.test))
    val = max(min(MIN_IMAGES, work.val), for_val / work.passes)
    test = max(min(MIN_IMAGES, work.test), min(work.test, looks - for_val))
    free -= costs.per_image * (work.passes * val + test)
    features = min(work.features, max(work.fewest, int(free / each)))
    worth = costs.per_image * work.steps
    # the least budget that measures every image, and leaves as long for steps as the features take
    measuring, learning = costs.per_image * (work.passes * work.val + work.test), each * work.features
    enough = max(
        measuring / MAX_MEASURING,
        (fixed + 2 * measuring) / MARGIN,
        (fixed + measuring + learning + max(learning, worth)) / MARGIN,
    )
    enough = enough * (1 + 1e-6) + 1e-3  # so that rounding leaves no image out
    val, test = (int(number + 1e-9) for number in (val, test))  # down, but for what floating-point numbers have lost
    return ImagePlan(work, features, val, test, free - each * features, worth, enough)


def describe_plan(plan: ImagePlan, budget: str) -> str:
    """What a person should know at the start, where not all fits: what is left out, and the budget that would do."""
    names = {"train": "training images for the classifier", "val": "validation images", "test": "test images"}
    cut = [f"about {count:,} of {plan.of(split):,} {names[split]}" for split, count in plan.subsets.items()]
    would = f"{format_budget(plan.enough)} would do it all"
    if plan.training < 0:
        return (
            f"A budget of {budget} is too short: even the least, a few random images of each split, takes about "
            f"{-plan.training:.0f} s more; {would}."
        )
    if not cut:
        return f"A budget of {budget} leaves no time to train further than a classifier on frozen features; {would}."
    listed = cut[0] if len(cut) == 1 else f"{', '.join(cut[:-1])} and {cut[-1]}"
    return f"A budget of {budget} is enough to measure {listed}, chosen at random; {would}."


class ImageEstimate:
    """What fits into the time, judged again whenever images were seen; said once, as soon as not all does."""

    def __init__(self, work: ImageWork, deadline: Deadline, message: Callable[[str], None], learn: float = 0.0) -> None:
        self.work, self.deadline, self.message, self.learn = work, deadline, message, learn
        self.began, self._announced = deadline.now(), False
        self.plan: ImagePlan

    def judge(self, seen: int, last: bool = False) -> bool:
        """Whether enough is known after so many images; `last`: there are no more, so it must be."""
        deadline = self.deadline
        taken = deadline.now() - self.began
        deadline.seconds_per_image = taken / seen
        costs = ImageCosts(self.began, deadline.seconds_per_image, deadline.writing, self.learn)
        self.plan = plan_images(self.work, costs, deadline.seconds)
        known = last or taken >= TIMING_SECONDS
        if known and not self._announced and not self.plan.complete:
            self.message(describe_plan(self.plan, deadline.text))
            self._announced = True
        return known


@dataclass
class StartFeatures:
    """Features of the frozen network that several trainings on the same images start with: the first computes them."""

    train: LabelledFeatures | None = None
    val: LabelledFeatures | None = None
    seconds_per_image: float = 0.0

    def compute(
        self, data: Data, loader: Loader, batch_size: int, function: Function, validation: Loader | None
    ) -> tuple[LabelledFeatures, LabelledFeatures | None]:
        """Features of all images, however short the time; those of an earlier training, where there was one."""
        if self.train is None:
            began = time.perf_counter()
            self.train = compute_features(function, loader.plain_batches(batch_size), len(data.train))
            if validation is not None:
                self.val = compute_features(function, validation.batches(), len(validation.source))
            self.seconds_per_image = (time.perf_counter() - began) / sum(map(len, data.splits.values()))
        if validation is not None or self.val is None:
            return self.train, self.val
        (x, y), (more_x, more_y) = self.train, self.val  # the final training learns from what chose, too
        return (torch.cat([x, more_x]), torch.cat([y, more_y])), None


def time_images(function: Function, loader: Loader, estimate: ImageEstimate) -> None:
    """Look at images until the estimate knows what one costs."""
    order = np.arange(len(loader.source), dtype=np.int64)
    _, seen = compute_until(function, loader, order, loader.batch_size, estimate.judge)
    estimate.judge(len(seen), last=True)


def features_in_time(
    function: Function,
    loader: Loader,
    batch_size: int,
    seed: int,
    *,
    count: int | None,
    estimate: ImageEstimate | None,
    progress: Callable[[int], None] | None = None,
) -> tuple[LabelledFeatures, int]:
    """Features and labels of training images, class by class, and how many images of that order were seen. count: this
    many, all if None. estimate: it is asked after each batch whether there is time for more."""
    order = balanced_order(loader.source.labels, seed)[:count]

    def enough(seen: int) -> bool:
        return estimate is not None and estimate.judge(seen) and seen >= estimate.plan.features

    found, seen = compute_until(function, loader, order, batch_size, enough, progress)
    if estimate is not None:
        estimate.judge(len(seen), last=True)
    return found, len(seen)


def logits_in_time(
    function: Function, loader: Loader, deadline: Deadline, progress: Callable[[int], None] | None = None
) -> tuple[LabelledFeatures, Index]:
    """Logits and labels of images, and which were seen, row by row: all, or as many as there is time for. Where an
    image takes longer now than it took before, so will writing."""
    first = 0, 0.0

    def late(seen: int) -> bool:
        nonlocal first
        now = deadline.now()
        if not first[0]:  # processes had to be started for it, so how long it took tells nothing
            first = seen, now
        expected = (seen - first[0]) * deadline.seconds_per_image
        slowness = min(MAX_SLOWDOWN, max(1.0, (now - first[1]) / expected)) if expected else 1.0
        return now > deadline.seconds - slowness * deadline.writing

    order = np.arange(len(loader.source), dtype=np.int64)
    return compute_until(function, loader, order, loader.batch_size, late, progress)


def compute_until(
    function: Function,
    loader: Loader,
    order: Index,
    batch_size: int,
    stop: Callable[[int], bool],
    progress: Callable[[int], None] | None = None,
) -> tuple[LabelledFeatures, Index]:
    """What a function says of images in this order, and their labels, until `stop` says yes after so many images.
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
    """Of each rank, its images of an order that all go through together."""
    starts = range(0, max(1, len(order)), batch_size * world.size)
    firsts = [[start + rank * batch_size for start in starts] for rank in range(world.size)]
    return [np.concatenate([order[first : first + batch_size] for first in own]) for own in firsts]
