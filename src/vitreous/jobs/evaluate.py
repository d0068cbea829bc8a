"""`vitreous evaluate`: how well a model does on data with known labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.arguments import Count, Merge, Workers, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.source import Data, Split
from vitreous.evaluate.answer_file import Write, answer_file, check_answer_file
from vitreous.evaluate.classify import ClassificationResult
from vitreous.evaluate.label_sets import LabelSetResult, read_label_sets
from vitreous.inference.benchmarks import find_labels
from vitreous.inference.choice import deploy
from vitreous.inference.matching import Among, check_imagenet, match_classes
from vitreous.inference.measuring import choose_labelled, measure_classifier, measure_label_sets
from vitreous.inference.opening import choose_split, open_dataset, open_images
from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Evaluation:
    """A result, and what it was measured on."""

    split: str
    """train, val, test, or all where the data have one split only."""
    result: ClassificationResult
    unreadable: dict[str, str]
    """Images that were left out: path to reason."""
    seconds: float
    among: Among = "all"
    """Whether the answer was the best of all of the model's classes, or of those that the data have."""
    remarks: tuple[str, ...] = ()
    """How classes were matched, and among which the answer was chosen, where that is not the obvious."""
    answers: str | None = None
    """The file that has the answer to each image, where one was asked for."""
    engine: str = "torch-fp32"
    """What computed the answers, and in what numbers."""

    def to_json(self) -> dict[str, Any]:
        """{"split", "n", "top1", "top5", "ece", "per_class", "confusion", ...}."""
        return {
            "split": self.split,
            **self.result.to_json(),
            "among": self.among,
            "remarks": list(self.remarks),
            "answers": self.answers,
            "unreadable": self.unreadable,
            "seconds": round(self.seconds, 3),
            "engine": self.engine,
        }


@dataclass(frozen=True)
class LabelSetEvaluation:
    """A result where images have several labels, each of which counts as right, and what it was measured on."""

    split: str
    labels: str
    """The file that has the labels."""
    result: LabelSetResult
    without: int
    """Images that were left out, for the file has no label for them."""
    unreadable: dict[str, str]
    """Others that were: path to reason."""
    seconds: float
    answers: str | None = None
    engine: str = "torch-fp32"
    """What computed the answers, and in what numbers."""

    def to_json(self) -> dict[str, Any]:
        """{"split", "labels", "n", "top1", "top5", "ece", ...}."""
        return {
            "split": self.split,
            "labels": self.labels,
            **self.result.to_json(),
            "without": self.without,
            "answers": self.answers,
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
    among: Among | None = None,
    answers: str | Path | None = None,
    batch_size: Count | None = None,
    workers: Workers | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """How well the model does on one split of the data, whose classes are matched to the model's labels by name.

    The classes of data for ImageNet's classifiers may also be called by WordNet ids or class numbers.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    split: which one; if None, test if there is one, else val, else all.
    among: whether the answer is the best of "all" of the model's classes or of those that the "data" have; if None,
        all, but for the 200 classes of ImageNet-A or ImageNet-R the data's, as in their papers.
    answers: a .csv, .jsonl or .parquet file to write what the model says of each image to.
    batch_size: images that the model sees at once; if None, as many as is fastest.
    workers: processes that decode; if None, one per core, at most 4, or none for a few images.
    engine, precision: what computes, and in what numbers; `vitreous.inference.choice.deploy` says how it is chosen.
    merge: how many tokens the model merges per block (docs/merging.md); None for as many as it does of itself.
    progress: called with images done and images in all.
    """
    opened = open_dataset(data)
    name, source = choose_split(opened, split)
    place = None if answers is None else check_answer_file(answers)
    deployed = deploy(model, engine=engine, precision=precision, preprocess=preprocess, merge=merge, images=len(source))
    matched = match_classes(source, deployed.labels, among)
    start = time.perf_counter()
    told = None if progress is None else lambda done: progress(done, len(source))
    with _writing(place, len(matched.labels)) as write:
        result, unreadable = measure_classifier(
            deployed, matched, batch_size=batch_size, workers=workers, progress=told, write=write
        )
    seconds = time.perf_counter() - start
    written = None if place is None else str(place)
    computed_by = f"{deployed.engine.name}-{deployed.engine.precision}"
    return Evaluation(name, result, unreadable, seconds, matched.among, matched.remarks, written, computed_by)


@checked
def evaluate_label_sets(
    model: str | Path | Bundle,
    data: str | Path | Data,
    labels: str | Path,
    *,
    split: Split | None = None,
    answers: str | Path | None = None,
    batch_size: Count | None = None,
    workers: Workers | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LabelSetEvaluation:
    """How well the model does where an image may have several labels, each of which counts as right.

    labels: "real" for ImageNet's ReaL labels, where `vitreous data get imagenet-real` puts them; or a JSON file: a list
        with a list of labels for each of ImageNet's validation images, found by the number in their names, for which
        the model's classes must be ImageNet's; or an object from file name to list, for any model. Images without a
        label are left out; what the data say of classes is ignored.
    The other arguments are those of `evaluate`.
    """
    place = None if answers is None else check_answer_file(answers)
    file = find_labels(labels)
    name, source = choose_split(open_images(data), split)
    deployed = deploy(model, engine=engine, precision=precision, preprocess=preprocess, merge=merge, images=len(source))
    sets = read_label_sets(file, deployed.labels)
    if sets.numbered is not None:
        check_imagenet(deployed.labels, file)
    labelled = choose_labelled(source, sets)
    start = time.perf_counter()
    told = None if progress is None else lambda done: progress(done, len(labelled.accepted))
    with _writing(place, len(deployed.labels), several=True) as write:
        result, unreadable = measure_label_sets(
            deployed, labelled, batch_size=batch_size, workers=workers, progress=told, write=write
        )
    seconds, written = time.perf_counter() - start, None if place is None else str(place)
    computed_by = f"{deployed.engine.name}-{deployed.engine.precision}"
    return LabelSetEvaluation(name, str(file), result, labelled.without, unreadable, seconds, written, computed_by)


@contextmanager
def _writing(place: Path | None, classes: int, *, several: bool = False) -> Iterator[Write | None]:
    """What takes the answers, if anybody wants them in a file."""
    if place is None:
        yield None
        return
    with answer_file(place, classes, several=several) as write:
        yield write
