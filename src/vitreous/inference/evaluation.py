"""How well a classifier does on images with known labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

import numpy as np
from torch import Tensor

from vitreous.callbacks import Progress, no_progress
from vitreous.data.batch import Batch
from vitreous.data.datasets.store import data_root
from vitreous.data.loader import Loader, choose_workers, readable_names
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.evaluation.classify import ClassificationResult, distinct_labels, score_classes
from vitreous.evaluation.features import compute_features
from vitreous.evaluation.label_sets import LabelSet, read_label_sets
from vitreous.evaluation.prediction_file import EVALUATED, EVALUATED_SETS, TOP, Write, evaluated_rows, prediction_file
from vitreous.inference.engine import InferenceModel
from vitreous.inference.memory_needs import check_inference_memory
from vitreous.inputs import counted
from vitreous.weights.labels import class_numbers, imagenet_synsets, is_imagenet, subset_name
from vitreous.weights.seen_images import Overlap

REAL = "real"  # what a person calls ImageNet's ReaL labels
REAL_FILE = Path("imagenet-real") / "real.json"


class Loading(TypedDict, total=False):
    """How images are read and given to a model."""

    batch_size: int | None
    workers: int | None
    progress: Progress


class Result(Protocol):
    """What was measured."""

    def to_json(self) -> dict[str, Any]:
        """As dicts, lists, texts and numbers."""


R = TypeVar("R", bound=Result)


@dataclass(frozen=True, kw_only=True)
class Measurement(Generic[R]):
    """A result, and what it was measured on."""

    split: str  # train, val, test, or all if the data have one split only
    of: int  # images of the split, of which `result.n` were measured
    result: R
    seen: Overlap | None  # images that the model was trained or selected on; None where that is not known
    unreadable: dict[str, str]  # images that were left out: path to reason
    seconds: float
    engine: str  # what computed the predictions, and in which precision
    label_space: LabelSpace = "all"
    """Whether the prediction was the likeliest of all of the model's classes, or of those that the data have."""
    remarks: tuple[str, ...] = ()
    """How classes were matched, and among which the prediction was chosen, unless it is the obvious."""

    def to_json(self) -> dict[str, Any]:
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("split", "result")}
        values["seen"] = None if self.seen is None else asdict(self.seen)
        return {"split": self.split, **self.result.to_json(), **values, "seconds": round(self.seconds, 3)}

    @property
    def optimistic(self) -> bool:
        """Whether some of the images were trained on, or selected the weights: then an interval would say too much."""
        return self.seen is not None and self.seen.train + self.seen.val > 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say beside the result."""
        seen = None if self.seen is None else self.seen.sentence
        return self.remarks if seen is None else (*self.remarks, seen)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Measurement[ClassificationResult]):
    """How well a classifier does."""

    predictions: str | None = None  # the file with the prediction for each image, if one was asked for
    label_sets: str | None = None  # the file with several labels of each image, of which each counts as right
    without: int = 0  # images that were left out, because that file has no label for them

    def to_json(self) -> dict[str, Any]:
        intervals = dict.fromkeys(("top1_interval", "ece_interval")) if self.optimistic else {}
        return super().to_json() | intervals

    def __repr__(self) -> str:
        (low, high), (label, majority) = self.result.top1_interval, self.result.majority
        sure = "optimistic: it has seen some of them" if self.optimistic else f"95 % interval {low:.1%} to {high:.1%}"
        return (
            f"Evaluation(accuracy {self.result.top1:.1%} of {counted(self.result.n, 'image')} ({self.split}; {sure}; "
            f"always predicting {label!r}: {majority:.1%}))"
        )


LabelSpace = Literal["all", "data"]
"""Whether the prediction is the likeliest of all of a model's classes, or of those that the data have."""


@dataclass(frozen=True)
class MatchedSource:
    """Images whose labels count in the classes that may be predicted."""

    source: Source
    labels: tuple[str, ...]  # (K,) names of the classes that may be predicted
    outputs: tuple[int, ...] | None = None  # (K,) which of the model's classes they are; None for all
    remarks: tuple[str, ...] = ()  # how the classes were matched and which may be predicted, unless it is the obvious

    @property
    def label_space(self) -> LabelSpace:
        return "all" if self.outputs is None else "data"

    def select(self, logits: Tensor) -> Tensor:
        return logits if self.outputs is None else logits[:, list(self.outputs)]


