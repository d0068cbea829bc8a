"""`vitreous evaluate`: how well a model does on data with known labels."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.config.data import Preprocess
from vitreous.data.loader import Loader
from vitreous.data.source import Data, Source, Split
from vitreous.errors import UserError
from vitreous.evaluate.classify import ClassificationResult, score_classes
from vitreous.evaluate.features import predict_logits
from vitreous.jobs.opening import open_classifier, open_dataset
from vitreous.model.family import inference_batch
from vitreous.weights.bundle import Bundle

FEW = 256
"""Below so many pictures, starting processes takes longer than they save."""


@dataclass(frozen=True)
class Evaluation:
    """A result, and what it was measured on."""

    split: str
    """train, val, test, or all where the data have one part only."""
    result: ClassificationResult
    unreadable: dict[str, str]
    """Pictures that were left out: path to reason."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """{"split", "n", "top1", "top5", "ece", "per_class", "confusion", ...}."""
        return {
            "split": self.split,
            **self.result.to_json(),
            "unreadable": self.unreadable,
            "seconds": round(self.seconds, 3),
        }


def evaluate(
    model: str | Path | Bundle,
    data: str | Path | Data,
    *,
    split: Split | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """How well the model does on one part of the data, whose classes are matched to the model's labels by name.

    model: a bundle, a run, or anything else that `open_weights` takes.
    batch_size: pictures that the model sees at once; if None, as many as is fastest.
    split: which part; if None, test if there is one, else val, else all.
    workers: processes that decode; if None, one a core up to 4, or none for a few pictures.
    progress: called with pictures done and pictures in all.
    """
    opened = open_dataset(data)
    name, source = choose_part(opened, split)
    bundle = open_classifier(model, preprocess)
    source = source.relabelled(bundle.labels)
    start = time.perf_counter()
    if workers is None:
        workers = min(4, os.cpu_count() or 1) if len(source) >= FEW else 0
    batch = inference_batch(bundle.model.config) if batch_size is None else batch_size
    loader = Loader(source, bundle.preprocess, batch_size=batch, workers=workers, cache_bytes=0)
    told = None if progress is None else lambda done: progress(done, len(source))
    try:
        scores, targets = predict_logits(bundle.model, loader.batches(), told)
    finally:
        loader.close()
    result = score_classes(scores, targets, bundle.labels, names=names_of(source, loader.unreadable))
    return Evaluation(name, result, dict(loader.unreadable), time.perf_counter() - start)


def names_of(source: Source, unreadable: Container[str]) -> list[str]:
    """What the pictures are called that an evaluation saw, in its order."""
    return [name for name in map(source.name, range(len(source))) if name not in unreadable]


def choose_part(data: Data, split: Split | None) -> tuple[str, Source]:
    """The part of the data to measure on, and its name: the one asked for, else test, else val, else all."""
    if split is not None and split not in data.splits:
        raise UserError(f"--split {split}: the data have only {', '.join(data.splits)}; choose one of these.")
    for name in (split,) if split is not None else ("test", "val", "train"):
        if name in data.splits:
            return ("all" if len(data.splits) == 1 and split is None else name), data.splits[name]
    raise UserError("the data are empty; give some with pictures.")
