"""`vitreous evaluate`: how well a model does on data with known labels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.arguments import Count, Merge, Workers, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.source import Data, Split
from vitreous.evaluate.classify import ClassificationResult
from vitreous.run.engines import deploy
from vitreous.run.measuring import measure_classifier
from vitreous.run.opening import choose_split, open_dataset
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
    engine: str = "torch-fp32"
    """What computed the answers, and in what numbers."""

    def to_json(self) -> dict[str, Any]:
        """{"split", "n", "top1", "top5", "ece", "per_class", "confusion", ...}."""
        return {
            "split": self.split,
            **self.result.to_json(),
            "unreadable": self.unreadable,
            "seconds": round(self.seconds, 3),
            "engine": self.engine,
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
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """How well the model does on one split of the data, whose classes are matched to the model's labels by name.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    engine, precision: what computes, and in what numbers; `vitreous.run.engines.deploy` says how it is chosen.
    batch_size: pictures that the model sees at once; if None, as many as is fastest.
    split: which one; if None, test if there is one, else val, else all.
    workers: processes that decode; if None, one per core, at most 4, or none for a few pictures.
    merge: how many tokens the model merges per block (docs/merging.md); None for as many as it does of itself.
    progress: called with pictures done and pictures in all.
    """
    opened = open_dataset(data)
    name, source = choose_split(opened, split)
    deployed = deploy(
        model, engine=engine, precision=precision, preprocess=preprocess, merge=merge, pictures=len(source)
    )
    start = time.perf_counter()
    told = None if progress is None else lambda done: progress(done, len(source))
    result, unreadable = measure_classifier(deployed, source, batch_size=batch_size, workers=workers, progress=told)
    computed_by = f"{deployed.engine.name}-{deployed.engine.precision}"
    return Evaluation(name, result, unreadable, time.perf_counter() - start, computed_by)
