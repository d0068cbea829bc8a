"""How much memory a training needs, before any of it is taken: what cannot fit is refused with both numbers.

The sizes follow from the configuration alone (`vitreous.model.cost`) and are lower bounds.
"""

from __future__ import annotations

import math
from dataclasses import replace

from vitreous.config.model import ViTConfig
from vitreous.config.objective import TokenLabel
from vitreous.config.train import Training
from vitreous.distributed.world import SINGLE_PROCESS, World
from vitreous.inference.memory_needs import FLOAT_BYTES
from vitreous.memory import check_memory
from vitreous.model.family import count_activation_bytes, count_parameters
from vitreous.training.parallel import count_parts


def check_training_memory(training: Training, images: int, world: World = SINGLE_PROCESS, beside: int = 1) -> None:
    """Refuse a training whose step needs more memory than there is, before it starts any process that decodes.

    world: the processes that share each batch, and where they compute. A GPU's memory is not looked at:
        `vitreous models --gpus` says what fits.
    beside: how many of them share this machine's memory.
    """
    if world.device.type != "cpu":
        return
    training, size = replace(training, batch_size=-(-training.batch_size // world.size)), training.model.image_size
    together = f" in each of {beside} processes" if beside > 1 else ""
    check_memory(
        beside * training_bytes(training, images, world.size if world.sharded else 1),
        f"a training at {size[0]}x{size[1]} pixels, {images_at_once(training, images):,} images at once{together}",
        "give a smaller image_size, batch_size or model, or set a smaller micro_batch",
    )


def images_at_once(training: Training, images: int) -> int:
    """The largest part of a batch of one process; there are so many images."""
    batch = min(training.batch_size, images)
    return -(-batch // count_parts(training.micro_batch, batch, 1))


def training_bytes(training: Training, images: int, shards: int = 1) -> float:
    """Weights, gradients and what the optimizer keeps; a batch of views, and the activations of a micro-batch.

    shards: the number of processes among which the former are divided.
    """
    config, batch = training.model, min(training.batch_size, images)
    moments = {"adamw": 2, "sgd": 1, "muon": 1}[training.optimizer.name]
    copies = 1 + moments + (training.ema is not None) + training.objective.networks
    views = activations = 0.0
    for view in training.objective.views.values():
        size = view.size or config.image_size
        views += view.count * config.channels * math.prod(size) * FLOAT_BYTES
        seen = config if size == config.image_size else config.for_size(size)
        activations += view.count * count_activation_bytes(seen)
    if isinstance(config, ViTConfig) and isinstance(training.objective, TokenLabel):
        labels = config.patches * config.classes * FLOAT_BYTES
        views, activations = views + labels, activations + 2 * labels  # targets; logits and their logarithms
    micro_batch = images_at_once(training, images)
    if training.activation_checkpointing:
        activations /= config.layers  # of one block at a time; what lies between blocks is little beside it
    weights = copies * FLOAT_BYTES * count_parameters(config) / shards
    if shards > 1 and micro_batch < batch:  # gradients stay whole until the last micro-batch
        weights += FLOAT_BYTES * count_parameters(config)
    return weights + batch * views + micro_batch * activations * training.objective.largest_keep_fraction
