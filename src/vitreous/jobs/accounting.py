"""What a training's steps cost in floating-point operations."""

from __future__ import annotations

from dataclasses import replace

from vitreous.config.train import Training
from vitreous.model.cost import count_flops
from vitreous.train.meter import Spent


def training_work(training: Training, pictures: int, done: float = 1.0) -> Spent:
    """Operations of a training that saw so many pictures in this share of its steps, token schedule counted in.

    A block costs its forward pass, as much again for the gradient of its input, and as much for that of its weights.
    Frozen blocks need the first alone; with a low-rank change the last is needed of q, k and v only, a quarter.
    """
    config = training.model
    total, before = 0.0, 0.0
    for end, keep in (*training.tokens, (1.0, 1.0)):
        columns = max(1, round(config.patches * keep))
        seen = replace(config, image_size=(config.patch, config.patch * columns))  # as many tokens, in a row
        total += max(0.0, min(end, done) - before) * count_flops(seen)
        before = min(end, done)
    frozen = training.freeze / config.depth
    passes = frozen + (1 - frozen) * (2.25 if training.lora else 3)
    return Spent(pictures=pictures, flops=pictures * passes * total / done if done else 0.0)
