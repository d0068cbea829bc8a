"""`vitreous analyze`: what models learned, depth by depth, or which inductive bias they have, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.arguments import Count, Seed, Workers, checked
from vitreous.config.data import Preprocess
from vitreous.data.loader import choose_workers
from vitreous.data.source import Data, Labels, Source
from vitreous.errors import UserError
from vitreous.evaluate.classify import wilson
from vitreous.evaluate.probe import LinearProbe, fit_linear, held_out
from vitreous.explain.analysis.bias import measure_bias
from vitreous.explain.analysis.bias_numbers import Bias, BiasNumbers
from vitreous.explain.analysis.numbers import Accuracy, Likeness, MeasuredOn, ModelNumbers, Numbers, Table
from vitreous.explain.analysis.reading import NOISE, Chosen, Judge, ModelReader, Progress, naming
from vitreous.explain.analysis.representation import linear_cka
from vitreous.explain.analysis.summary import summarise
from vitreous.inference.needs import check_explanation_memory, choose_bias_batch
from vitreous.inference.opening import open_images, open_model
from vitreous.model.network import evaluating, require
from vitreous.model.vit import ViT
from vitreous.report.analysis import analysis_page
from vitreous.report.bias import bias_page
from vitreous.storage.failures import readable_errors
from vitreous.storage.files import write_output
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder
from vitreous.training.budget.looking import class_by_class
from vitreous.weights.bundle import Bundle

WEIGHT_DECAY = 1e-2
"""The same at every depth and for every model, so that only the features differ."""
FILES = ("analysis.json", "analysis.html")
BIAS_FILES = ("bias.json", "bias.html")
FEWEST = 8
"""Images below which a comparison between images says nothing."""


@dataclass(frozen=True)
class Analysis:
    """What was measured, and where it lies."""

    numbers: Numbers
    json: Path
    page: Path


@dataclass(frozen=True)
class BiasAnalysis:
    """Which bias was measured, and where it lies."""

    numbers: BiasNumbers
    json: Path
    page: Path


@checked
def analyze(
    models: Sequence[str | Path | Bundle],
    data: str | Path | Data,
    out: str | Path,
    *,
    images: Count = 500,
    seed: Seed = 0,
    workers: Workers | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Measure every model on the same images; write `analysis.json` and a page with plots, `analysis.html`.

    out: the folder for both. An earlier analysis in it is replaced; other files of these names are not.
    models: bundles, runs or weights, with or without a classifier.
    images: at most so many of the test split (else val, else half of all) are measured, and as many of the train
        split are learned from by the linear probes. Without labels, what needs them is left out.
    preprocess: changes to every model's preprocessing.
    progress: called with images done and in all.
    """
    _check(models, images)
    folder = _make_folder(output_folder(out), FILES)
    opened = open_images(data)
    chosen = choose_images(opened, images, seed)
    bundles = _open_all(models, preprocess)
    total = len(bundles) * (len(chosen.measured) + (len(chosen.learned) if chosen.learned is not None else 0))
    reader = ModelReader(chosen, Judge(_fit, _accuracy), seed, workers, progress, total)
    measured, depths = zip(*(_read(reader, name, bundle) for name, bundle in bundles), strict=True)
    unlabelled = ("without labels, accuracy by depth and under noise are left out.",)
    numbers = Numbers(
        data=_describe(data, chosen, len(reader.index or ()), seed),
        summary=summarise(measured),
        models=measured,
        cka=_compare(depths),
        noise_strength=NOISE,
        remarks=(*opened.notes, *(unlabelled if chosen.learned is None else ()), *reader.remarks),
    )
    described, page = _write(folder, FILES, numbers, analysis_page(numbers))
    return Analysis(numbers, described, page)


@checked
def analyze_bias(
    models: Sequence[str | Path | Bundle],
    data: str | Path | Data,
    out: str | Path,
    *,
    images: Count = 200,
    seed: Seed = 0,
    workers: Workers | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Progress | None = None,
) -> BiasAnalysis:
    """Measure on the same images which inductive bias models of any family have: what moving, shuffling and
    filtering an image does to their answers, and how far they look. Write `bias.json` and a page, `bias.html`.

    The arguments are those of `analyze`; each image is looked at some 30 times. Accuracies are those of the models
    that have all classes of the data, where there are labels.
    """
    _check(models, images)
    folder = _make_folder(output_folder(out), BIAS_FILES)
    opened = open_images(data)
    chosen = choose_images(opened, images, seed)
    bundles = [(name, open_model(model, preprocess)) for name, model in zip(_names(models), models, strict=True)]
    batches = [choose_bias_batch(bundle) for _, bundle in bundles]
    remarks = list(opened.notes)
    found: list[tuple[str, Bias]] = []
    for number, ((name, bundle), batch) in enumerate(zip(bundles, batches, strict=True)):
        source, remark = _labelled_for(bundle, chosen.measured, name)
        with naming(name):
            bias = measure_bias(
                bundle.model,
                bundle.preprocess,
                source,
                seed=seed,
                batch_size=batch,
                workers=choose_workers(workers, len(source)),
                progress=_part_of(progress, number, len(bundles)),
            )
        found.append((name, bias))
        left_out = [f"left out: {image}" for image in bias.unreadable]
        remarks += [line for line in (*remark, *left_out) if line not in remarks]
    numbers = BiasNumbers(_describe(data, chosen, found[0][1].images, seed), tuple(found), tuple(remarks))
    described, page = _write(folder, BIAS_FILES, numbers, bias_page(numbers))
    return BiasAnalysis(numbers, described, page)


