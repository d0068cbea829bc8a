"""A linear classifier on the features of the frozen network: where a training from good weights starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.config.objective import ObjectiveConfig, Supervised
from vitreous.data.loader import Loader
from vitreous.data.source import Split
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.probe import LabelledFeatures, fit_linear
from vitreous.evaluate.temperature import fit_temperature
from vitreous.model.family import classifiers, inference_batch
from vitreous.model.network import Network
from vitreous.objectives.supervised import balance
from vitreous.training.context import Opened, TrainingContext
from vitreous.training.request import FitRequest
from vitreous.training.result import NAMES

Function = Callable[[Tensor], Tensor]
"""(B, C, H, W) normalised images to (B, D) features or logits, both on the CPU."""


@dataclass
class StartFeatures:
    """Features of the frozen network that several trainings on the same images start with: the first computes them."""

    train: LabelledFeatures | None = None
    val: LabelledFeatures | None = None
    seconds_per_image: float = 0.0


def on_device(function: Callable[..., Tensor], device: torch.device) -> Function:
    """The function computed on this device."""
    return lambda images: function(images.to(device)).cpu()


def progress_of(context: TrainingContext[FitRequest], split: Split, total: int) -> Callable[[int], None]:
    """To be called with how many images of a split were looked at."""
    return lambda done: context.callbacks.progress(f"measuring the {NAMES[split]} images", done, total)


def compute_all(
    context: TrainingContext[FitRequest], function: Function, loader: Loader, split: Split
) -> LabelledFeatures:
    """What a function says of all images of a loader, by all processes, and their labels."""
    count = len(loader.source)
    told, world = progress_of(context, split, count), context.world
    return compute_features(function, loader.batches(), count, told, world=world)


def shared_features(
    kept: StartFeatures,
    opened: Opened,
    loader: Loader,
    function: Function,
    validation: Loader | None,
) -> tuple[LabelledFeatures, LabelledFeatures | None]:
    """Features of all images, however short the time; those of an earlier training, where there was one."""
    if kept.train is None:
        began = time.perf_counter()
        batches = loader.plain_batches(inference_batch(opened.training.model))
        kept.train = compute_features(function, batches, len(opened.data.train))
        if validation is not None:
            kept.val = compute_features(function, validation.batches(), len(validation.source))
        images = sum(map(len, opened.data.splits.values()))
        kept.seconds_per_image = (time.perf_counter() - began) / images
    if validation is not None or kept.val is None:
        return kept.train, kept.val
    (x, y), (more_x, more_y) = kept.train, kept.val  # the final training learns from what chose, too
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
        for layer in classifiers(network):
            layer.weight.copy_(classifier.weight)
            layer.bias.copy_(classifier.bias)
    if held_out is None:
        return None
    return (classifier(held_out[0]).argmax(1) == held_out[1]).float().mean().item()


def set_temperature(network: Network, logits: Tensor, labels: Tensor) -> Tensor:
    """Scale the network's classifier so that it is as confident as it is right; logits (n, K) are scaled too."""
    factor = 1 / fit_temperature(logits, labels)
    with torch.no_grad():
        for layer in classifiers(network):
            layer.weight.mul_(factor)
            layer.bias.mul_(factor)
    return factor * logits
