"""Models side by side on the same images: what they learned, depth by depth, or which inductive bias they have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.callbacks import Progress
from vitreous.data.loader import choose_workers
from vitreous.data.opening import open_images
from vitreous.data.rng import balanced_order
from vitreous.data.source import Data, Labels, Source
from vitreous.errors import UserError
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.probe import LinearProbe, fit_linear, held_out
from vitreous.explain.analysis.bias import measure_bias
from vitreous.explain.analysis.bias_result import Bias, BiasAnalysis
from vitreous.explain.analysis.depth_measures import summarise
from vitreous.explain.analysis.depth_result import AccuracyInterval, Cka, DepthAnalysis, MeasuredOn, Table
from vitreous.explain.analysis.depths import NOISE, Chosen, Judge, ModelReader, count_probes, naming
from vitreous.explain.analysis.measures import linear_cka
from vitreous.inference.memory_needs import check_explanation_memory, choose_bias_batch
from vitreous.model.network import evaluating, require
from vitreous.model.vit import ViT
from vitreous.weights.bundle import Bundle

WEIGHT_DECAY = 1e-2  # the same at every depth and for every model, so that only the features differ
MIN_IMAGES = 8  # fewer are too few to compare models


def measure_depths(
    models: Sequence[tuple[str, Bundle]],
    data: str | Path | Data,
    *,
    images: int,
    seed: int,
    workers: int | None,
    progress: Progress,
) -> DepthAnalysis:
    """Attention, tokens and linear probes by depth, of Vision Transformers by name.

    images: measured of the test split (else val, else half of all), at most; the linear probes learn from as many of
        the train split. Without labels, what needs them is left out.
    """
    opened = open_images(data)
    chosen = choose_images(opened, images, seed)
    total = 0
    for name, bundle in models:
        config = require(bundle.model, ViT, f"analysis of {name}").config
        check_explanation_memory(bundle, "attention")
        total += len(chosen.measured)
        total += 0 if chosen.learned is None else len(chosen.learned) + count_probes(config.depth)
    reader = ModelReader(chosen, Judge(_fit, _accuracy), seed, workers, progress, total)
    measured, depths = [], []
    for name, bundle in models:
        with evaluating(bundle.model):
            numbers, features = reader.read(name, bundle)
        measured.append(numbers)
        depths.append(features)
    unlabelled = ("without labels, accuracy by depth and under noise are left out.",)
    return DepthAnalysis(
        data=_describe(data, chosen, len(reader.index or ()), seed),
        summary=summarise(measured),
        models=tuple(measured),
        cka=_compare(depths),
        noise_strength=NOISE,
        remarks=(*opened.notes, *(unlabelled if chosen.learned is None else ()), *reader.remarks),
    )


def measure_biases(
    models: Sequence[tuple[str, Bundle]],
    data: str | Path | Data,
    *,
    images: int,
    seed: int,
    workers: int | None,
    progress: Progress,
) -> BiasAnalysis:
    """What moving, shuffling and filtering images does to the predictions of models of any family, by name.

    The images are those of `measure_depths`; each is processed about 30 times. Accuracies are those of the models that
    have all classes of the data, if there are labels.
    """
    opened = open_images(data)
    chosen = choose_images(opened, images, seed)
    batches = [choose_bias_batch(bundle) for _, bundle in models]
    remarks = list(opened.notes)
    found: list[tuple[str, Bias]] = []

    def report(number: int, done: int, total: int) -> None:
        progress(number * total + done, len(models) * total)

    for number, (name, bundle) in enumerate(models):
        source, notes = chosen.measured, []
        if set(source.classes) <= set(bundle.labels):
            source = source.relabelled(bundle.labels)
        else:
            source = source.with_labels(np.full(len(source), -1, dtype=np.int64), source.classes)
            notes = [f"{name}: it does not have the classes of the data, so its accuracy is left out."]
        with naming(name):
            bias = measure_bias(
                bundle.model,
                bundle.preprocess,
                source,
                seed=seed,
                batch_size=batches[number],
                workers=choose_workers(workers, len(source)),
                progress=partial(report, number),
            )
        found.append((name, bias))
        notes += [f"left out: {image}" for image in bias.unreadable]
        remarks += [note for note in notes if note not in remarks]
    return BiasAnalysis(_describe(data, chosen, found[0][1].images, seed), tuple(found), tuple(remarks))


def name_models(models: Sequence[str | Path | Bundle]) -> list[str]:
    """The end of each model's path, with a number if it has none or others have the same."""
    names = []
    for number, model in enumerate(models, start=1):
        path = model.path if isinstance(model, Bundle) else Path(model)
        if path is not None and path.name == "bundle":
            path = path.resolve().parent
        name = "" if path is None else path.stem if path.is_file() else path.name
        names.append(name or f"model {number}")
    return [f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names, start=1)]


def choose_images(data: Data, count: int, seed: int) -> Chosen:
    """At most `count` images to measure and as many to learn from, balanced over the classes."""
    labelled = bool(data.classes) and not any((source.labels < 0).any() for source in data.splits.values())
    splits = data.splits
    name: str
    learned: Source | None = None
    if len(splits) == 1 or "train" not in splits:
        split, measured = list(splits.items())[-1]
        name = split if len(splits) > 1 else "all"
        if labelled:
            held = held_out(torch.from_numpy(measured.labels), 0.5, seed).numpy()
            learned, measured = measured.subset(np.flatnonzero(~held)), measured.subset(np.flatnonzero(held))
            name = f"half of the {split} split"
    else:
        split = "test" if "test" in splits else "val"
        name, measured, learned = split, splits[split], splits["train"] if labelled else None
    if len(measured) < MIN_IMAGES:
        raise UserError(
            f"{len(measured)} images to measure ({name}): a comparison needs at least {MIN_IMAGES}; give more."
        )

    def balanced(labels: Labels) -> Labels:
        return np.sort(balanced_order(labels, seed, epoch=0)[:count])

    return Chosen(
        name,
        measured.subset(balanced(measured.labels)),
        None if learned is None else learned.subset(balanced(learned.labels)),
    )


def _describe(data: str | Path | Data, chosen: Chosen, images: int, seed: int) -> MeasuredOn:
    learned = chosen.learned
    return MeasuredOn(
        source="data in memory" if isinstance(data, Data) else str(data),
        split=chosen.split,
        images=images,
        data_description=None if learned is None else len(learned),
        classes=None if learned is None else len(learned.classes),
        seed=seed,
    )


def _fit(features: Tensor, labels: Tensor, classes: int) -> LinearProbe:
    return fit_linear(features, labels, classes, weight_decays=[WEIGHT_DECAY])


def _accuracy(predictions: Tensor, labels: Tensor) -> AccuracyInterval:
    right = int((predictions == labels).sum())
    return AccuracyInterval(right / len(labels), wilson(right, len(labels)), len(labels))


def _compare(depths: Sequence[Tensor]) -> tuple[Cka, ...]:
    """CKA of every two models, and of each with itself: rows are depths of the first, columns of the second."""

    def compare(one: Tensor, other: Tensor) -> Table:
        return tuple(
            tuple(round(linear_cka(one[:, a], other[:, b]), 5) for b in range(other.shape[1]))
            for a in range(one.shape[1])
        )

    pairs = combinations_with_replacement(range(len(depths)), 2)
    return tuple(Cka((i, j), compare(depths[i], depths[j])) for i, j in pairs)
