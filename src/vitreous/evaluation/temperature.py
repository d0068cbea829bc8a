"""Temperature scaling (Guo et al. 2017): one number by which all scores are divided, which changes no answer."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

LEAST, MOST = 0.01, 100.0
GOLDEN = (math.sqrt(5) - 1) / 2


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The temperature at which scores (n, K) explain the labels (n,) best.

    As if one more image had been seen that could be anything: else images that are all right would ask for 0.
    """
    scores, unknown = scores.double(), 1 / (len(labels) + 1)

    def loss(exponent: float) -> float:
        return F.cross_entropy(math.exp(exponent) * scores, labels, label_smoothing=unknown).item()

    low, high = -math.log(MOST), -math.log(LEAST)  # of the factor, which is one over the temperature
    while high - low > 1e-4:  # the loss falls, then rises: golden section
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return math.exp(-(low + high) / 2)
