"""`vitreous probe`: what a model's frozen features are worth on labelled data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.arguments import Count, Seed, Workers, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Data, Source, Split
from vitreous.deploy.engine import Deployed, check_numbers
from vitreous.errors import UserError
from vitreous.evaluate.classify import wilson
from vitreous.evaluate.feature_cache import FeatureCache, StoredFeatures, default_folder, features_key
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.fewshot import DRAWS, SHOTS, draw_shots, fit_least_squares, mean_interval
from vitreous.evaluate.knn import NEIGHBOURS, TEMPERATURE, vote_neighbours
from vitreous.evaluate.probe import WEIGHT_DECAYS, fit_linear, held_out
from vitreous.run.engines import deploy
from vitreous.run.needs import check_inference_memory
from vitreous.run.opening import open_dataset
from vitreous.weights.bundle import Bundle

Protocol = Literal["knn", "linear", "fewshot"]
HELD_OUT = 0.2
"""The share that is judged where the data have one split only."""

Labelled = tuple[Tensor, Tensor]
"""Features (n, D) and labels (n,)."""


@dataclass(frozen=True)
class ProbeScore:
    """One accuracy, from 0 to 1."""

    setting: dict[str, float]
    """{"k": 10}, {"weight_decay": 0.01} or {"shots": 5}."""
    accuracy: float
    interval: tuple[float, float]
    """95 %."""
    draws: tuple[float, ...] = ()
    """Few-shot: the accuracies of which `accuracy` is the mean."""

    @property
    def std(self) -> float | None:
        """The standard deviation over the draws."""
        return float(np.std(self.draws, ddof=1)) if self.draws else None


@dataclass(frozen=True)
class Probed:
    """What features are worth, and how it was measured."""

    protocol: Protocol
    judged: str
    """Which pictures were judged: test, val, or pictures that were set aside."""
    n: int
    """How many."""
    known: int
    """Pictures whose labels could be learned from."""
    classes: int
    width: int
    """D, the length of a feature."""
    scores: tuple[ProbeScore, ...]
    computed: int
    """Pictures that the model had to look at; the others' features were known from before."""
    remarks: tuple[str, ...]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Pictures that were left out: path to reason."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """{"protocol", "judged", "n", "scores": [{"k", "accuracy", "interval"}, ...], ...}."""
        scores = []
        for score in self.scores:
            found = {**score.setting, "accuracy": score.accuracy, "interval": list(score.interval)}
            scores.append(found | ({"std": score.std, "draws": list(score.draws)} if score.draws else {}))
        return {**asdict(self), "scores": scores, "remarks": list(self.remarks), "seconds": round(self.seconds, 3)}


class ProbeSplits(NamedTuple):
    """What a probe learns from and what it is judged on."""

    train: Labelled
    val: Labelled | None
    test: Labelled
    classes: int
    judged: str


@checked
def probe(
    model: str | Path | Bundle,
    data: str | Path | Data,
    *,
    protocol: Protocol = "knn",
    shots: Sequence[Count] | None = None,
    seed: Seed | None = None,
    batch_size: Count | None = None,
    workers: Workers | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Probed:
    """How well the model's frozen features tell the data's classes apart; it needs no classifier.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    engine, precision: what computes, and in what numbers; `vitreous.run.engines.deploy` says how it is chosen.
    protocol: "knn", the weighted vote of the nearest training pictures; "linear", a linear classifier; "fewshot", least
        squares from a few pictures per class, the mean of several draws.
    shots: few-shot: how many pictures of each class, each number by itself; 1, 5 and 10 if None.
    seed: of what is drawn at random: the shots, and the pictures set aside where the data have no split for them.
    progress: called with pictures done and in all, for each split of the data that the model must look at.
    """
    start = time.perf_counter()
    if shots is not None and protocol != "fewshot":
        raise UserError(f"shots: only the protocol fewshot draws any, not {protocol}; take that, or leave shots out.")
    opened = open_dataset(data)
    check_labelled(opened)
    drawing_seed = _drawing_seed(seed, protocol, opened)
    deployed = deploy(
        model,
        engine=engine,
        precision=precision,
        preprocess=preprocess,
        pictures=sum(map(len, opened.splits.values())),
        classifier=False,
    )
    reader = FeatureReader(deployed, batch_size, workers, progress)
    splits = reader.splits(opened, drawing_seed, validate=protocol == "linear")
    remarks: list[str] = []
    if protocol == "knn":
        scores = _nearest(splits, remarks)
    elif protocol == "linear":
        scores = [_linear(splits, drawing_seed, remarks)]
    else:
        scores = _few_shot(splits, shots, opened.classes, drawing_seed, remarks)
    return Probed(
        protocol=protocol,
        judged=splits.judged,
        n=len(splits.test[1]),
        known=len(splits.train[1]),
        classes=splits.classes,
        width=splits.test[0].shape[1],
        scores=tuple(scores),
        computed=reader.computed,
        remarks=(*reader.cache.remarks, *remarks),
        unreadable=reader.unreadable,
        seconds=time.perf_counter() - start,
    )


def _drawing_seed(seed: int | None, protocol: Protocol, data: Data) -> int:
    """The seed, 0 if none was given; one where nothing is drawn at random would let equal results look repeatable."""
    given_validation = protocol == "knn" or {"val", "test"} <= set(data.splits)
    if seed is not None and protocol != "fewshot" and len(data.splits) > 1 and given_validation:
        raise UserError(
            f"seed={seed}: with these splits ({', '.join(data.splits)}) the protocol {protocol} draws nothing at "
            "random, so every seed gives the same; leave it out."
        )
    return seed or 0


def check_labelled(data: Data) -> None:
    """Refuse data without labels."""
    if not data.classes or any((source.labels < 0).any() for source in data.splits.values()):
        raise UserError(
            "the pictures have no labels, so nothing says what their features should tell apart; put each class in a "
            "folder of its own, or give a .csv with the columns path,label."
        )


class FeatureReader:
    """Features of sources by one model, from the cache where they are there."""

    def __init__(
        self, model: Deployed, batch_size: int | None, workers: int | None, progress: Callable[[int, int], None] | None
    ) -> None:
        self.model, self.workers, self.progress = model, workers, progress
        self.engine = model.engine
        self.batch_size = self.engine.batch_size if batch_size is None else batch_size
        self.cache = FeatureCache(default_folder())
        self.computed = 0
        self.unreadable: dict[str, str] = {}

    def splits(self, data: Data, seed: int, *, validate: bool) -> ProbeSplits:
        """What to learn from and what to judge: test if there is one, else val, else a fifth of all, of each class.

        validate: the val split is wanted too, if it is not the one to be judged.
        """
        classes = len(data.classes)
        if len(data.splits) == 1:
            ((name, source),) = data.splits.items()
            features, labels = self.labelled(source)
            held = held_out(labels, HELD_OUT, seed)
            if not held.any():
                raise UserError(f"{len(labels)} pictures, one of each class: none can be set aside to judge; add more.")
            said = f"a fifth of the {name} split, set aside"
            return ProbeSplits((features[~held], labels[~held]), None, (features[held], labels[held]), classes, said)
        judged: Split = "test" if "test" in data.splits else "val"
        train, test = self.labelled(data.train), self.labelled(data.splits[judged])
        val = self.labelled(data.splits["val"]) if validate and judged == "test" and "val" in data.splits else None
        return ProbeSplits(train, val, test, classes, judged)

    def labelled(self, source: Source) -> Labelled:
        """Features (n, D) and labels (n,) of all pictures that can be read."""
        key = features_key(self.model.identity, self.engine.preprocess, source)
        found = self.cache.get(key)
        if found is None:
            found = self._compute(source)
            self.cache.put(key, found)
        self.unreadable |= {source.name(index): reason for index, reason in found.unreadable.items()}
        check_numbers(found.features, "features", self.model.path)  # an older version kept any in the cache
        return found.features, torch.from_numpy(source.labels)[found.index]

    def _compute(self, source: Source) -> StoredFeatures:
        pictures = min(self.batch_size, len(source))
        check_inference_memory(self.model.config, self.engine.preprocess, pictures)
        workers = choose_workers(self.workers, len(source))
        loader = Loader(
            source,
            self.engine.preprocess,
            batch_size=self.batch_size,
            workers=workers,
            cache_bytes=0,
            normalised=False,
        )
        progress, seen = self.progress, torch.zeros(len(source), dtype=torch.bool)

        def batches() -> Iterator[Batch]:
            for batch in loader.batches():
                seen[batch.index] = True
                yield batch

        told = None if progress is None else lambda done: progress(done, len(source))
        try:
            features, _ = compute_features(self.engine.representations, batches(), len(source), told)
        finally:
            loader.close()
        index = seen.nonzero()[:, 0]  # pictures come in their order
        self.computed += len(index)
        missing = (~seen).nonzero()[:, 0].tolist()
        return StoredFeatures(features, index, {i: loader.unreadable[source.name(i)] for i in missing})


def _score(scores: Tensor, labels: Tensor, setting: dict[str, float]) -> ProbeScore:
    right = int((scores.argmax(dim=1) == labels).sum())
    return ProbeScore(setting, right / len(labels), wilson(right, len(labels)))


def _nearest(splits: ProbeSplits, remarks: list[str]) -> list[ProbeScore]:
    known, labels = splits.train
    fitting = [k for k in NEIGHBOURS if k <= len(known)] or [len(known)]
    if left := [k for k in NEIGHBOURS if k > len(known)]:
        remarks.append(f"k = {', '.join(map(str, left))} left out: there are only {len(known)} training pictures.")
    votes = vote_neighbours(known, labels, splits.test[0], splits.classes, fitting, TEMPERATURE)
    return [_score(found, splits.test[1], {"k": k}) for k, found in votes.items()]


def _linear(splits: ProbeSplits, seed: int, remarks: list[str]) -> ProbeScore:
    """The regularisation is chosen on validation pictures; then all that are not judged are learned from."""
    (x, y), classes = splits.train, splits.classes
    every = (x, y)
    strengths: Sequence[float] = WEIGHT_DECAYS
    if splits.val is not None:
        strengths = [fit_linear(x, y, classes, validation=splits.val).weight_decay]
        every = torch.cat([x, splits.val[0]]), torch.cat([y, splits.val[1]])
    elif int(torch.bincount(y)[torch.bincount(y) > 0].min()) >= 2:
        held = held_out(y, 0.1, seed)
        strengths = [fit_linear(x[~held], y[~held], classes, validation=(x[held], y[held])).weight_decay]
    else:
        remarks.append(
            "a class has one training picture only, so the regularisation could not be chosen by validation."
        )
    found = fit_linear(*every, classes, weight_decays=strengths)
    return _score(found(splits.test[0]), splits.test[1], {"weight_decay": found.weight_decay})


def _few_shot(
    splits: ProbeSplits, shots: Sequence[int] | None, names: tuple[str, ...], seed: int, remarks: list[str]
) -> list[ProbeScore]:
    (known, labels), (asked, truth) = splits.train, splits.test
    counts = torch.bincount(labels, minlength=splits.classes)
    fewest = int(counts[counts > 0].min())
    name = names[int(torch.where(counts == fewest)[0][0])]
    if shots is None:
        shots = [count for count in SHOTS if count <= fewest]
        if left := [str(count) for count in SHOTS if count > fewest]:
            remarks.append(f"{', '.join(left)} shots left out: class {name!r} has only {fewest} training pictures.")
    for count in shots:
        if not 1 <= count <= fewest:
            raise UserError(
                f"shots={count}: class {name!r} has {fewest} training pictures; give numbers from 1 to {fewest}."
            )
    if not shots:
        raise UserError("shots: give at least one number of pictures per class, such as 1,5,10.")
    accuracies: dict[int, list[float]] = {count: [] for count in shots}
    for draw in range(DRAWS):
        for count, index in draw_shots(labels, list(accuracies), seed + draw).items():
            scores = F.linear(asked, *fit_least_squares(known[index], labels[index], splits.classes))
            accuracies[count].append((scores.argmax(dim=1) == truth).double().mean().item())
    return [
        ProbeScore({"shots": count}, float(np.mean(found)), mean_interval(found, len(truth)), tuple(found))
        for count, found in accuracies.items()
    ]
