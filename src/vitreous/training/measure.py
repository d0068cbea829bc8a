"""Features and logits of many images: a first classifier on a frozen network, and how well a trained one does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.config.objective import Distill, ObjectiveConfig, Supervised
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source, Split
from vitreous.data.unreadable import readable_names
from vitreous.distributed.meter import Cost
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.classify import ClassificationResult, score_classes
from vitreous.evaluation.features import compute_features
from vitreous.evaluation.probe import LabelledFeatures, fit_linear
from vitreous.model.family import count_flops, inference_batch
from vitreous.model.network import Network
from vitreous.model.predictions import is_right
from vitreous.objectives.supervised import balance
from vitreous.training.context import Opened, TrainingContext
from vitreous.training.image_plan import logits_in_time
from vitreous.training.loop import Outcome
from vitreous.training.request import FitRequest
from vitreous.training.result import NAMES
from vitreous.training.start import plain_loader
from vitreous.training.step import StepSchedule

Function = Callable[[Tensor], Tensor]  # (B, C, H, W) normalised images to (B, D) features or logits, both on the CPU


@dataclass
class StartFeatures:
    """Features of the frozen network that several trainings on the same images start with: the first computes them."""

    train: LabelledFeatures | None = None
    val: LabelledFeatures | None = None
    seconds_per_image: float = 0.0


def on_device(function: Callable[..., Tensor], device: torch.device) -> Function:
    return lambda images: function(images.to(device)).cpu()


def progress_of(context: TrainingContext[FitRequest], split: Split, total: int) -> Callable[[int], None]:
    return lambda done: context.callbacks.progress(f"measuring the {NAMES[split]} images", done, total)


def compute_all(
    context: TrainingContext[FitRequest], function: Function, loader: Loader, split: Split
) -> LabelledFeatures:
    """What a function says of all images of a loader, by all processes, and their labels."""
    count = len(loader.source)
    told, world = progress_of(context, split, count), context.world
    return compute_features(function, loader.batches(), count, told, world=world)


def shared_features(
    shared: StartFeatures,
    opened: Opened,
    loader: Loader,
    function: Function,
    validation: Loader | None,
) -> tuple[LabelledFeatures, LabelledFeatures | None]:
    """Features of all images, however short the time; those of an earlier training, where there was one."""
    if shared.train is None:
        began = time.perf_counter()
        batches = loader.plain_batches(inference_batch(opened.training.model))
        shared.train = compute_features(function, batches, len(opened.data.train))
        if validation is not None:
            shared.val = compute_features(function, validation.batches(), len(validation.source))
        images = sum(map(len, opened.data.splits.values()))
        shared.seconds_per_image = (time.perf_counter() - began) / images
    if validation is not None or shared.val is None:
        return shared.train, shared.val
    (x, y), (more_x, more_y) = shared.train, shared.val  # the final training learns from what chose, too
    return (torch.cat([x, more_x]), torch.cat([y, more_y])), None


def fit_classifier(
    network: Network,
    known: LabelledFeatures,
    held_out: LabelledFeatures | None,
    classes: int,
    objective: ObjectiveConfig,
) -> float | None:
    """Give the network the best linear classifier on its features; its accuracy on held-out images.

    known: features (n, D) and labels (n,) to learn from. held_out: others, which choose how strongly it is regularised.
    """
    features, labels = known
    weighted = isinstance(objective, Supervised) and objective.class_weights
    weights = balance(labels, classes) if weighted else None
    classifier = fit_linear(features, labels, classes, validation=held_out, class_weights=weights)
    with torch.no_grad():
        for layer in network.classifiers():
            layer.weight.copy_(classifier.weight)
            layer.bias.copy_(classifier.bias)
    if held_out is None:
        return None
    return is_right(classifier(held_out[0]), held_out[1]).float().mean().item()


def set_temperature(network: Network, logits: Tensor, labels: Tensor) -> Tensor:
    """Scale the network's classifier so that it is as confident as it is right; logits (n, K) are scaled too."""
    factor = 1 / fit_temperature(logits, labels)
    with torch.no_grad():
        for layer in network.classifiers():
            layer.weight.mul_(factor)
            layer.bias.mul_(factor)
    return factor * logits


def work_done(opened: Opened, outcome: Outcome, schedule: StepSchedule) -> Cost:
    """Of all steps, the keep schedule counted in, and of the teacher's predictions."""
    cost = training_work(opened.training, outcome.images, schedule, outcome.steps)
    if opened.teacher_flops is None:
        return cost
    objective = opened.training.objective
    every = isinstance(objective, Distill) and objective.answers == "view"
    looks = outcome.images if every else len(opened.data.train)
    return cost + Cost(flops=looks * opened.teacher_flops)


def training_work(training: Training, images: int, schedule: StepSchedule, steps: int) -> Cost:
    """Operations of a training that saw this many images in this many steps, the keep schedule counted in.

    A block costs its forward pass, as much again for the gradient of its input, and as much for that of its weights.
    Frozen blocks need the first alone; with a low-rank change the last is needed of q, k and v only, a quarter.
    """
    config, frozen = training.model, training.freeze / training.model.layers
    fractions = Counter(training.objective.keep_share(schedule.progress(step)) for step in range(steps))
    total = sum(times * count_flops(config, keep) for keep, times in fractions.items())
    passes = frozen + (1 - frozen) * (2.25 if training.lora else 3)
    return Cost(images=images, flops=images * passes * total / steps if steps else 0.0)


def measure_split(
    context: TrainingContext[FitRequest],
    opened: Opened,
    network: Network,
    split: Split,
    source: Source,
    validation: Loader | None,
    seconds_per_image: float,
    unreadable: dict[str, str],
) -> tuple[ClassificationResult, int]:
    """How well the network does on these images of a split, and how many of them there was time for.

    validation: a loader of these images that is open already. unreadable: gets the images that cannot be read.
    After a classifier on frozen features, the val split first sets the temperature.
    """
    training, world = opened.training, context.world
    loader = plain_loader(source, training, context.runtime.workers, world) if validation is None else validation
    function, tried = on_device(network.eval(), world.device), np.arange(len(source))
    try:
        if split == "val" or context.deadline is None:
            logits, labels = compute_all(context, function, loader, split)
        else:
            told = progress_of(context, split, len(source))
            (logits, labels), tried = logits_in_time(function, loader, context.deadline, seconds_per_image, told, world)
    finally:
        unreadable.update(loader.unreadable)
        if validation is None:
            loader.close()
    names = readable_names(source.subset(tried), world.union(loader.unreadable))
    if split == "val" and training.probe:
        logits = set_temperature(network, logits, labels)
    return score_classes(logits, labels, opened.data.classes, names=names), len(tried)
