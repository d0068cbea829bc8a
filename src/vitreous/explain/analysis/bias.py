"""Which inductive bias a network has, measured: what moving, shuffling and filtering images does to its predictions.

For a network of any family. What it cannot tell, for it has no places or no attention, is None. Letters in shapes:
B images, C channels, H x W pixels, K classes, N patches, D features, h x w places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.callbacks import Progress
from vitreous.config.data import Preprocess
from vitreous.data.batch import Rows
from vitreous.data.loader import Loader
from vitreous.data.rng import generator
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.explain.analysis import perturbations
from vitreous.explain.analysis.bias_result import (
    Bias,
    Effect,
    ReceptiveField,
    Shifts,
    high_enough,
    low_needed,
    mean_effect,
)
from vitreous.explain.analysis.depth_result import Values
from vitreous.explain.analysis.depths import ELEMENTS
from vitreous.explain.attention import attention_distance
from vitreous.model.network import HasFeatureMap, Network, TracesAttention, evaluating
from vitreous.model.predictions import class_probabilities, is_right, predicted_class
from vitreous.model.trace import Trace

FIELD_IMAGES, DISTANCE_IMAGES = 32, 64
"""Gradients and attention are costly and hardly differ between images: so many are enough."""

SIGNS = 3  # number of a view of `generator`: for the signs of the features
RADII = tuple(round(0.05 * step, 2) for step in range(1, 15))  # of the longer side; beyond there are only corners
ROUNDING = 1e-9

Change = Callable[[Tensor, Sequence[int]], Tensor]
Map = NDArray[np.float64]


def measure_bias(
    network: Network,
    preprocess: Preprocess,
    images: Source,
    *,
    seed: int = 0,
    batch_size: int = 32,
    workers: int = 0,
    progress: Progress | None = None,
) -> Bias:
    """What moving, shuffling and filtering these images do to the network's answers, and how far it looks.

    A few hundred images are enough, of which each is looked at some 30 times.
    images: their labels count in the network's classes (`Source.relabelled`); -1 for all where they are not known.
    batch_size: how many are looked at at once; it changes nothing in the result.
    progress: called with images done and in all; each counts twice, for it is decoded twice.
    """
    with evaluating(network):
        return _Measuring(network, preprocess, images, seed, batch_size, workers, progress).measure()


class NetworkOutput(NamedTuple):
    """What a network says about a batch."""

    probabilities: Tensor | None  # (B, K); None without a classifier
    features: Tensor
    """(B, D): what its last layer reads; with a feature map, the mean of that; else the representation."""


def ask(network: Network, images: Tensor) -> NetworkOutput:
    """The network's answer to images (B, C, H, W), in one pass."""
    with torch.inference_mode():
        if isinstance(network, TracesAttention):
            trace = Trace((), attention=False, tokens=False)
            scores, features = network(images, trace=trace), trace.pre_logits
            assert features is not None
        else:
            features, scores = network.outputs(images)
        if not torch.isfinite(scores).all():
            raise UserError("gives scores that are not numbers: its weights are damaged, or its training diverged.")
        return NetworkOutput(
            class_probabilities(scores.double()) if network.config.classes else None, features.double()
        )


def patch_side(network: Network, size: tuple[int, int]) -> int | None:
    """Side of a patch, or the stride of the last feature map, in pixels; None of a network without places.

    A map tells how many places a side has, not how far they lie apart. If several strides would give as many, it is a
    power of two, as in nearly all convolutional networks, and the nearest.
    """
    if isinstance(network, TracesAttention):
        return network.config.patch
    if not isinstance(network, HasFeatureMap):
        return None
    with torch.inference_mode():
        places = network.feature_map(torch.zeros(1, network.config.channels, *size, device=network.device)).shape[2]
    height = size[0]
    counts = {stride: (height // stride, -(-height // stride)) for stride in range(1, 2 * height + 1)}
    strides = [stride for stride, count in counts.items() if places in count] or [max(1, round(height / places))]
    powers = [stride for stride in strides if stride & (stride - 1) == 0]
    return min(powers or strides, key=lambda stride: abs(math.log(stride * places / height)))


class _Responses:
    """The answers to changed images, beside those to the same images unchanged."""

    def __init__(self, at: float, change: Change, count: int) -> None:
        self.at, self.change, self._rows = at, change, Rows(count)

    def add(self, before: NetworkOutput, after: NetworkOutput) -> None:
        """Take in a batch."""
        cosine = F.cosine_similarity(before.features, after.features, dim=1)
        cosine = torch.where((before.features == after.features).all(dim=1), 1.0, cosine)  # both may be 0
        one, other = before.probabilities, after.probabilities
        if one is None or other is None:
            self._rows.add(cosine[:, None])
            return
        predicted = predicted_class(other)
        same, moved = is_right(one, predicted), (one - other).abs().sum(dim=1) / 2
        self._rows.add(torch.stack([cosine, same.double(), moved, predicted.double()], dim=1))

    def effect(self, labels: Tensor | None) -> Effect:
        """The means over images; labels: (n,), None if they are not known."""
        rows = self._rows.all()
        cosine, *others = (_rounded(column.mean()) for column in rows[:, :3].T)
        if not others:
            return Effect(self.at, None, None, cosine, None)
        accuracy = None if labels is None else _rounded((rows[:, 3] == labels).double().mean())
        return Effect(self.at, others[0], others[1], cosine, accuracy)


@dataclass
class _Measuring:
    network: Network
    preprocess: Preprocess
    source: Source
    seed: int
    batch_size: int
    workers: int
    progress: Progress | None

    def __post_init__(self) -> None:
        self.patch = patch_side(self.network, self.preprocess.size)
        self.unreadable: dict[str, str] = {}
        self._done = 0

    def measure(self) -> Bias:
        """Everything, in two passes over the images: as they are, and enlarged, to be moved."""
        size, count = self.preprocess.size, len(self.source)
        responses = {
            name: [_Responses(at, row.of_strength(at, self.seed), count) for at in row.strengths(size, self.patch)]
            for name, row in perturbations.PERTURBATIONS.items()
        }
        plain = _Responses(0, lambda images, index: images, count)
        looking = _Looking(self.network, self.preprocess.size, self.seed)
        index: list[int] = []
        for images, at in self._batches(self.preprocess):
            before = ask(self.network, images)
            plain.add(before, before)
            for one in chain.from_iterable(responses.values()):
                one.add(before, ask(self.network, one.change(images, at)))
            looking.add(images, at)
            index += at
        labels = self._labels(index)
        effects = {name: tuple(one.effect(labels) for one in found) for name, found in responses.items()}
        return Bias(
            images=len(index),
            size=self.preprocess.size,
            patch=self.patch,
            accuracy=plain.effect(labels).accuracy,
            shifts=self._shifts(labels),
            attention_distance=looking.attention_distance(),
            receptive_field=looking.receptive_field(),
            effects=effects,
            low_needed=low_needed(effects["low_pass"]),
            high_enough=high_enough(effects["high_pass"]),
            unreadable=tuple(f"{path}: {reason}" for path, reason in self.unreadable.items()),
        )

    def _shifts(self, labels: Tensor | None) -> Shifts:
        size, seed, count = self.preprocess.size, self.seed, len(self.source)
        still, *moved = (
            _Responses(distance, partial(perturbations.moved_windows, size=size, distance=distance, seed=seed), count)
            for distance in (0, *perturbations.distances(size, self.patch))
        )
        for images, at in self._batches(perturbations.enlarged(self.preprocess)):
            before = ask(self.network, still.change(images, at))
            still.add(before, before)
            for responses in moved:
                responses.add(before, ask(self.network, responses.change(images, at)))
        curve, patch = tuple(one.effect(labels) for one in moved), self.patch
        within = [effect for effect in curve if patch is None or effect.at < patch]
        whole = [effect for effect in curve if patch is not None and effect.at % patch == 0]
        return Shifts(still.effect(labels).accuracy, curve, mean_effect(within), mean_effect(whole))

    def _batches(self, preprocess: Preprocess) -> Iterator[tuple[Tensor, list[int]]]:
        """Images (B, C, H, W) and their numbers; what cannot be read is left out."""
        loader = Loader(self.source, preprocess, batch_size=self.batch_size, workers=self.workers, cache_bytes=0)
        try:
            for made in loader.batches():
                yield made.images, made.index.tolist()
                self._done += len(made.index)
                if self.progress is not None:
                    self.progress(self._done, 2 * len(self.source))
        finally:
            loader.close()
        self.unreadable |= loader.unreadable

    def _labels(self, index: list[int]) -> Tensor | None:
        """(n,) labels of these images; None if there is one that is not known, or nobody to know it."""
        labels = torch.from_numpy(self.source.labels)[index]
        return labels if self.network.config.classes and len(labels) and bool((labels >= 0).all()) else None


class _Looking:
    """How far a network looks, on the first images that come."""

    def __init__(self, network: Network, size: tuple[int, int], seed: int) -> None:
        self.network, self.size, self.seed = network, size, seed
        self._fields, self._field_images = np.zeros(size), 0
        self._distances = Rows(DISTANCE_IMAGES)

    def add(self, images: Tensor, index: Sequence[int]) -> None:
        """Take in a batch."""
        wanted = FIELD_IMAGES - self._field_images
        if wanted > 0 and isinstance(self.network, TracesAttention | HasFeatureMap):  # features with a place
            maps = gradient_maps(self.network, images[:wanted], self.seed, index[:wanted])
            self._fields += maps.sum(axis=0)
            self._field_images += len(maps)
        wanted = DISTANCE_IMAGES - self._distances.done
        if wanted > 0 and isinstance(self.network, TracesAttention):
            c = self.network.config
            tokens = c.prefix + (self.size[0] // c.patch + 1) * (self.size[1] // c.patch + 1)
            at_once = max(1, ELEMENTS // (c.heads * tokens**2))
            for part in images[:wanted].split(at_once):
                self._distances.add(torch.from_numpy(attention_distance(self.network, part)))

    def attention_distance(self) -> Values | None:
        """(layers,): the mean over images and heads, as a share of the longer side."""
        found = self._distances.all()
        if not len(found):
            return None
        return tuple(_rounded(value) for value in found.double().mean(dim=(0, 2)) / max(self.size))

    def receptive_field(self) -> ReceptiveField | None:
        return receptive_field(self._fields) if self._field_images else None


def _rounded(value: Tensor) -> float:
    """The digits that mean something."""
    return round(float(value), 5)


def gradient_maps(network: Network, images: Tensor, seed: int, index: Sequence[int]) -> Map:
    """(B, H, W), each of sum 1: the absolute gradient of the central features with respect to the pixels.

    The gradient is that of a sum of the features with random signs: plain sums of features after a LayerNorm never
    change, whatever the pixels do. index: the images' numbers, of which their signs follow.
    """
    # one at a time: what a backward pass keeps of a batch may not fit
    return np.concatenate([_gradient_map(network, images[i : i + 1], seed, index[i]) for i in range(len(images))])


def _gradient_map(network: Network, image: Tensor, seed: int, number: int) -> Map:
    with torch.enable_grad():
        leaf = image.detach().clone().requires_grad_()
        features = central_features(network, leaf)
        signs = 2.0 * generator(seed, 0, number, SIGNS).integers(0, 2, size=features.shape[1]) - 1
        total = (features * torch.from_numpy(signs).to(features)).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
    found = gradient.abs().sum(dim=1).double().cpu().numpy()
    mass = found.sum()
    if not np.isfinite(mass):
        raise UserError("gives gradients that are not numbers: its weights are damaged, or its training diverged.")
    flat: Map = np.zeros_like(found)
    return found / mass if mass > 0 else flat  # features that no pixel moves


def central_features(network: Network, images: Tensor) -> Tensor:
    """(B, D): of the place in the middle of the last feature map, or of the patch token there."""
    if isinstance(network, TracesAttention):
        trace = Trace([-1], attention=False)
        network.representation(images, trace=trace)
        (tokens,) = trace.tokens.values()
        rows, columns = trace.grid
        return tokens[:, trace.prefix + rows // 2 * columns + columns // 2]
    assert isinstance(network, HasFeatureMap)
    places = network.feature_map(images)
    return places[:, :, places.shape[2] // 2, places.shape[3] // 2]


def receptive_field(mean: Map) -> ReceptiveField | None:
    """The field of a mean gradient (H, W), around its own centre of mass; None where nothing depends on any pixel.

    Around its own: strides and padding move the middle of what a place sees away from the middle of its cell.
    """
    whole = mean.sum()
    if whole <= 0:
        return None
    shares = mean / whole
    rows, columns = np.indices(mean.shape)
    away = np.hypot(rows - (shares * rows).sum(), columns - (shares * columns).sum()) / max(mean.shape)
    order = np.argsort(away, axis=None, kind="stable")
    reached = np.cumsum(shares.ravel()[order])
    radius = float(away.ravel()[order][np.searchsorted(reached, 0.5 - ROUNDING)])
    mass = tuple(round(float(shares[away <= limit + ROUNDING].sum()), 5) for limit in RADII)
    return ReceptiveField(round(radius, 5), RADII, mass)
