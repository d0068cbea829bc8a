"""Classifiers on frozen features: a linear classifier, the vote of the nearest images, least squares from a few.

- Linear: multinomial logistic regression on standardised features, by L-BFGS in float64, for several strengths of
  regularisation, each starting where the last one ended.
- Nearest neighbours, as in DINO: cosine similarity s, each of the k nearest votes with weight exp(s / T), T = 0.07.
- Few shots, "An Image is Worth 16x16 Words", section 4.1: regularised least squares in closed form; representations of
  a few images per class are mapped to targets in {-1, 1}^K. The constants are those of its authors' public code.

Letters: n images, D features, K classes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError
from vitreous.evaluation.intervals import wilson
from vitreous.model.predictions import is_right

WEIGHT_DECAYS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
"""Factors of half the squared length of the weights, added to the mean loss."""
FIT_GRADIENTS = 800
"""A fit over all strengths takes as long as this many gradients: on 37 classes of pets it computed 236 for 200 images
and 412 for 1,406, and as much time went into the rest."""
MAX_SINGLE_THREAD_PRODUCTS = 30_000_000  # products of a feature and a weight below which one thread computes a gradient

LabelledFeatures = tuple[Tensor, Tensor]  # features (n, D) and labels (n,)
NEIGHBOURS = (10, 20, 100, 200)  # the k that DINO reports
KNN_TEMPERATURE = 0.07
QUERY_CHUNK = 1024  # query images at once: their similarities to all known ones are in memory together
SHOTS = (1, 5, 10)
RIDGE_STRENGTH = 2.0**10
BIAS_FEATURE = 100.0  # a constant feature, so large that its weight, the bias, is hardly regularised
DRAWS = 5
STUDENT_T = 2.776445105  # Student's t for 95 % and DRAWS - 1 degrees of freedom


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier on features as the model gives them: `logits = features @ weight.T + bias`."""

    weight: Tensor  # (K, D) float32
    bias: Tensor  # (K,) float32
    weight_decay: float  # the regularisation that was chosen
    val_accuracies: dict[float, float]  # of each regularisation that was tried; empty without validation

    def __call__(self, features: Tensor) -> Tensor:
        """(n, D) to logits (n, K)."""
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
    probes: list[tuple[Tensor, Tensor]] = []
    accuracies: dict[float, float] = {}
    for strength in strengths:
        weights = _solve(weights, x, labels, strength, class_weights)
        probes.append(_unfold(weights, mean, scale))
        if validation is not None:
            right = is_right(F.linear(validation[0].float(), *probes[-1]), validation[1])
            accuracies[strength] = right.double().mean().item()
    chosen = 0
    if validation is not None:
        best = max(accuracies.values())
        error = (best * (1 - best) / len(validation[1])) ** 0.5
        # the strongest comes first
        chosen = next(i for i, accuracy in enumerate(accuracies.values()) if accuracy >= best - error)
    return LinearProbe(*probes[chosen], strengths[chosen], accuracies)


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
    torch.set_num_threads(1 if products < MAX_SINGLE_THREAD_PRODUCTS else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _descend(parameters: Tensor, x: Tensor, labels: Tensor, strength: float, weighted: Tensor | None) -> Tensor:
    """The loss at parameters (K, D + 1), whose gradient is added to theirs."""
    logits = F.linear(x, parameters[:, :-1], parameters[:, -1])
    total = F.cross_entropy(logits, labels, weight=weighted) + strength / 2 * parameters[:, :-1].square().sum()
    total.backward()  # type: ignore[no-untyped-call]
    return total


def seconds_per_image(width: int, classes: int) -> float:
    """Seconds that `fit_linear` takes per image with `width` features, estimated from a few gradients."""
    x, labels = torch.zeros(256, width, dtype=torch.float64), torch.arange(256) % classes
    parameters = torch.zeros(classes, width + 1, dtype=torch.float64, requires_grad=True)
    taken = []
    with torch.enable_grad(), _threads_for(x.numel() * classes):
        for _ in range(4):  # the first warms up
            began = time.perf_counter()
            _descend(parameters, x, labels, 0.0, None)
            taken.append(time.perf_counter() - began)
    return FIT_GRADIENTS * sorted(taken[1:])[1] / len(x)


def _standard(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (D,) in float64; a feature that never varies has 1, and so no influence."""
    std, mean = torch.std_mean(features.double(), dim=0, correction=0)
    return mean, torch.where(std > 1e-12, std, 1.0)


def _unfold(weights: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias, float32, that do the standardisation too."""
    weight = weights[:, :-1] / scale
    return weight.float(), (weights[:, -1] - weight @ mean).float()


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


def vote_neighbours(
    known: Tensor,
    labels: Tensor,
    queries: Tensor,
    classes: int,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = KNN_TEMPERATURE,
) -> dict[int, Tensor]:
    """For each k the votes (n, K) that the query images (n, D) get from the known ones (m, D) with labels (m,)."""
    most = max(neighbours, default=0)
    if not neighbours or min(neighbours) < 1 or most > len(known):
        raise UserError(f"neighbours={tuple(neighbours)}: give numbers from 1 to the {len(known)} known images.")
    known = F.normalize(known.float())
    votes: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    for some in torch.split(queries, QUERY_CHUNK):
        similarity, nearest = (F.normalize(some.float()) @ known.T).topk(most)  # (c, most) both
        weights = (similarity / temperature).exp()
        of_class = labels[nearest]
        for k in neighbours:
            empty = torch.zeros(len(some), classes)
            votes[k].append(empty.scatter_add_(1, of_class[:, :k], weights[:, :k]))
    return {k: torch.cat(parts) for k, parts in votes.items()}


def fit_least_squares(
    features: Tensor, labels: Tensor, classes: int, strength: float = RIDGE_STRENGTH
) -> tuple[Tensor, Tensor]:
    """Weight (K, D) and bias (K,): argmin |X W - Y|^2 + strength |W|^2, X standardised with a constant feature.

    features: (n, D) as the model gives them; labels: (n,). The result does the standardisation too.
    """
    x = features.double()
    std, mean = torch.std_mean(x, dim=0, correction=0)
    scale = std + 1e-5
    x = F.pad((x - mean) / scale, (0, 1), value=BIAS_FEATURE)  # (n, D + 1)
    y = 2 * F.one_hot(labels, classes).double() - 1
    if len(x) >= x.shape[1]:
        solved = torch.linalg.solve(x.T @ x + strength * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)
    else:  # the same solution from the smaller system
        solved = x.T @ torch.linalg.solve(x @ x.T + strength * torch.eye(len(x), dtype=x.dtype), y)
    weight = (solved[:-1] / scale[:, None]).T
    return weight.float(), (BIAS_FEATURE * solved[-1] - weight @ mean).float()


def draw_shots(labels: Tensor, shots: Sequence[int], seed: int) -> dict[int, Tensor]:
    """By number of shots, the indices of that many images of each class; smaller draws are part of larger ones."""
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
    drawn = STUDENT_T * float(np.std(accuracies, ddof=1)) / math.sqrt(DRAWS)
    low, high = wilson(mean * n, n)
    return max(0.0, mean - math.hypot(mean - low, drawn)), min(1.0, mean + math.hypot(high - mean, drawn))
