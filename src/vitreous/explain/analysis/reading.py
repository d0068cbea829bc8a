"""One model after another read on the images of an analysis: its depths, its probes, and its answers under noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.config.model import grid_of
from vitreous.data.batch import Rows
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.explain.analysis.noise import BANDS, band_mask, band_noise
from vitreous.explain.analysis.numbers import AccuracyInterval, ModelNumbers, Probes, Shape, UnderNoise
from vitreous.explain.analysis.survey import Survey, pool_depths
from vitreous.model.network import require
from vitreous.model.predictions import predicted_class
from vitreous.model.vit import ViT
from vitreous.weights.bundle import Bundle

NOISE = 0.1
"""Root mean square of the noise, where black is 0 and white 1."""
ELEMENTS = 2**24
"""Numbers that the attention of one layer may have in a batch."""

Progress = Callable[[int, int], None]
Classifier = Callable[[Tensor], Tensor]


class Judge(NamedTuple):
    """Who says what features are worth."""

    fit: Callable[[Tensor, Tensor, int], Classifier]
    """A classifier of features (n, D) by labels (n,) of so many classes: scores (m, K) of others (m, D)."""
    accuracy: Callable[[Tensor, Tensor], AccuracyInterval]
    """Of answers (n,) beside labels (n,)."""


class Chosen(NamedTuple):
    """The images of an analysis."""

    split: str
    measured: Source
    learned: Source | None
    """What probes learn from; None without labels."""


class Learned(NamedTuple):
    """Features of the images to learn from."""

    depths: Tensor
    """(m, L + 1, D), the mean of the patch tokens at each depth."""
    representations: Tensor
    """(m, D)."""
    labels: Tensor
    """(m,)."""


class ModelReader:
    """Reads models one after another, all on the same images."""

    def __init__(
        self, chosen: Chosen, judge: Judge, seed: int, workers: int | None, progress: Progress | None, total: int
    ) -> None:
        self.chosen, self.judge, self.seed, self.workers = chosen, judge, seed, workers
        self.progress, self.total = progress, total
        self.remarks: list[str] = []
        self.index: list[int] | None = None
        """The measured images that can be read: the same for every model."""
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
        answer = None if learned is None else self._answering(name, bundle, learned)
        count = len(self.chosen.measured)
        survey, noisy, index = Survey(model, count), _Noise(bundle, self.seed, count), []
        for images, at in self._batches(bundle, self.chosen.measured, batch):
            with naming(name):
                survey.look(images)
            if answer is not None:
                noisy.look(images, at, answer)
            index += at
        assert self.index in (None, index)
        self.index = index
        labels = torch.from_numpy(self.chosen.measured.labels)[index]
        numbers = ModelNumbers(
            name=name,
            shape=_shape(bundle, model),
            grid=survey.grid,
            measures=survey.measures(),
            probe=None if learned is None else self._probe_depths(learned, survey, labels),
            noise=None if learned is None else noisy.judged(lambda answers: self.judge.accuracy(answers, labels)),
        )
        return numbers, survey.depths()

    def _batches(self, bundle: Bundle, source: Source, batch: int) -> Iterator[tuple[Tensor, list[int]]]:
        """Images (B, C, H, W) and their indices."""
        workers = choose_workers(self.workers, len(source))
        loader = Loader(source, bundle.preprocess, batch_size=batch, workers=workers, cache_bytes=0)
        try:
            for made in loader.batches():
                yield made.images, made.index.tolist()
                self._done += len(made.index)
                if self.progress is not None:
                    self.progress(self._done, self.total)
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
        return Learned(depths.all(), representations.all(), labels)

    def _answering(self, name: str, bundle: Bundle, learned: Learned) -> Callable[[Tensor], Tensor]:
        """From images (B, C, H, W) to the data's classes (B,): by the model's own classifier if it has them all."""
        classes = self.chosen.measured.classes
        if set(classes) <= set(bundle.labels):
            number = {label: k for k, label in enumerate(classes)}
            own = torch.tensor([number.get(label, -1) for label in bundle.labels])
            return lambda images: own[predicted_class(bundle.model(images))]
        self.remarks.append(f"{name}: its accuracy under noise is that of a linear probe on clean images' features.")
        probe = self.judge.fit(learned.representations, learned.labels, len(classes))
        return lambda images: predicted_class(probe(bundle.model.representation(images)))

    def _probe_depths(self, learned: Learned, survey: Survey, labels: Tensor) -> Probes:
        """Accuracy of a linear probe at each depth, and of one on the representation."""
        depths, representations, known = learned
        classes, asked = len(self.chosen.measured.classes), survey.depths()

        def judged(features: Tensor, others: Tensor) -> AccuracyInterval:
            return self.judge.accuracy(predicted_class(self.judge.fit(features, known, classes)(others)), labels)

        return Probes(
            accuracy=tuple(judged(depths[:, depth], asked[:, depth]) for depth in range(depths.shape[1])),
            representation=judged(representations, survey.representations()),
        )


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
        self.bands = [band for band in BANDS if band_mask(bundle.preprocess.size, band).any()]
        self.clean = Rows(count)
        self.answers = [Rows(count) for _ in self.bands]

    def look(self, images: Tensor, index: list[int], answer: Callable[[Tensor], Tensor]) -> None:
        """Ask about a batch (B, C, H, W) once, and once for each band."""
        channels, height, width = images.shape[1:]
        with torch.inference_mode():
            self.clean.add(answer(images))
            for band, answers in zip(self.bands, self.answers, strict=True):
                noise = np.stack([band_noise((channels, height, width), band, self.seed, at) for at in index])
                answers.add(answer(images + NOISE * torch.from_numpy(noise) / self.std))

    def judged(self, accuracy: Callable[[Tensor], AccuracyInterval]) -> UnderNoise:
        """Accuracy without noise and with noise of each band."""
        return UnderNoise(
            clean=accuracy(self.clean.all()),
            bands=tuple(self.bands),
            accuracy=tuple(accuracy(answers.all()) for answers in self.answers),
        )


def _shape(bundle: Bundle, model: ViT) -> Shape:
    c = model.config
    return Shape(
        width=c.width,
        depth=c.depth,
        heads=c.heads,
        patch=c.patch,
        size=bundle.preprocess.size,
        classes=c.classes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
