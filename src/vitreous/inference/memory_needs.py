"""How much memory a request needs, before any of it is taken: what cannot fit is refused with both numbers.

The sizes follow from the configuration alone (`vitreous.model.cost`). They are lower bounds, a little below what is
really taken: what is refused would certainly have failed.
"""

from __future__ import annotations

import math
import os

from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.explain.request import EXPLANATION_METHODS
from vitreous.memory import check_memory
from vitreous.model.family import count_activation_bytes, count_forward_bytes, count_parameters, inference_batch
from vitreous.weights.bundle import Bundle

FLOAT_BYTES = 4
MAX_BIAS_BATCH = 32  # when a bias is measured, images are there in several versions


def check_inference_memory(config: ModelConfig, preprocess: Preprocess, images: int) -> None:
    height, width = preprocess.size
    check_memory(
        inference_bytes(_at(config, preprocess), preprocess, images),
        f"a model that looks at {height}x{width} pixels, {images:,} images at once",
        "give a smaller batch_size, or a smaller size in preprocess",
    )


def inference_bytes(config: ModelConfig, preprocess: Preprocess, images: int) -> float:
    """Weights, the images as bytes and as numbers, one that is being resized for each core, and activations."""
    view = preprocess.channels * math.prod(preprocess.size)
    resized = preprocess.channels * math.prod(preprocess.resized) * min(images, os.cpu_count() or 1)
    each = view * (1 + FLOAT_BYTES) + count_forward_bytes(config)
    return FLOAT_BYTES * count_parameters(config) + resized + images * each


def check_explanation_memory(bundle: Bundle, method: str) -> None:
    """Refuse to explain an image at a size at which attention, (heads, tokens, tokens), does not fit."""
    config, (height, width) = _at(bundle.model.config, bundle.preprocess), bundle.preprocess.size
    needed = inference_bytes(config, bundle.preprocess, 1)
    row = EXPLANATION_METHODS[method]
    if row.gradients:
        needed += count_activation_bytes(config)
    if isinstance(config, ViTConfig) and row.layer is not None:
        needed += 2 * FLOAT_BYTES * config.heads * (config.prefix + config.patches) ** 2
    check_memory(needed, f"method {method} at {height}x{width} pixels", "give a smaller size in preprocess")


def choose_bias_batch(bundle: Bundle) -> int:
    """How many images to measure a model's bias on at once; refuses a size at which none fits."""
    config, (height, width) = _at(bundle.model.config, bundle.preprocess), bundle.preprocess.size
    batch = min(MAX_BIAS_BATCH, inference_batch(config))
    needed = inference_bytes(config, bundle.preprocess, batch) + count_activation_bytes(config)  # it follows gradients
    check_memory(needed, f"bias at {height}x{width} pixels", "give a smaller size in preprocess")
    return batch


def _at(config: ModelConfig, preprocess: Preprocess) -> ModelConfig:
    return config if preprocess.size == config.image_size else config.for_size(preprocess.size)
