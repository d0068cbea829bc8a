"""A classifier on the features of a frozen network: where a training from good weights begins."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.config.objective import ObjectiveConfig, Supervised
from vitreous.evaluate.probe import Labelled, fit_linear
from vitreous.evaluate.temperature import fit_temperature
from vitreous.model.family import classifiers
from vitreous.model.network import Network
from vitreous.objectives.supervised import balance


def fit_classifier(
    network: Network, known: Labelled, held_out: Labelled | None, classes: int, objective: ObjectiveConfig
) -> float | None:
    """Give the network the best linear classifier on its features; the share of held-out images that it gets right.

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


def set_temperature(network: Network, scores: Tensor, labels: Tensor) -> Tensor:
    """Let the network be as sure as it is right: its classifier is scaled, and so are scores (n, K)."""
    factor = 1 / fit_temperature(scores, labels)
    with torch.no_grad():
        for layer in classifiers(network):
            layer.weight.mul_(factor)
            layer.bias.mul_(factor)
    return factor * scores
