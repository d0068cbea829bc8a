"""`vitreous evaluate`: how well a model does on data with known labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.arguments import Count, Workers, checked
from vitreous.config.data import Preprocess
from vitreous.data.source import Data, Split
from vitreous.evaluate.answer_file import Write, answer_file, check_answer_file
from vitreous.evaluate.classify import ClassificationResult
from vitreous.run.matching import match_names
from vitreous.run.measuring import measure_classifier
from vitreous.run.opening import choose_split, open_classifier, open_dataset
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
    answers: str | None = None
    """The file that has the answer to each picture, where one was asked for."""

    def to_json(self) -> dict[str, Any]:
        """{"split", "n", "top1", "top5", "ece", "per_class", "confusion", ...}."""
        return {
            "split": self.split,
            **self.result.to_json(),
            "answers": self.answers,
            "unreadable": self.unreadable,
            "seconds": round(self.seconds, 3),
        }


@checked
def evaluate(
    model: str | Path | Bundle,
    data: str | Path | Data,
    *,
    split: Split | None = None,
    answers: str | Path | None = None,
    batch_size: Count | None = None,
    workers: Workers | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """How well the model does on one split of the data, whose classes are matched to the model's labels by name.

    model: a bundle, a run, or anything else that `open_weights` takes.
    split: which one; if None, test if there is one, else val, else all.
    answers: a .csv, .jsonl or .parquet file to write what the model says of each picture to.
    batch_size: pictures that the model sees at once; if None, as many as is fastest.
    workers: processes that decode; if None, one per core, at most 4, or none for a few pictures.
    progress: called with pictures done and pictures in all.
    """
    opened = open_dataset(data)
    name, source = choose_split(opened, split)
    place = None if answers is None else check_answer_file(answers)
    bundle = open_classifier(model, preprocess)
    matched = match_names(source, bundle.labels)
    start = time.perf_counter()
    told = None if progress is None else lambda done: progress(done, len(source))
    with _writing(place, len(matched.labels)) as write:
        result, unreadable = measure_classifier(
            bundle, matched, batch_size=batch_size, workers=workers, progress=told, write=write
        )
    seconds = time.perf_counter() - start
    return Evaluation(name, result, unreadable, seconds, None if place is None else str(place))


@contextmanager
def _writing(place: Path | None, classes: int, *, several: bool = False) -> Iterator[Write | None]:
    """What takes the answers, if anybody wants them in a file."""
    if place is None:
        yield None
        return
    with answer_file(place, classes, several=several) as write:
        yield write
