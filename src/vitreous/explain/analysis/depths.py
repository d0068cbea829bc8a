"""Models read one after another on the same images: each depth by depth, its linear probes, its accuracy under noise.

Each layer's attention and tokens are reduced as soon as they exist. What stays of a batch are numbers, of an image the
mean of its patch tokens at each depth. Depth 0 is the embedding, depth l the output of block l. Letters in shapes:
B images, h heads, N patches, D width, L layers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.callbacks import Progress
from vitreous.config.model import grid_of
from vitreous.data.batch import Rows
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.explain.analysis import measures
from vitreous.explain.analysis.depth_measures import (
    DEPTH_MEASURES,
    Features,
    LayerAttention,
    PatchTokens,
    as_numbers,
)
from vitreous.explain.analysis.depth_result import AccuracyInterval, ModelNumbers, Probes, Shape, UnderNoise
from vitreous.model.network import require
from vitreous.model.predictions import predicted_class
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT
from vitreous.weights.bundle import Bundle

MAX_COSTLY_IMAGES = 64  # on which costly measures are taken
NOISE = 0.1  # root mean square of the noise, where black is 0 and white 1
ELEMENTS = 2**24  # numbers that the attention of one layer may have in a batch

Classifier = Callable[[Tensor], Tensor]
Fit = Callable[[Tensor, Tensor, int], Classifier]


class Judge(NamedTuple):
    """Who says what features are worth."""

    fit: Fit
    """A classifier of features (n, D) by labels (n,) of so many classes: scores (m, K) of others (m, D)."""
    accuracy: Callable[[Tensor, Tensor], AccuracyInterval]  # of predictions (n,) beside labels (n,)


class Chosen(NamedTuple):
    """The images of an analysis."""

    split: str
    measured: Source
    learned: Source | None  # what probes learn from; None without labels


Learned = tuple[Tensor, Tensor, Tensor]
"""Of m images to learn from: mean patch tokens (m, L + 1, D), representations (m, D), labels (m,)."""


class _Pooling(Trace):
    """Keeps of each depth the mean of the patch tokens, (B, D)."""

    def __init__(self) -> None:
        super().__init__(None, attention=False)

    def record_tokens(self, layer: int, tokens: Tensor) -> None:
        if not torch.isfinite(tokens).all():
            raise UserError(
                f"gives tokens that are not numbers, from layer {layer} on: its weights are damaged, or its training "
                "diverged."
            )
        self.tokens[layer] = tokens[:, self.prefix :].mean(dim=1)

    def depths(self) -> Tensor:
        """(B, L + 1, D)."""
        assert self.embedded is not None
        pooled = [self.tokens[layer] for layer in sorted(self.tokens)]
        return torch.stack([self.embedded[:, self.prefix :].mean(dim=1), *pooled], dim=1)


class _Reading(_Pooling):
    """Reduces each layer to sums over the batch's images, measure by measure."""

    def __init__(self, patch: int, few: int) -> None:
        super().__init__()
        self.wants_attention = True
        self.patch = patch
        self.few = few  # images of this batch on which costly measures are wanted
        self.sums: dict[str, dict[int, Tensor]] = defaultdict(dict)  # name and depth to a sum over images

    def record_attention(self, layer: int, attention: Tensor) -> None:
        weights = measures.patch_attention(attention, self.prefix)
        self._reduce("attention", layer + 1, LayerAttention(weights, self.grid, self.patch))
        self.attention[layer] = weights.mean(dim=1)  # (B, N, N), for the comparison of depths

    def record_tokens(self, layer: int, tokens: Tensor) -> None:
        super().record_tokens(layer, tokens)
        self._reduce_tokens(layer + 1, tokens[:, self.prefix :])

    def _reduce_tokens(self, depth: int, patches: Tensor) -> None:
        some = PatchTokens(patches[: self.few], self.grid) if self.few else None
        self._reduce("tokens", depth, PatchTokens(patches, self.grid), some)

    def _reduce(self, of: str, depth: int, seen: Any, some: Any = None) -> None:
        """seen: what measures read; some: what costly ones read, None for nothing."""
        for name, measure in DEPTH_MEASURES.items():
            if measure.of == of and (read := some if measure.few else seen) is not None:
                self.sums[name][depth] = measure.compute(read).sum(dim=0)

    def finish(self) -> None:
        """Reduce what only the whole pass has: the embedding, and the layers beside each other."""
        assert self.embedded is not None
        self._reduce_tokens(0, self.embedded[:, self.prefix :])
        self._reduce("layers", 0, torch.stack([self.attention[layer] for layer in sorted(self.attention)], dim=1))


