"""Calibration: how far confidence is from accuracy, and the temperature (Guo et al. 2017) that mends it.

A temperature is one number by which all logits are divided; it changes no prediction. Letters: n images, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.evaluation.intervals import Z_95, Difference

BINS = 15  # equal-width bins of confidence, as in Guo et al., "On Calibration of Modern Neural Networks"
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
RESAMPLES = 2000  # of the bootstrap
CHUNK_LOGITS = 2**22  # logits that are taken together
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


def calibration_error_interval(bins: Sequence[Bin]) -> tuple[float, float]:
    """95 % interval of the expected calibration error, by a bootstrap of the bins' gaps.

    The error of a sample is too large on average, most of all with few images: noise does not cancel in it. So what
    resampling adds once more is taken away, and counts as uncertain itself; where noise alone may be as large, the
    interval begins at 0.
    """
    n = sum(one.images for one in bins)
    gaps, deviations = [], []
    for one in bins:
        if one.accuracy is not None and one.confidence is not None:
            gap = one.accuracy - one.confidence
            square = one.images / n * (one.accuracy * (1 - one.accuracy) + gap**2)
            gaps.append(one.images / n * gap)
            deviations.append(math.sqrt(max(0.0, square - gaps[-1] ** 2) / n))
    rng = np.random.default_rng(0)
    noise = np.array(deviations) * rng.standard_normal((RESAMPLES, len(gaps)))
    error, resampled = float(np.abs(gaps).sum()), np.abs(gaps + noise).sum(axis=1)
    bias = float(resampled.mean()) - error
    half = math.hypot(Z_95 * float(resampled.std()), bias)
    alone = float(np.quantile(np.abs(noise).sum(axis=1), 0.975))
    return 0.0 if error <= alone else max(0.0, error - bias - half), max(0.0, error - bias + half)


def confidence_gap(bins: Sequence[Bin]) -> Difference:
    """Mean confidence less accuracy: above 0 if the model is overconfident."""
    seen = [(one.images, one.confidence, one.accuracy) for one in bins]
    known = [(images, c, a) for images, c, a in seen if c is not None and a is not None]
    n = sum(images for images, *_ in known)
    value = sum(images * (c - a) for images, c, a in known) / n
    square = sum(images * (a * (1 - a) + (c - a) ** 2) for images, c, a in known) / n
    # half an image more that is right, and half that is wrong: of few that are all right the deviation would be 0
    return Difference(value, Z_95 * math.sqrt(max(square - value**2, 0.25 / n) / n))


def _bin_of(confidence: Tensor, bins: int) -> Tensor:
    return (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature at which logits (n, K) explain the labels (n,) best.

    As if one more image had been seen that could be anything: else images that are all right would ask for 0.
    """
    unknown, rows = 1 / (len(labels) + 1), max(1, CHUNK_LOGITS // logits.shape[1])
    starts = range(0, len(labels), rows)  # in double precision, all would be gigabytes

    def loss(exponent: float) -> float:
        scale, total = math.exp(exponent), 0.0
        for start in starts:
            some, true = logits[start : start + rows].double(), labels[start : start + rows]
            total += len(true) * F.cross_entropy(scale * some, true, label_smoothing=unknown).item()
        return total / len(labels)

    low, high = (-math.log(MAX_TEMPERATURE), -math.log(MIN_TEMPERATURE))  # of 1 / temperature
    while high - low > 1e-4:  # the loss falls, then rises: golden section
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return math.exp(-(low + high) / 2)
