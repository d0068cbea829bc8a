"""The protocols on frozen features: a linear classifier, nearest neighbours, and least squares from five images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from vitreous.data.rng import balanced_order
from vitreous.data.source import Data, Source, Split, random_subset
from vitreous.errors import UserError
from vitreous.evaluation.probe import DRAWS, KNN_TEMPERATURE, RIDGE_STRENGTH
from vitreous.evaluation.probe import seconds_per_image as seconds_to_learn
from vitreous.inference.engine import InferenceModel
from vitreous.inference.probing import (
    FeatureReader,
    ProbeScore,
    ProbeSplits,
    score_few_shot,
    score_linear,
    score_neighbours,
)
from vitreous.inputs import counted
from vitreous.model.family import count_flops
from vitreous.studies.requests import Protocol
from vitreous.studies.timing import seconds_per_image
from vitreous.studies.transfer.result import Absent, Setting, TaskScore
from vitreous.studies.transfer.tasks import SEED, OpenTask
from vitreous.training.folder import source_digest

FROZEN: tuple[Protocol, ...] = ("linear", "knn", "fewshot-5")
SHOTS = 5
NEIGHBOURS = 20
"""Which of the k is reported: the one that DINO's authors found best throughout. The others are in the settings."""
MIN_IMAGES = 50  # images of which features are wanted at least, of each split
TESTING_FRACTION = 0.5  # the fraction of the time that test images may take


def measure_frozen(
    model: InferenceModel,
    task: OpenTask,
    protocols: Sequence[Protocol],
    seconds: float | None,
    *,
    workers: int,
    progress: Callable[[str, int, int], None],
    already_counted: bool,
) -> list[TaskScore | Absent]:
    """The scores of these protocols on a task, in about `seconds`; None for no limit.

    already_counted: the operations of features that are kept are with an earlier score of the same transfer.
    """
    began = time.perf_counter()
    what = f"{task.name}: features"
    reader = FeatureReader(model, workers=workers, progress=lambda done, total: progress(what, done, total))
    data = task.data if seconds is None else subset_in_time(model, task, seconds, protocols, workers)
    splits = reader.splits(data, SEED, validate="linear" in protocols)
    used = sum(len(part[1]) for part in (splits.train, splits.val, splits.test) if part is not None)
    flops = float((reader.computed if already_counted else used) * count_flops(model.config))
    remarks = [*reader.cache.remarks, *reader.remarks]
    if kept := used - reader.computed:
        remarks.append(f"features of {kept:,} images were kept from an earlier command; the time is without them.")
    if reader.unreadable:
        remarks.append(f"{counted(len(reader.unreadable), 'image')} could not be read: left out.")
    found: list[TaskScore | Absent] = []
    for protocol in protocols:
        notes: list[str] = []
        try:
            score, settings = _fit(protocol, splits, data.classes, notes)
        except UserError as error:
            found.append(task.absent(protocol, str(error).rstrip(".")))
            continue
        learned: list[Split] = ["train", "val"] if protocol == "linear" and splits.val is not None else ["train"]
        few = protocol == "fewshot-5"
        found.append(
            TaskScore(
                task=task.name,
                protocol=protocol,
                accuracy=score.accuracy,
                interval=score.interval,
                n=len(splits.test[1]),
                unreadable=len(data.splits["test"]) - len(splits.test[1]),
                of=len(task.data.splits["test"]),
                trained_on=SHOTS * splits.classes if few else sum(len(data.splits[split]) for split in learned),
                trained_of=SHOTS * splits.classes if few else sum(len(task.data.splits[split]) for split in learned),
                digests={str(split): source_digest(data.splits[split]) for split in (*learned, "test")},
                settings={**settings, **_preprocess_settings(model)},
                flops=flops,
                seconds=time.perf_counter() - began,
                engine=f"{model.engine.name} {model.engine.precision}",
                draws=score.draws,
                split=task.summary.measured,
                remarks=(*remarks, *notes),
            )
        )
        flops, began = 0.0, time.perf_counter()  # features are paid for by the first
    return found


def subset_in_time(
    model: InferenceModel, task: OpenTask, seconds: float, protocols: Sequence[Protocol], workers: int
) -> Data:
    """As many images of each split as fit into the time: test images at random, the others balanced over classes."""
    began, data, linear = time.perf_counter(), task.data, "linear" in protocols
    test = data.splits["test"]
    image = seconds_per_image(FeatureReader(model, workers=workers).compute, test, SEED)
    learn = seconds_to_learn(model.config.features, len(data.classes)) if linear else 0.0
    known: dict[Split, Source] = {
        split: source for split, source in data.splits.items() if split == "train" or (split == "val" and linear)
    }
    total = sum(map(len, known.values()))
    left = seconds - (time.perf_counter() - began)
    tested, learned = images_in_time(left, image, learn, len(test), total)
    if (tested, learned) == (len(test), total):
        return data
    splits: dict[Split, Source] = {"test": random_subset(test, SEED, tested)}
    for split, source in known.items():
        least = SHOTS * len(data.classes) if split == "train" and "fewshot-5" in protocols else 1
        count = min(len(source), max(least, round(learned * len(source) / total)))
        splits[split] = source.subset(balanced_order(source.labels, SEED)[:count])
    return replace(data, splits=splits)


def images_in_time(seconds: float, image: float, learn: float, test: int, known: int) -> tuple[int, int]:
    """How many of `test` images and `known` training images fit into the time: half of it for each, or what is left.

    image: seconds for the features of one. learn: seconds more for one that is learned from. `MIN_IMAGES` of each are
    taken in any case.
    """
    testing = max(TESTING_FRACTION * seconds, seconds - known * (image + learn))
    tested = min(test, max(MIN_IMAGES, int(testing / image)))
    return tested, min(known, max(MIN_IMAGES, int((seconds - tested * image) / (image + learn))))


def _preprocess_settings(model: InferenceModel) -> dict[str, Setting]:
    """How images are prepared for it."""
    fields = asdict(model.engine.preprocess)
    return {
        f"preprocess.{name}": value if isinstance(value, float | str) else str(value) for name, value in fields.items()
    }


def _fit(
    protocol: Protocol, splits: ProbeSplits, classes: tuple[str, ...], remarks: list[str]
) -> tuple[ProbeScore, dict[str, Setting]]:
    """The score that is reported, and how it came about."""
    if protocol == "linear":
        score = score_linear(splits, SEED, remarks)
        return score, {"classifier": "logistic regression, L-BFGS, standardised features", **score.setting}
    if protocol == "knn":
        scores = score_neighbours(splits, remarks)
        score = next((one for one in scores if one.setting["k"] == NEIGHBOURS), scores[-1])
        others: dict[str, Setting] = {f"accuracy with k={one.setting['k']:g}": one.accuracy for one in scores}
        return score, {"k": score.setting["k"], "temperature": KNN_TEMPERATURE, "similarity": "cosine", **others}
    (score,) = score_few_shot(splits, [SHOTS], classes, SEED, remarks)
    return score, {
        "classifier": "regularised least squares, closed form",
        "shots": SHOTS,
        "draws": DRAWS,
        "strength": RIDGE_STRENGTH,
    }