def check_imagenet(labels: tuple[str, ...], path: Path) -> None:
    """Refuse a model whose classes are not ImageNet's in its order, in which the labels at `path` count."""
    if not is_imagenet(labels):
        raise UserError(
            f"{path}: labels of ImageNet's validation images, and the model's {len(labels):,} classes are not "
            "ImageNet's in its order; give a classifier of ImageNet, or labels by file name."
        )


def match_names(source: Source, labels: tuple[str, ...]) -> MatchedSource:
    """Each class is the model's of the same name, and the prediction is chosen among all."""
    return MatchedSource(source.relabelled(labels), labels)


def match_classes(source: Source, labels: tuple[str, ...], label_space: LabelSpace | None = None) -> MatchedSource:
    """Each class is the model's of the same name; of ImageNet's classifiers also of its WordNet id or number.

    label_space: if None, all; for the classes of ImageNet-A and ImageNet-R, as in their papers, the data's.
    """
    matched, subset = _match(source, labels)
    if label_space == "all" or (label_space is None and subset is None):
        return matched
    present = np.unique(matched.source.labels[matched.source.labels >= 0])
    if len(present) < 2:
        raise UserError(
            "label_space='data': the images are all of one class, so there is nothing to choose; give 'all'."
        )
    if len(present) == len(labels):
        return matched
    place = np.full(len(labels) + 1, -1, dtype=np.int64)
    place[present] = np.arange(len(present))
    chosen = tuple(labels[k] for k in present)
    whose = f", as usual for {subset}" if subset else ""
    remark = f"predictions are among the data's {len(chosen)} classes{whose}, of the model's {len(labels):,}"
    of_data = matched.source.with_labels(place[matched.source.labels], chosen)
    return MatchedSource(of_data, chosen, tuple(present.tolist()), (*matched.remarks, remark))


def _match(source: Source, labels: tuple[str, ...]) -> tuple[MatchedSource, str | None]:
    """The images with labels that count in all of the model's, and the dataset whose classes they are, if known."""
    used = {source.classes[label] for label in np.unique(source.labels) if label >= 0}
    found = None
    if is_imagenet(labels):
        found = class_numbers(used)
        strangers = sorted(used - set(imagenet_synsets()) - set(labels))
        if found is None and strangers and len(strangers) < len(used):
            raise UserError(
                f"class {strangers[0]!r}: not one of ImageNet's 1,000, as the model's and others of the data are; "
                "remove its folder, or train on these data."
            )
    if found is None or (used <= set(labels) and len(set(labels)) == len(labels)):
        subset = None if found is None else subset_name(found[1].values())
        return match_names(source, labels), subset
    naming, number = found
    table = np.array([number.get(name, -1) for name in source.classes] + [-1], dtype=np.int64)
    remark = f"the data's classes are matched to the model's by ImageNet's {naming}"
    subset = subset_name(number.values())
    return MatchedSource(source.with_labels(table[source.labels], labels), labels, None, (remark,)), subset


def evaluate_classifier(
    model: InferenceModel,
    split: str,
    source: Source,
    *,
    label_space: LabelSpace | None = None,
    label_sets: Path | None = None,
    predictions: Path | None = None,
    count: int | None = None,
    seed: int = 0,
    **loading: Unpack[Loading],
) -> Evaluation:
    """How well the model does on one split of the data, whose classes are matched to the model's labels by name.

    The classes of data for ImageNet's classifiers may also be called by WordNet ids or class numbers.
    label_sets: a JSON file: a list with a list of labels for each of ImageNet's validation images, found by the number
        in their names, for which the model's classes must be ImageNet's; or an object from file name to list, for any
        model. Each of an image's labels counts as right; images without one are left out, and the labels of the
        source are ignored.
    predictions: a .csv, .jsonl or .parquet file for the prediction of each image.
    count: measure so many images, drawn at random by the seed; None for all.
    """
    accepted = None
    if label_sets is None:
        matched = match_classes(source, model.labels, label_space)
    else:
        kept, accepted = _accepted_labels(model, source, label_sets)
        # Each image's label is its number, by which its labels are found again when some cannot be read.
        numbers = np.arange(len(kept), dtype=np.int64)
        matched = MatchedSource(source.subset(kept).with_labels(numbers, model.labels), model.labels)
    of = len(matched.source)
    if count is not None and count < of:
        drawn = np.sort(np.random.default_rng(seed).permutation(of)[:count])
        matched = replace(matched, source=matched.source.subset(drawn))
    start, top = time.perf_counter(), min(TOP, len(matched.labels))
    columns = EVALUATED if accepted is None else EVALUATED_SETS
    with prediction_file(predictions, top, columns) if predictions else nullcontext() as write:
        result, unreadable = measure_classifier(model, matched, accepted=accepted, write=write, **loading)
    seconds = time.perf_counter() - start  # of the measuring alone
    return Evaluation(
        split=split,
        of=of,
        result=result,
        seen=None if model.seen_images is None else model.seen_images.overlap(matched.source),
        unreadable=unreadable,
        seconds=seconds,
        engine=model.computed_by,
        label_space=matched.label_space,
        remarks=matched.remarks,
        predictions=None if predictions is None else str(predictions),
        label_sets=None if label_sets is None else str(label_sets),
        without=len(source) - of,
    )


