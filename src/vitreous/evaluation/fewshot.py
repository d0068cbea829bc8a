"""What frozen features are worth with a few labels: regularised least squares, solved in closed form.

The measure of "An Image is Worth 16x16 Words", section 4.1: representations of a few images per class are mapped to
targets in {-1, 1}^K. The constants are those of its authors' public code. Letters: n images, D features, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError
from vitreous.evaluation.classify import wilson

SHOTS = (1, 5, 10)
STRENGTH = 2.0**10
BIAS = 100.0  # a constant feature, so large that its weight, the bias, is hardly regularised
DRAWS = 5
STUDENT = 2.776445105  # Student's t for 95 % and DRAWS - 1 degrees of freedom


def fit_least_squares(
    features: Tensor, labels: Tensor, classes: int, strength: float = STRENGTH
) -> tuple[Tensor, Tensor]:
    """Weight (K, D) and bias (K,): argmin |X W - Y|^2 + strength |W|^2, X standardised with a constant feature.

    features: (n, D) as the model gives them; labels: (n,). The result does the standardisation too.
    """
    x = features.double()
    std, mean = torch.std_mean(x, dim=0, correction=0)
    scale = std + 1e-5
    x = F.pad((x - mean) / scale, (0, 1), value=BIAS)  # (n, D + 1)
    y = 2 * F.one_hot(labels, classes).double() - 1
    if len(x) >= x.shape[1]:
        solved = torch.linalg.solve(x.T @ x + strength * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)
    else:  # the same solution from the smaller system
        solved = x.T @ torch.linalg.solve(x @ x.T + strength * torch.eye(len(x), dtype=x.dtype), y)
    weight = (solved[:-1] / scale[:, None]).T
    return weight.float(), (BIAS * solved[-1] - weight @ mean).float()


def draw_shots(labels: Tensor, shots: Sequence[int], seed: int) -> dict[int, Tensor]:
    """For each number of shots the indices of so many images of each class, the fewer among the more."""
    rng = np.random.default_rng(seed)
    members = [rng.permutation(np.flatnonzero(labels.numpy() == label)) for label in np.unique(labels.numpy())]
    for most in shots:
        if not 1 <= most <= min(map(len, members)):
            raise UserError(
                f"shots={most}: give numbers from 1 to {min(map(len, members))}, the images of the smallest class."
            )
    return {count: torch.from_numpy(np.concatenate([one[:count] for one in members])) for count in shots}


def mean_interval(accuracies: Sequence[float], n: int) -> tuple[float, float]:
    """A 95 % interval of the mean of DRAWS accuracies on the same n images.

    Two independent doubts are added as squares: which images were drawn to learn from (Student's), and which happen
    to be judged (Wilson's).
    """
    assert len(accuracies) == DRAWS
    mean = float(np.mean(accuracies))
    drawn = STUDENT * float(np.std(accuracies, ddof=1)) / math.sqrt(DRAWS)
    low, high = wilson(mean * n, n)
    return max(0.0, mean - math.hypot(mean - low, drawn)), min(1.0, mean + math.hypot(high - mean, drawn))
