"""How many images there is time to process before a deadline: a pure plan, and processing until it is time.

A training with a budget goes through these stages: start-up, features of training images for a first classifier (with
weights), steps, validation and test images, and writing. Measuring gets at most a quarter of the time; the classifier
comes before the steps; what does not fit is done with fewer images, chosen at random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitreous.config.train import Training
from vitreous.data.source import Data, Split
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
        self.plan: ImagePlan
        self._announced = False
        self.restart()

    def restart(self) -> None:
        """Forget the images that were processed: others come in their place."""
        self.began = self.deadline.now()
        self._warm = 0, self.began  # images seen when all was warm, and when that was

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
