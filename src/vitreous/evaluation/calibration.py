"""Calibration: how far confidence is from accuracy, and the temperature (Guo et al. 2017) that mends it.

A temperature is one number by which all logits are divided; it changes no prediction. Letters: n images, K classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15  # equal-width bins of confidence, as in Guo et al., "On Calibration of Modern Neural Networks"
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
GOLDEN = (math.sqrt(5) - 1) / 2


class Bin(NamedTuple):
    """The images that the model was about equally sure of."""

    images: int
    confidence: float | None  # their mean, from 0 to 1; None where there are none
    accuracy: float | None


def expected_calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """The mean over bins of confidence, weighted by their images, of |accuracy - mean confidence|.

    confidence: (n,) from 0 to 1; right: (n,) bool. A bin holds its upper edge.
    """
    gap = torch.zeros(bins, dtype=torch.float64)
    gap.index_add_(0, _bin_of(confidence, bins), right.double() - confidence.double())
    return float(gap.abs().sum() / len(confidence))


def calibration_bins(confidence: Tensor, right: Tensor, bins: int = BINS) -> tuple[Bin, ...]:
    """What a reliability diagram draws; arguments as for `expected_calibration_error`."""
    place = _bin_of(confidence, bins)
    found = []
    for k in range(bins):
        inside = place == k
        count = int(inside.sum())
        means = [float(values[inside].double().mean()) if count else None for values in (confidence, right)]
        found.append(Bin(count, *means))
    return tuple(found)


def _bin_of(confidence: Tensor, bins: int) -> Tensor:
    return (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature at which logits (n, K) explain the labels (n,) best.

    As if one more image had been seen that could be anything: else images that are all right would ask for 0.
    """
    logits, unknown = logits.double(), 1 / (len(labels) + 1)

    def loss(exponent: float) -> float:
        return F.cross_entropy(math.exp(exponent) * logits, labels, label_smoothing=unknown).item()

    low, high = (
        -math.log(MAX_TEMPERATURE),
        -math.log(MIN_TEMPERATURE),
    )  # of 1 / temperature
    while high - low > 1e-4:  # the loss falls, then rises: golden section
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return math.exp(-(low + high) / 2)
