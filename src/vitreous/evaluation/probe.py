"""What frozen features are worth: a linear classifier fitted to them in seconds.

Multinomial logistic regression on standardised features, by L-BFGS in float64, for several strengths of regularisation,
each starting where the last one ended. Letters: n images, D features, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError

WEIGHT_DECAYS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
"""Factors of half the squared length of the weights, added to the mean loss."""
GRADIENTS = 800
"""As long as so many takes a fit over all strengths: on 37 classes of pets it took 236 for 200 images and 412 for
1,406, and as long again beside them."""
SMALL = 30_000_000  # products of a feature and a weight below which one thread computes a gradient

LabelledFeatures = tuple[Tensor, Tensor]  # features (n, D) and labels (n,)


@dataclass(frozen=True)
class ProbeTrial:
    """How well one strength of regularisation did."""

    weight_decay: float
    train_accuracy: float
    val_accuracy: float | None
    val_loss: float | None


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier on features as the model gives them: `scores = features @ weight.T + bias`."""

    weight: Tensor  # (K, D) float32
    bias: Tensor  # (K,) float32
    weight_decay: float  # the regularisation that was chosen
    trials: tuple[ProbeTrial, ...]

    def __call__(self, features: Tensor) -> Tensor:
        """(n, D) to scores (n, K)."""
        return F.linear(features, self.weight, self.bias)


def fit_linear(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    validation: LabelledFeatures | None = None,
    class_weights: Tensor | None = None,
) -> LinearProbe:
    """The best linear classifier of the features (n, D) by labels (n,) from 0 to classes - 1.

    weight_decays: strengths to try. The strongest is taken whose validation accuracy is within one standard error of
        the best: a small validation split cannot tell them apart, and the stronger is the safer. Without
        `validation`, the middle one.
    class_weights: (K,) how much each class counts; equally if None.
    """
    _check(features, labels, classes, weight_decays)
    strengths = sorted(set(weight_decays), reverse=True)
    if validation is None:
        strengths = [strengths[len(strengths) // 2]]
    mean, scale = _standard(features)
    x = (features.double() - mean) / scale
    weights = torch.zeros(classes, x.shape[1] + 1, dtype=torch.float64)  # the last column is the bias
    probes, trials = [], []
    for strength in strengths:
        weights = _solve(weights, x, labels, strength, class_weights)
        probes.append(_unfold(weights, mean, scale))
        trials.append(_try(probes[-1], strength, (features, labels), validation))
    accuracies = [trial.val_accuracy or 0.0 for trial in trials]
    best = max(accuracies)
    error = 0.0 if validation is None else (best * (1 - best) / len(validation[1])) ** 0.5
    chosen = next(i for i, accuracy in enumerate(accuracies) if accuracy >= best - error)  # the strongest comes first
    return LinearProbe(*probes[chosen], strengths[chosen], tuple(trials))


def held_out(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """(n,) bool: a random share of each class, at least one image and never all."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels.numpy()):
        members = rng.permutation(np.flatnonzero(labels.numpy() == label))
        chosen[members[: min(max(round(len(members) * fraction), 1), len(members) - 1)]] = True
    return torch.from_numpy(chosen)


def _solve(start: Tensor, x: Tensor, labels: Tensor, strength: float, class_weights: Tensor | None) -> Tensor:
    """(K, D + 1) weights and biases at which mean loss + strength / 2 |weights|^2 is least; biases are free."""
    parameters = start.clone().requires_grad_()
    weighted = None if class_weights is None else class_weights.double()
    optimizer = torch.optim.LBFGS(
        [parameters],
        max_iter=200,
        history_size=10,
        tolerance_grad=1e-5,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        return _descend(parameters, x, labels, strength, weighted)

    with torch.enable_grad(), _threads_for(parameters.numel() * len(x)):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return parameters.detach()


@contextmanager
def _threads_for(products: int) -> Iterator[None]:
    """One thread where a gradient is so little work that waiting for others costs more, much more on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if products < SMALL else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _descend(parameters: Tensor, x: Tensor, labels: Tensor, strength: float, weighted: Tensor | None) -> Tensor:
    """The loss at parameters (K, D + 1), whose gradient is added to theirs."""
    scores = F.linear(x, parameters[:, :-1], parameters[:, -1])
    total = F.cross_entropy(scores, labels, weight=weighted) + strength / 2 * parameters[:, :-1].square().sum()
    total.backward()  # type: ignore[no-untyped-call]
    return total


def seconds_per_image(width: int, classes: int) -> float:
    """What `fit_linear` will take for each image with so many features, judged by a few gradients."""
    x, labels = torch.zeros(256, width, dtype=torch.float64), torch.arange(256) % classes
    parameters = torch.zeros(classes, width + 1, dtype=torch.float64, requires_grad=True)
    taken = []
    with torch.enable_grad(), _threads_for(x.numel() * classes):
        for _ in range(4):  # the first warms up
            began = time.perf_counter()
            _descend(parameters, x, labels, 0.0, None)
            taken.append(time.perf_counter() - began)
    return GRADIENTS * sorted(taken[1:])[1] / len(x)


def _standard(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (D,) in float64; a feature that never varies has 1, and so no influence."""
    std, mean = torch.std_mean(features.double(), dim=0, correction=0)
    return mean, torch.where(std > 1e-12, std, 1.0)


def _unfold(weights: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias, float32, that do the standardisation too."""
    weight = weights[:, :-1] / scale
    return weight.float(), (weights[:, -1] - weight @ mean).float()


def _try(
    probe: tuple[Tensor, Tensor], strength: float, train: LabelledFeatures, validation: LabelledFeatures | None
) -> ProbeTrial:
    def judge(features: Tensor, labels: Tensor) -> tuple[float, float]:
        scores = F.linear(features.float(), *probe)
        accuracy = (scores.argmax(dim=1) == labels).double().mean().item()
        return accuracy, F.cross_entropy(scores.double(), labels).item()

    return ProbeTrial(strength, judge(*train)[0], *(judge(*validation) if validation is not None else (None, None)))


def _check(features: Tensor, labels: Tensor, classes: int, weight_decays: Sequence[float]) -> None:
    if not len(features):
        raise UserError("there are no features to learn from; give at least one image.")
    if not torch.isfinite(features).all():
        raise UserError(
            "the features are not all numbers (NaN or infinite): the model's weights are damaged, or its training "
            "diverged."
        )
    assert len(features) == len(labels)
    assert 0 <= int(labels.min()) <= int(labels.max()) < classes
    if not weight_decays or min(weight_decays) < 0:
        raise UserError(f"weight_decays={tuple(weight_decays)}: give at least one number, none below 0.")
