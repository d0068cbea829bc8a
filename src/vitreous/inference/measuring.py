"""How well a classifier does on images with known labels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitreous.data.batch import Batch
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.evaluate.answer_file import Write, read_answers
from vitreous.evaluate.classify import ClassificationResult, distinct_labels, score_classes
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.label_sets import LabelSet, LabelSetResult, LabelSets, score_label_sets
from vitreous.inference.engine import Deployed
from vitreous.inference.matching import Matched, match_names
from vitreous.inference.needs import check_inference_memory
from vitreous.inference.opening import names_of


@dataclass(frozen=True)
class LabelledImages:
    """Images that have labels, each of which counts as right."""

    source: Source
    accepted: list[LabelSet]
    """(n,) the labels of each."""
    without: int
    """Others, which have none."""


class Asked(NamedTuple):
    """What a classifier says of many images."""

    scores: Tensor
    """(n, K)."""
    targets: Tensor
    """(n,) the labels of the source."""
    unreadable: dict[str, str]
    """Images that were left out: path to reason."""


def measure_classifier(
    model: Deployed,
    source: Source | Matched,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    write: Write | None = None,
) -> tuple[ClassificationResult, dict[str, str]]:
    """The result, and images that were left out: path to reason. Classes are matched to the labels by name.

    batch_size: images at once; if None, as many as is fastest.
    source: images whose classes are matched to the labels by name, or have been matched otherwise.
    write: called with what is said of the images of each batch.
    """
    matched = source if isinstance(source, Matched) else match_names(source, model.labels)
    names = distinct_labels(matched.labels)

    def told(batch: Batch, scores: Tensor) -> None:
        if write is not None:
            paths = [matched.source.name(index) for index in batch.index.tolist()]
            write(read_answers(scores, [[label] for label in batch.targets.tolist()], names, paths))

    asked = ask_classifier(model, matched, batch_size=batch_size, workers=workers, progress=progress, told=told)
    seen = names_of(matched.source, asked.unreadable)
    return score_classes(asked.scores, asked.targets, matched.labels, names=seen), asked.unreadable


def choose_labelled(source: Source, sets: LabelSets) -> LabelledImages:
    """Of the images those that have labels."""
    found = [sets.of(source.name(index)) or () for index in range(len(source))]
    kept = [index for index, labels in enumerate(found) if labels]
    if not kept:
        raise UserError(f"{sets.path}: has labels for none of the {len(source):,} images; check that they belong.")
    return LabelledImages(source.subset(kept), [found[index] for index in kept], len(source) - len(kept))


def measure_label_sets(
    model: Deployed,
    images: LabelledImages,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    write: Write | None = None,
) -> tuple[LabelSetResult, dict[str, str]]:
    """The result where several labels count as right, and images that could not be read: path to reason.

    The other arguments are those of `measure_classifier`.
    """
    accepted, names = images.accepted, distinct_labels(model.labels)
    # Each image's label is its number, by which its labels are found again when some cannot be read.
    numbered = images.source.with_labels(np.arange(len(accepted), dtype=np.int64), model.labels)

    def told(batch: Batch, scores: Tensor) -> None:
        if write is not None:
            paths = [numbered.name(index) for index in batch.index.tolist()]
            write(read_answers(scores, [accepted[index] for index in batch.index.tolist()], names, paths))

    asked = ask_classifier(
        model,
        Matched(numbered, model.labels),
        batch_size=batch_size,
        workers=workers,
        progress=progress,
        told=told,
    )
    return score_label_sets(asked.scores, [accepted[index] for index in asked.targets.tolist()]), asked.unreadable


def ask_classifier(
    model: Deployed,
    matched: Matched,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    told: Callable[[Batch, Tensor], None] | None = None,
) -> Asked:
    """What the classifier says of all images; `told` hears of each batch. The other arguments are as above."""
    source, engine = matched.source, model.engine
    batch = min(batch_size or engine.batch_size, len(source))
    check_inference_memory(model.config, engine.preprocess, batch)
    loader = Loader(
        source,
        engine.preprocess,
        batch_size=batch,
        workers=choose_workers(workers, len(source)),
        cache_bytes=0,
        normalised=False,
    )

    def answer(images: Tensor) -> Tensor:
        return matched.answerable(engine.scores(images))

    with closing(loader):
        scores, targets = compute_features(answer, loader.batches(), len(source), progress, told)
    return Asked(scores, targets, dict(loader.unreadable))