class Survey:
    """What was seen of one model: feed it batches with `add`, then ask."""

    def __init__(self, model: ViT, count: int) -> None:
        """count: images that will come at most."""
        self.model, self.seen, self.few, self.grid = model, 0, 0, (0, 0)
        self._sums: dict[str, dict[int, Tensor]] = defaultdict(dict)
        self._depths, self._representations = Rows(count), Rows(count)

    def add(self, images: Tensor) -> None:
        """Take in a batch of images (B, C, H, W)."""
        wanted = min(len(images), MAX_COSTLY_IMAGES - self.few)
        trace = _Reading(self.model.config.patch, wanted)
        with torch.inference_mode():
            y = self.model.representation(images, trace=trace)
            trace.finish()
        for name, by_depth in trace.sums.items():
            for depth, value in by_depth.items():
                before = self._sums[name].get(depth)
                self._sums[name][depth] = value.double() if before is None else before + value
        self.grid = trace.grid
        self.seen += len(images)
        self.few += wanted
        self._depths.add(trace.depths())
        self._representations.add(y)

    def depths(self) -> Tensor:
        """(n, L + 1, D): of each image the mean of its patch tokens at each depth."""
        return self._depths.all()

    def representations(self) -> Tensor:
        """(n, D): what the classifier reads."""
        return self._representations.all()

    def measures(self) -> dict[str, Any]:
        """By name what each row of `DEPTH_MEASURES` found, as nested tuples."""
        features, found = Features(self.depths(), self.representations(), self.grid), {}
        for name, measure in DEPTH_MEASURES.items():
            if measure.of == "features":
                values = measure.compute(features)
            else:
                sums, images = self._sums[name], self.few if measure.few else self.seen
                values = torch.stack([sums[depth] / images for depth in sorted(sums)])
            found[name] = as_numbers(values[0] if measure.of == "layers" else values)
        return found