def _labelled_for(bundle: Bundle, source: Source, name: str) -> tuple[Source, list[str]]:
    """The images with labels that count in the model's classes, or without any and a remark why."""
    if set(source.classes) <= set(bundle.labels):
        return source.relabelled(bundle.labels), []
    unknown = source.with_labels(np.full(len(source), -1, dtype=np.int64), source.classes)
    return unknown, [f"{name}: it does not have the classes of the data, so its accuracy is left out."]


def _part_of(progress: Progress | None, number: int, models: int) -> Progress | None:
    """What one of several models tells of its progress: images done and in all of all models."""
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, models * total)


def _check(models: Sequence[object], images: int) -> None:
    if not models:
        raise UserError("no models: give at least one bundle, run or file of weights.")
    if images < FEWEST:
        raise UserError(f"images={images}: give at least {FEWEST}; fewer say nothing about images in general.")


def _read(reader: ModelReader, name: str, bundle: Bundle) -> tuple[ModelNumbers, Tensor]:
    with evaluating(bundle.model):
        return reader.read(name, bundle)


def _describe(data: str | Path | Data, chosen: Chosen, images: int, seed: int) -> MeasuredOn:
    learned = chosen.learned
    return MeasuredOn(
        source="data in memory" if isinstance(data, Data) else str(data),
        split=chosen.split,
        images=images,
        learned_from=None if learned is None else len(learned),
        classes=None if learned is None else len(learned.classes),
        seed=seed,
    )


def _write(folder: Path, files: tuple[str, str], numbers: Numbers | BiasNumbers, html: str) -> tuple[Path, Path]:
    described, page = (folder / name for name in files)
    write_output(described, json.dumps({"generator": GENERATOR, **numbers.to_json()}, allow_nan=False) + "\n")
    write_output(page, html)
    return described, page


def _fit(features: Tensor, labels: Tensor, classes: int) -> LinearProbe:
    return fit_linear(features, labels, classes, weight_decays=[WEIGHT_DECAY])


def _accuracy(answers: Tensor, labels: Tensor) -> Accuracy:
    right = int((answers == labels).sum())
    return Accuracy(right / len(labels), wilson(right, len(labels)), len(labels))


def choose_images(data: Data, most: int, seed: int) -> Chosen:
    """At most `most` images to measure and as many to learn from, of all classes alike."""
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
    if len(measured) < FEWEST:
        raise UserError(f"{len(measured)} images to measure ({name}): a comparison needs at least {FEWEST}; give more.")
    measured = measured.subset(_of_all_classes(measured.labels, most, seed))
    if learned is not None:
        learned = learned.subset(_of_all_classes(learned.labels, most, seed))
    return Chosen(name, measured, learned)


def _of_all_classes(labels: Labels, most: int, seed: int) -> Labels:
    """At most so many indices, in order: from each class in turn, at random."""
    return np.sort(class_by_class(labels, seed, draw=0)[:most])


def _compare(depths: Sequence[Tensor]) -> tuple[Likeness, ...]:
    """CKA of every two models, and of each with itself: rows are depths of the first, columns of the second."""

    def compare(one: Tensor, other: Tensor) -> Table:
        return tuple(
            tuple(round(linear_cka(one[:, a], other[:, b]), 5) for b in range(other.shape[1]))
            for a in range(one.shape[1])
        )

    pairs = combinations_with_replacement(range(len(depths)), 2)
    return tuple(Likeness((i, j), compare(depths[i], depths[j])) for i, j in pairs)


def _open_all(models: Sequence[str | Path | Bundle], preprocess: Preprocess | str | None) -> list[tuple[str, Bundle]]:
    """The models and their names, all of a kind that can be analysed: before any is measured, which takes long."""
    bundles = [(name, open_model(model, preprocess)) for name, model in zip(_names(models), models, strict=True)]
    for name, bundle in bundles:
        require(bundle.model, ViT, f"analysis of {name}")
        check_explanation_memory(bundle, "attention")
    return bundles


def _names(models: Sequence[str | Path | Bundle]) -> list[str]:
    """What to call them: the end of their paths, with a number where that says nothing or is there twice."""
    names = []
    for number, model in enumerate(models, start=1):
        path = model.path if isinstance(model, Bundle) else Path(model)
        if path is not None and path.name == "bundle":
            path = path.resolve().parent
        names.append(path.stem if path is not None and path.is_file() else path.name if path is not None else "")
        if not names[-1]:
            names[-1] = f"model {number}"
    return [f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names, start=1)]


def _make_folder(folder: Path, files: tuple[str, str]) -> Path:
    """The folder, in which the two files may be written: before anything is measured, which takes long."""
    for name in files:
        check_file(folder / name)
    with readable_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder
