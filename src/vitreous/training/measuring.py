"""Processing images for features and for measuring: all of them, or as many as there is time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader, readable_names
from vitreous.data.rng import Index, balanced_order
from vitreous.data.source import Data, Source, Split
from vitreous.distributed.world import World
from vitreous.evaluation.classify import ClassificationResult, score_classes
from vitreous.evaluation.features import compute_features
from vitreous.evaluation.probe import LabelledFeatures, seconds_per_image
from vitreous.model.network import Network
from vitreous.training.deadline import Deadline
from vitreous.training.image_plan import ImageEstimate, image_work
from vitreous.training.method import Opened, TrainingContext
from vitreous.training.request import FitRequest
from vitreous.training.result import SPLIT_NAMES
from vitreous.training.start import plain_loader, set_temperature, with_crop_of_weights

Context = TrainingContext[FitRequest]
MIN_LEARNING = 0.2  # the fraction of a budget that must be left after the start, or no step is planned

ImageFunction = Callable[[Tensor], Tensor]
"""(B, C, H, W) normalised images to (B, D) features or logits, both on the CPU."""


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


def on_device(function: Callable[..., Tensor], device: torch.device) -> ImageFunction:
    return lambda images: function(images.to(device)).cpu()


def split_progress(context: Context, split: Split, total: int) -> Callable[[int], None]:
    return lambda done: context.callbacks.progress(f"measuring the {SPLIT_NAMES[split]} images", done, total)


def compute_all(context: Context, function: ImageFunction, loader: Loader, split: Split) -> LabelledFeatures:
    """What a function says of all images of a loader, by all processes, and their labels."""
    count = len(loader.source)
    told, world = split_progress(context, split, count), context.world
    return compute_features(function, loader.batches(), count, told, world=world)


def compute_start_features(
    context: Context, opened: Opened, loader: Loader, batch: int, function: ImageFunction, subsets: dict[Split, int]
) -> tuple[Training, LabelledFeatures, dict[Split, int]]:
    """Features and labels of the training images; with a budget, of as many as there is time for. If there is none for
    steps after them, the training has no epochs, and images are seen as the weights saw them."""
    training, total, world, deadline = opened.training, len(opened.data.train), context.world, context.deadline
    count = subsets.get("train")
    progress = split_progress(context, "train", total if count is None else count)
    if context.request.budget is None:
        plain = loader.plain_batches(batch, world=world)
        return training, compute_features(function, plain, total, progress, world=world), subsets
    without_steps = replace(with_crop_of_weights(training, opened.base, context.request), epochs=0.0)
    estimate = None
    if deadline is not None:
        learn = world.on_main(lambda: seconds_per_image(training.model.features, len(opened.data.classes)))
        estimate = ImageEstimate(image_work(opened.data, training), deadline, context.callbacks.message, learn)
        if deadline.seconds - deadline.now() - deadline.writing < MIN_LEARNING * deadline.seconds:
            training = without_steps
    how: dict[str, Any] = {"count": count, "estimate": estimate, "progress": progress}
    crops = without_steps.preprocess != training.preprocess
    if training.epochs or estimate is None:
        found, looked = features_in_time(function, loader, batch, training.seed, **how, needs_steps=crops)
    if estimate is None:
        return training, found, subsets
    if not training.epochs or (crops and not estimate.plan.has_steps):
        training = without_steps
        estimate.restart()
        with closing(plain_loader(opened.data.train, without_steps, context.runtime.workers, world)) as loader:
            found, looked = features_in_time(function, loader, batch, training.seed, **how)
    training = training if training.epochs and estimate.plan.has_steps else without_steps
    subsets = {split: count for split, count in estimate.plan.subsets.items() if split != "train"}
    return training, found, {**subsets, "train": looked} if looked < total else subsets


def measure_split(
    context: Context,
    opened: Opened,
    network: Network,
    split: Split,
    source: Source,
    validation: Loader | None,
    unreadable: dict[str, str],
    planned: int,
    after: int,
) -> tuple[ClassificationResult, int]:
    """How well the network does on these images of a split, and how many of them there was time for. validation: a
    loader of these images that is open already. unreadable: gets the images that cannot be read. planned, after: see
    `logits_in_time`. After a classifier on frozen features, the val split first sets the temperature."""
    training, world = opened.training, context.world
    loader = plain_loader(source, training, context.runtime.workers, world) if validation is None else validation
    function, tried = on_device(network.eval(), world.device), np.arange(len(source))
    try:
        if context.deadline is None:
            logits, labels = compute_all(context, function, loader, split)
        else:
            told, how = split_progress(context, split, len(source)), {"planned": planned, "after": after}
            (logits, labels), tried = logits_in_time(function, loader, context.deadline, **how, progress=told)
    finally:
        unreadable.update(loader.unreadable)
        if validation is None:
            loader.close()
    names = readable_names(source.subset(tried), world.union(loader.unreadable))
    if split == "val" and training.probe:
        logits = set_temperature(network, logits, labels)
    return score_classes(logits, labels, opened.data.classes, names=names), len(tried)