def pool_depths(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L + 1, D) mean patch tokens at each depth, and the representation (B, D); attention stays fused."""
    trace = _Pooling()
    with torch.inference_mode():
        y = model.representation(images, trace=trace)
    return trace.depths(), y


class ModelReader:
    """Reads models one after another, all on the same images."""

    def __init__(
        self, chosen: Chosen, judge: Judge, seed: int, workers: int | None, progress: Progress | None, total: int
    ) -> None:
        self.chosen, self.judge, self.seed, self.workers = chosen, judge, seed, workers
        self.progress, self.total = progress, total
        self.remarks: list[str] = []
        self.index: list[int] | None = None  # the measured images that can be read: the same for every model
        self._done = 0

    def read(self, name: str, bundle: Bundle) -> tuple[ModelNumbers, Tensor]:
        """All numbers of a model, and its images' mean tokens (n, L + 1, D)."""
        model = require(bundle.model, ViT, f"analysis of {name}")
        config = model.config
        patches = math.prod(grid_of(bundle.preprocess.size, config.patch))
        if patches < 2:
            raise UserError(f"{name}: sees an image as one patch, so there is nothing to compare within it.")
        tokens = config.prefix + patches
        batch = min(32, max(1, ELEMENTS // (config.heads * tokens**2)))
        learned = None if self.chosen.learned is None else self._learn(name, bundle, model, self.chosen.learned, batch)
        classify = None if learned is None else self._classifier(name, bundle, learned)
        count = len(self.chosen.measured)
        survey, noisy, index = Survey(model, count), _Noise(bundle, self.seed, count), []
        for images, at in self._batches(bundle, self.chosen.measured, batch):
            with naming(name):
                survey.add(images)
            if classify is not None:
                noisy.add(images, at, classify)
            index += at
        assert self.index in (None, index)
        self.index = index
        labels = torch.from_numpy(self.chosen.measured.labels)[index]
        numbers = ModelNumbers(
            name=name,
            shape=Shape(
                **{name: getattr(config, name) for name in ("width", "depth", "heads", "patch", "classes")},
                size=bundle.preprocess.size,
                parameters=sum(parameter.numel() for parameter in model.parameters()),
            ),
            grid=survey.grid,
            measures=survey.measures(),
            probe=None if learned is None else self._probe_depths(learned, survey, labels),
            noise=None
            if learned is None
            else noisy.accuracies(lambda predictions: self.judge.accuracy(predictions, labels)),
        )
        return numbers, survey.depths()

    def _advance(self, steps: int) -> None:
        """steps: images read, or probes fitted."""
        self._done += steps
        if self.progress is not None:
            self.progress(self._done, self.total)

    def _batches(self, bundle: Bundle, source: Source, batch: int) -> Iterator[tuple[Tensor, list[int]]]:
        """Images (B, C, H, W) and their indices."""
        workers = choose_workers(self.workers, len(source))
        loader = Loader(source, bundle.preprocess, batch_size=batch, workers=workers, cache_bytes=0)
        try:
            for made in loader.batches():
                yield made.images, made.index.tolist()
                self._advance(len(made.index))
        finally:
            loader.close()
        for path, reason in loader.unreadable.items():
            if (remark := f"left out: {path}: {reason}") not in self.remarks:
                self.remarks.append(remark)

    def _learn(self, name: str, bundle: Bundle, model: ViT, source: Source, batch: int) -> Learned:
        """Look at the images to learn from."""
        depths, representations, index = Rows(len(source)), Rows(len(source)), []
        for images, at in self._batches(bundle, source, batch):
            with naming(name):
                pooled, y = pool_depths(model, images)
            depths.add(pooled)
            representations.add(y)
            index += at
        labels = torch.from_numpy(source.labels)[index]
        return depths.all(), representations.all(), labels

    def _classifier(self, name: str, bundle: Bundle, learned: Learned) -> Callable[[Tensor], Tensor]:
        """From images (B, C, H, W) to the data's classes (B,): by the model's own classifier if it has them all."""
        classes = self.chosen.measured.classes
        if set(classes) <= set(bundle.labels):
            number = {label: k for k, label in enumerate(classes)}
            own = torch.tensor([number.get(label, -1) for label in bundle.labels])
            return lambda images: own[predicted_class(bundle.model(images))]
        self.remarks.append(f"{name}: its accuracy under noise is that of a linear probe on clean images' features.")
        probe = self.judge.fit(*learned[1:], len(classes))
        return lambda images: predicted_class(probe(bundle.model.representation(images)))

    def _probe_depths(self, learned: Learned, survey: Survey, labels: Tensor) -> Probes:
        """Accuracy of a linear probe at each depth, and of one on the representation."""
        depths, representations, known = learned
        classes, asked = len(self.chosen.measured.classes), survey.depths()

        def fit(features: Tensor, labels: Tensor, classes: int) -> Classifier:
            probe = self.judge.fit(features, labels, classes)
            self._advance(1)
            return probe

        def judged(features: Tensor, others: Tensor) -> AccuracyInterval:
            return self.judge.accuracy(predicted_class(fit(features, known, classes)(others)), labels)

        return Probes(
            accuracy=tuple(judged(depths[:, depth], asked[:, depth]) for depth in range(depths.shape[1])),
            representation=judged(representations, survey.representations()),
            best_depth=best_depth(fit, depths, known, classes),
        )


def count_probes(depth: int) -> int:
    """How many probes are fitted to a model: one at each depth and two to choose among those, one of the end."""
    return 3 * (depth + 1) + 1


def best_depth(fit: Fit, features: Tensor, labels: Tensor, classes: int) -> int:
    """The depth of features (m, L + 1, D) whose probes are most often right in a two-fold cross-validation.

    Every second image is in the same fold, so that images in the order of their classes are divided evenly. Where that
    tells nothing, as with one image per class, it is the last depth.
    """
    fold = torch.arange(len(labels)) % 2 == 1
    right = [0] * features.shape[1]
    for depth in range(len(right)):
        for learned in (fold, ~fold) if len(labels) > 1 else ():
            probe = fit(features[learned, depth], labels[learned], classes)
            right[depth] += int((predicted_class(probe(features[~learned, depth])) == labels[~learned]).sum())
    return right.index(max(right)) if any(right) else len(right) - 1


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Say of a mistake within which model it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


class _Noise:
    """Answers to images as they are, and with noise of one band after another."""

    def __init__(self, bundle: Bundle, seed: int, count: int) -> None:
        self.seed = seed
        self.std = torch.tensor(bundle.preprocess.std)[:, None, None]
        self.bands = [band for band in measures.BANDS if measures.band_mask(bundle.preprocess.size, band).any()]
        self.clean = Rows(count)
        self.predictions = [Rows(count) for _ in self.bands]

    def add(self, images: Tensor, index: list[int], classify: Callable[[Tensor], Tensor]) -> None:
        """Ask about a batch (B, C, H, W) once, and once for each band."""
        channels, height, width = images.shape[1:]
        with torch.inference_mode():
            self.clean.add(classify(images))
            for band, predictions in zip(self.bands, self.predictions, strict=True):
                noise = np.stack([measures.band_noise((channels, height, width), band, self.seed, at) for at in index])
                predictions.add(classify(images + NOISE * torch.from_numpy(noise) / self.std))

    def accuracies(self, accuracy: Callable[[Tensor], AccuracyInterval]) -> UnderNoise:
        """Accuracy without noise and with noise of each band."""
        return UnderNoise(
            clean=accuracy(self.clean.all()),
            bands=tuple(self.bands),
            accuracy=tuple(accuracy(predictions.all()) for predictions in self.predictions),
        )
