"""One model after another read on the pictures of an analysis: its depths, its probes, and its answers under noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.config.model import grid_of
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.evaluate.classify import wilson
from vitreous.evaluate.probe import fit_linear
from vitreous.explain.noise import BANDS, band_mask, band_noise
from vitreous.explain.survey import Survey, pool_depths
from vitreous.model.network import require
from vitreous.model.vit import ViT
from vitreous.weights.bundle import Bundle

WEIGHT_DECAY = 1e-2
"""The same at every depth and for every model, so that only the features differ."""
NOISE = 0.1
"""Root mean square of the noise, where black is 0 and white 1."""
ELEMENTS = 2**24
"""Numbers that the attention of one layer may have in a batch."""

Progress = Callable[[int, int], None]


class Chosen(NamedTuple):
    """The pictures of an analysis."""

    part: str
    measured: Source
    learned: Source | None
    """What probes learn from; None without labels."""


class Learned(NamedTuple):
    """Features of the pictures to learn from."""

    depths: Tensor
    """(m, L + 1, D), the mean of the patch tokens at each depth."""
    representations: Tensor
    """(m, D)."""
    labels: Tensor
    """(m,)."""


class ModelReader:
    """Reads models one after another, all on the same pictures."""

    def __init__(self, chosen: Chosen, seed: int, workers: int | None, progress: Progress | None, total: int) -> None:
        self.chosen, self.seed, self.workers, self.progress, self.total = chosen, seed, workers, progress, total
        self.remarks: list[str] = []
        self.index: list[int] | None = None
        """The measured pictures that can be read: the same for every model."""
        self._done = 0

    def read(self, name: str, bundle: Bundle) -> tuple[dict[str, Any], Tensor]:
        """All numbers of a model, and its pictures' mean tokens (n, L + 1, D)."""
        model = require(bundle.model, ViT, f"analysis of {name}").eval()
        config = model.config
        patches = math.prod(grid_of(bundle.preprocess.size, config.patch))
        if patches < 2:
            raise UserError(f"{name}: sees a picture as one patch, so there is nothing to compare within it.")
        tokens = config.prefix + patches
        batch = min(32, max(1, ELEMENTS // (config.heads * tokens**2)))
        learned = None if self.chosen.learned is None else self._learn(name, bundle, model, self.chosen.learned, batch)
        judge = None if learned is None else self._judge(name, bundle, learned)
        survey, noisy, index = Survey(model), _Noise(bundle, self.seed), []
        for images, at in self._batches(bundle, self.chosen.measured, batch):
            with _named(name):
                survey.look(images)
            if judge is not None:
                noisy.look(images, at, judge)
            index += at
        assert self.index in (None, index)
        self.index = index
        found = {"name": name, "shape": _shape(bundle, model), "grid": list(survey.grid), **survey.numbers()}
        if learned is not None and judge is not None:
            labels = torch.from_numpy(self.chosen.measured.labels)[index]
            found["probe"] = _probe_depths(learned, survey, labels, len(self.chosen.measured.classes))
            found["noise"] = noisy.numbers(labels)
        return found, survey.depths()

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
        """Look at the pictures to learn from."""
        depths, representations, index = [], [], []
        for images, at in self._batches(bundle, source, batch):
            with _named(name):
                pooled, y = pool_depths(model, images)
            depths.append(pooled)
            representations.append(y)
            index += at
        labels = torch.from_numpy(source.labels)[index]
        return Learned(torch.cat(depths).clone(), torch.cat(representations).clone(), labels)

    def _judge(self, name: str, bundle: Bundle, learned: Learned) -> Callable[[Tensor], Tensor]:
        """From images (B, C, H, W) to the data's classes (B,): by the model's own classifier if it has them all."""
        classes = self.chosen.measured.classes
        if set(classes) <= set(bundle.labels):
            number = {label: k for k, label in enumerate(classes)}
            own = torch.tensor([number.get(label, -1) for label in bundle.labels])
            return lambda images: own[bundle.model(images).argmax(dim=1)]
        self.remarks.append(f"{name}: its accuracy under noise is that of a linear probe on clean pictures' features.")
        probe = fit_linear(learned.representations, learned.labels, len(classes), weight_decays=[WEIGHT_DECAY])
        return lambda images: probe(bundle.model.representation(images)).argmax(dim=1)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of a mistake within which model it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


class _Noise:
    """Answers to pictures as they are, and with noise of one band after another."""

    def __init__(self, bundle: Bundle, seed: int) -> None:
        self.seed = seed
        self.std = torch.tensor(bundle.preprocess.std)[:, None, None]
        self.bands = [band for band in BANDS if band_mask(bundle.preprocess.size, band).any()]
        self.clean: list[Tensor] = []
        self.answers: list[list[Tensor]] = [[] for _ in self.bands]

    def look(self, images: Tensor, index: list[int], judge: Callable[[Tensor], Tensor]) -> None:
        """Ask about a batch (B, C, H, W) once, and once for each band."""
        channels, height, width = images.shape[1:]
        with torch.inference_mode():
            self.clean.append(judge(images))
            for band, answers in zip(self.bands, self.answers, strict=True):
                noise = np.stack([band_noise((channels, height, width), band, self.seed, at) for at in index])
                answers.append(judge(images + NOISE * torch.from_numpy(noise) / self.std))

    def numbers(self, labels: Tensor) -> dict[str, Any]:
        """Accuracy without noise and with noise of each band."""
        found = [_accuracy(torch.cat(answers), labels) for answers in self.answers]
        bands = [list(band) for band in self.bands]
        return {"clean": _accuracy(torch.cat(self.clean), labels), "bands": bands, "accuracy": found}


def _probe_depths(learned: Learned, survey: Survey, labels: Tensor, classes: int) -> dict[str, Any]:
    depths, representations, known = learned
    asked = survey.depths()
    accuracy = []
    for depth in range(depths.shape[1]):
        probe = fit_linear(depths[:, depth], known, classes, weight_decays=[WEIGHT_DECAY])
        accuracy.append(_accuracy(probe(asked[:, depth]).argmax(dim=1), labels))
    probe = fit_linear(representations, known, classes, weight_decays=[WEIGHT_DECAY])
    final = _accuracy(probe(survey.representations()).argmax(dim=1), labels)
    return {"accuracy": accuracy, "representation": final}


def _accuracy(answers: Tensor, labels: Tensor) -> dict[str, Any]:
    right = int((answers == labels).sum())
    return {"value": right / len(labels), "interval": list(wilson(right, len(labels))), "n": len(labels)}


def _shape(bundle: Bundle, model: ViT) -> dict[str, Any]:
    c = model.config
    return {
        "width": c.width,
        "depth": c.depth,
        "heads": c.heads,
        "patch": c.patch,
        "size": list(bundle.preprocess.size),
        "classes": c.classes,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
