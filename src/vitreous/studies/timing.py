"""How long a model takes for an image and for a training step, measured before a study plans its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import chain, count

import torch

from vitreous.config.train import Training
from vitreous.data.source import Source, random_subset
from vitreous.model.family import build_network
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Setting
from vitreous.training.start import Runtime, training_loader
from vitreous.training.step import Learner, train_step

TIMED_IMAGES, MAX_TIMED_IMAGES = 16, 256  # images at once, and in all
TIMING_SECONDS = 1.5  # after which the time of an image or a step is known well enough
SMALL_BATCH = 8  # images of the steps that tell whether there is time for whole ones


def seconds_per_image(compute: Callable[[Source], object], source: Source, seed: int = 0) -> float:
    """Seconds that `compute` takes for an image of a source; the first images warm up."""
    some = random_subset(source, seed, MAX_TIMED_IMAGES)
    starts = range(0, len(some), TIMED_IMAGES)
    parts = [some.subset(range(start, min(start + TIMED_IMAGES, len(some)))) for start in starts]
    compute(parts[0])
    began, looked = time.perf_counter(), 0
    for part in parts[1:] or parts:
        compute(part)
        looked += len(part)
        if time.perf_counter() - began > TIMING_SECONDS:
            break
    return (time.perf_counter() - began) / looked


def seconds_per_step(training: Training, source: Source, runtime: Runtime, limit: float) -> float:
    """Seconds of one step of a training from scratch on these images, loading included.

    limit: if a step seems to take longer than that, by steps of a small batch, none is taken.
    """
    batch = min(training.batch_size, len(source))
    small = replace(training, batch_size=min(SMALL_BATCH, batch), micro_batch=None)
    estimated = _timed(small, source, runtime) * batch / small.batch_size
    return estimated if estimated > limit else _timed(training, source, runtime)


def _timed(training: Training, source: Source, runtime: Runtime) -> float:
    network = build_network(training.model, seed=0)
    setting = Setting(training.seed, torch.from_numpy(source.labels), runtime.world, training.preprocess)
    learner = Learner(build_objective(network, training.objective, setting), training, runtime.world)
    with closing(training_loader(source, training, runtime.workers)) as loader:
        batches = chain.from_iterable(loader.batches(epoch) for epoch in count())
        train_step(learner, next(batches), 0, 0.5, 0.5)  # which warms up
        started = time.perf_counter()
        for steps, batch in enumerate(batches, start=1):
            train_step(learner, batch, steps, 0.5, 0.5)
            if runtime.world.any_rank(time.perf_counter() - started > TIMING_SECONDS):
                break
        return (time.perf_counter() - started) / steps
