"""How well a trained classifier does, and what its training cost."""

from __future__ import annotations

from collections import Counter

import numpy as np

from vitreous.config.objective import Distill
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source, Split
from vitreous.distributed.meter import Cost
from vitreous.evaluate.classify import ClassificationResult, score_classes
from vitreous.inference.opening import names_of
from vitreous.model.family import count_flops
from vitreous.model.network import Network
from vitreous.training.context import Opened, TrainingContext
from vitreous.training.frozen import compute_all, on_device, progress_of, set_temperature
from vitreous.training.image_plan import logits_in_time
from vitreous.training.loop import Outcome
from vitreous.training.request import FitRequest
from vitreous.training.schedule import StepSchedule
from vitreous.training.start import plain_loader


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
    names = names_of(source.subset(tried), world.union(loader.unreadable))
    if split == "val" and training.probe:
        logits = set_temperature(network, logits, labels)
    return score_classes(logits, labels, opened.data.classes, names=names), len(tried)
