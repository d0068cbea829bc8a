"""`vitreous evaluate`: how well a model does on data with known labels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.arguments import Count, Workers, checked
from vitreous.config.data import Preprocess
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Data, Split
from vitreous.evaluate.classify import ClassificationResult, score_classes
from vitreous.evaluate.features import compute_features
from vitreous.run.needs import check_inference_memory
from vitreous.run.opening import choose_split, names_of, open_classifier, open_dataset, open_engine
from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Evaluation:
    """A result, and what it was measured on."""

    split: str
    """train, val, test, or all where the data have one split only."""
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


@checked
def evaluate(
    model: str | Path | Bundle,
    data: str | Path | Data,
    *,
    split: Split | None = None,
    batch_size: Count | None = None,
    workers: Workers | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """How well the model does on one split of the data, whose classes are matched to the model's labels by name.

    model: a bundle, a run, or anything else that `open_weights` takes.
    batch_size: pictures that the model sees at once; if None, as many as is fastest.
    split: which one; if None, test if there is one, else val, else all.
    workers: processes that decode; if None, one per core, at most 4, or none for a few pictures.
    progress: called with pictures done and pictures in all.
    """
    opened = open_dataset(data)
    name, source = choose_split(opened, split)
    bundle = open_classifier(model, preprocess)
    source = source.relabelled(bundle.labels)
    start = time.perf_counter()
    engine = open_engine(bundle)
    batch = min(batch_size or engine.batch_size, len(source))
    check_inference_memory(bundle, batch)
    loader = Loader(
        source,
        engine.preprocess,
        batch_size=batch,
        workers=choose_workers(workers, len(source)),
        cache_bytes=0,
        normalised=False,
    )
    told = None if progress is None else lambda done: progress(done, len(source))
    try:
        scores, targets = compute_features(engine.scores, loader.batches(), len(source), told)
    finally:
        loader.close()
    result = score_classes(scores, targets, bundle.labels, names=names_of(source, loader.unreadable))
    return Evaluation(name, result, dict(loader.unreadable), time.perf_counter() - start)
