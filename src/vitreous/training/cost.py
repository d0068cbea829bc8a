"""What a training's steps cost in floating-point operations."""

from __future__ import annotations

from collections import Counter

from vitreous.config.train import Training
from vitreous.distributed.meter import Cost
from vitreous.model.family import count_flops
from vitreous.training.pace import Pace


def training_work(training: Training, images: int, pace: Pace, steps: int) -> Cost:
    """Operations of a training that saw so many images in so many steps, the keep schedule counted in.

    A block costs its forward pass, as much again for the gradient of its input, and as much for that of its weights.
    Frozen blocks need the first alone; with a low-rank change the last is needed of q, k and v only, a quarter.
    """
    config, frozen = training.model, training.freeze / training.model.layers
    shares = Counter(training.objective.keep_share(pace.progress(step)) for step in range(steps))
    total = sum(times * count_flops(config, keep) for keep, times in shares.items())
    passes = frozen + (1 - frozen) * (2.25 if training.lora else 3)
    return Cost(images=images, flops=images * passes * total / steps if steps else 0.0)