def _accepted_labels(model: InferenceModel, source: Source, path: Path) -> tuple[list[int], list[LabelSet]]:
    """Which images have labels in the file, and the labels of each of these."""
    sets = read_label_sets(path, model.labels)
    if sets.numbered is not None:
        check_imagenet(model.labels, path)
    found = [sets.of(source.name(index)) or () for index in range(len(source))]
    kept = [index for index, accepted in enumerate(found) if accepted]
    if not kept:
        raise UserError(f"{path}: has labels for none of the {len(source):,} images; check that they belong.")
    return kept, [found[index] for index in kept]


def find_labels(labels: str | Path) -> Path:
    """The file of labels that a person named; "real" is where `vitreous data get imagenet-real` puts ReaL's."""
    if str(labels) != REAL:
        return Path(labels)
    place = data_root() / REAL_FILE
    if not place.is_file():
        raise UserError(
            f"label_sets='{REAL}': ImageNet's ReaL labels are not at {place}; run `vitreous data get imagenet-real`, "
            "set VITREOUS_DATA to the folder that has them, or give the path of real.json."
        )
    return place


def measure_classifier(
    model: InferenceModel,
    source: Source | MatchedSource,
    *,
    accepted: Sequence[LabelSet] | None = None,
    write: Write | None = None,
    **loading: Unpack[Loading],
) -> tuple[ClassificationResult, dict[str, str]]:
    """The result, and images that were left out: path to reason.

    source: images whose classes are matched to the labels by name, or have been matched otherwise.
    accepted: where images have several labels, those of each; the source's labels are then numbers of its images.
    write: called with the predictions of each batch.
    """
    matched = source if isinstance(source, MatchedSource) else match_names(source, model.labels)
    names = distinct_labels(matched.labels)

    def labels_of(targets: Tensor) -> list[LabelSet]:
        return [(label,) if accepted is None else accepted[label] for label in targets.tolist()]

    def on_batch(batch: Batch, logits: Tensor) -> None:
        if write is not None:
            paths = [matched.source.name(index) for index in batch.index.tolist()]
            write(evaluated_rows(logits, labels_of(batch.targets), names, paths, several=accepted is not None))

    def compute(images: Tensor) -> Tensor:
        return matched.select(model.engine.logits(images))

    logits, targets, unreadable = compute_outputs(model, compute, matched.source, on_batch, **loading)
    seen = readable_names(matched.source, unreadable)
    true = targets if accepted is None else labels_of(targets)
    return score_classes(logits, true, matched.labels, names=seen), unreadable


def compute_outputs(
    model: InferenceModel,
    function: Callable[[Tensor], Tensor],
    source: Source,
    on_batch: Callable[[Batch, Tensor], None] | None = None,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> tuple[Tensor, Tensor, dict[str, str]]:
    """What a function says of all images that can be read, (n, D), their labels (n,), and the others: path to reason.

    function: images (B, C, H, W) uint8 to (B, D), by the model's engine; `on_batch` gets that of each batch.
    batch_size: if None, the fastest.
    """
    preprocess = model.engine.preprocess
    batch = min(batch_size or model.engine.batch_size, len(source))
    check_inference_memory(model.config, preprocess, batch)
    workers = choose_workers(workers, len(source))
    loader = Loader(source, preprocess, batch_size=batch, workers=workers, cache_bytes=0, normalised=False)
    with closing(loader):
        outputs, targets = compute_features(
            function, loader.batches(), len(source), lambda done: progress(done, len(source)), on_batch
        )
    return outputs, targets, dict(loader.unreadable)
