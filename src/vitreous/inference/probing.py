"""How good frozen features are: features of data by any engine, from the cache, and classifiers fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.batch import Batch
from vitreous.data.source import Data, Source, Split
from vitreous.errors import UserError
from vitreous.evaluation.features import FeatureCache, StoredFeatures, features_key
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.probe import (
    DRAWS,
    KNN_TEMPERATURE,
    NEIGHBOURS,
    SHOTS,
    WEIGHT_DECAYS,
    LabelledFeatures,
    draw_shots,
    fit_least_squares,
    fit_linear,
    held_out,
    mean_interval,
    vote_neighbours,
)
from vitreous.inference.engine import InferenceModel
from vitreous.inference.evaluation import Loading, compute_outputs
from vitreous.model.network import check_numbers
from vitreous.model.predictions import is_right

Protocol = Literal["knn", "linear", "fewshot"]
HELD_OUT = 0.2  # the fraction that is measured if the data have one split only


@dataclass(frozen=True)
class ProbeScore:
    """One accuracy, from 0 to 1."""

    setting: dict[str, float]  # {"k": 10}, {"weight_decay": 0.01} or {"shots": 5}
    accuracy: float
    interval: tuple[float, float]  # 95 %
    draws: tuple[float, ...] = ()  # few-shot: the accuracies of which `accuracy` is the mean

    @property
    def std(self) -> float | None:
        return float(np.std(self.draws, ddof=1)) if self.draws else None


@dataclass(frozen=True)
class ProbeResult:
    """How good features are, and how it was measured."""

    protocol: Protocol
    judged: str  # which images were measured: test, val, or held-out ones
    n: int  # how many
    known: int  # images whose labels could be learned from
    classes: int
    width: int  # D, the length of a feature
    scores: tuple[ProbeScore, ...]
    computed: int  # images whose features were computed; the others' were in the cache
    remarks: tuple[str, ...]
    unreadable: dict[str, str] = field(default_factory=dict)  # images that were left out: path to reason
    seconds: float = 0.0
    engine: str = "torch-fp32"  # what computed the features, and in which precision

    def to_json(self) -> dict[str, Any]:
        """{"protocol", "judged", "n", "scores": [{"k", "accuracy", "interval"}, ...], ...}."""
        scores = []
        for score in self.scores:
            found = {**score.setting, "accuracy": score.accuracy, "interval": list(score.interval)}
            scores.append(found | ({"std": score.std, "draws": list(score.draws)} if score.draws else {}))
        return {**asdict(self), "scores": scores, "remarks": list(self.remarks), "seconds": round(self.seconds, 3)}


class ProbeSplits(NamedTuple):
    """What a probe learns from and what it is measured on."""

    train: LabelledFeatures
    val: LabelledFeatures | None
    test: LabelledFeatures
    classes: int
    judged: str


def check_labelled(data: Data) -> None:
    if not data.classes or any((source.labels < 0).any() for source in data.splits.values()):
        raise UserError(
            "the images have no labels, so nothing says what their features should tell apart; put each class in a "
            "folder of its own, or give a .csv with the columns path,label."
        )


class FeatureReader:
    """Features of sources by one model, from the cache if they are there."""

    def __init__(self, model: InferenceModel, **loading: Unpack[Loading]) -> None:
        self.model, self.engine, self.loading = model, model.engine, loading
        self.cache = FeatureCache()
        self.computed = 0
        self.unreadable: dict[str, str] = {}
        self.remarks: list[str] = []

    def splits(self, data: Data, seed: int, *, validate: bool) -> ProbeSplits:
        """What to learn from and what to measure: test if there is one, else val, else a fifth of all, of each class.

        validate: the val split is wanted too, if it is not the one to be measured.
        """
        classes = len(data.classes)
        if len(data.splits) == 1:
            ((name, source),) = data.splits.items()
            features, labels = self.labelled(source)
            self._note_seen(source)
            held = held_out(labels, HELD_OUT, seed)
            if not held.any():
                raise UserError(f"{len(labels)} images, one of each class: none can be held out to measure; add more.")
            judged = f"a fifth of the {name} split, held out"
            return ProbeSplits((features[~held], labels[~held]), None, (features[held], labels[held]), classes, judged)
        measured: Split = "test" if "test" in data.splits else "val"
        train, test = self.labelled(data.train), self.labelled(data.splits[measured])
        self._note_seen(data.splits[measured])
        val = self.labelled(data.splits["val"]) if validate and measured == "test" and "val" in data.splits else None
        return ProbeSplits(train, val, test, classes, measured)

    def _note_seen(self, source: Source) -> None:
        seen = self.model.seen_images
        if seen is not None and (sentence := seen.overlap(source).sentence) is not None:
            self.remarks.append(sentence)

    def labelled(self, source: Source) -> LabelledFeatures:
        key = features_key(self.model.identity, self.engine.preprocess, source)
        found = self.cache.get(key)
        if found is None:
            found = self.compute(source)
            self.cache.put(key, found)
        self.unreadable |= {source.name(index): reason for index, reason in found.unreadable.items()}
        check_numbers(found.features, "features", self.model.path)  # an older version kept any in the cache
        return found.features, torch.from_numpy(source.labels)[found.index]

    def compute(self, source: Source) -> StoredFeatures:
        """Of all images that can be read, whatever is in the cache."""
        seen = torch.zeros(len(source), dtype=torch.bool)

        def on_batch(batch: Batch, _: Tensor) -> None:
            seen[batch.index] = True

        features, _, unreadable = compute_outputs(
            self.model, self.engine.representations, source, on_batch, **self.loading
        )
        index = seen.nonzero()[:, 0]  # images come in their order
        self.computed += len(index)
        missing = (~seen).nonzero()[:, 0].tolist()
        return StoredFeatures(features, index, {i: unreadable[source.name(i)] for i in missing})


def _score(logits: Tensor, labels: Tensor, setting: dict[str, float]) -> ProbeScore:
    right = int(is_right(logits, labels).sum())
    return ProbeScore(setting, right / len(labels), wilson(right, len(labels)))


def score_neighbours(splits: ProbeSplits, remarks: list[str]) -> list[ProbeScore]:
    """The vote of the k nearest training images, for each k that there are enough of."""
    known, labels = splits.train
    fitting = [k for k in NEIGHBOURS if k <= len(known)] or [len(known)]
    if left := [k for k in NEIGHBOURS if k > len(known)]:
        remarks.append(f"k = {', '.join(map(str, left))} left out: there are only {len(known)} training images.")
    votes = vote_neighbours(known, labels, splits.test[0], splits.classes, fitting, KNN_TEMPERATURE)
    return [_score(found, splits.test[1], {"k": k}) for k, found in votes.items()]


def score_linear(splits: ProbeSplits, seed: int, remarks: list[str]) -> ProbeScore:
    """The regularisation is chosen on images that are not measured; then all of these are learned from."""
    (x, y), classes = splits.train, splits.classes
    every = (x, y)
    strengths: Sequence[float] = WEIGHT_DECAYS
    if splits.val is not None:
        remarks.append("the regularisation was chosen on the val split.")
        strengths = [fit_linear(x, y, classes, validation=splits.val).weight_decay]
        every = torch.cat([x, splits.val[0]]), torch.cat([y, splits.val[1]])
    elif int(torch.bincount(y)[torch.bincount(y) > 0].min()) >= 2:
        remarks.append("the regularisation was chosen on a tenth of the images to learn from.")
        held = held_out(y, 0.1, seed)
        strengths = [fit_linear(x[~held], y[~held], classes, validation=(x[held], y[held])).weight_decay]
    else:
        remarks.append("a class has one training image only, so the regularisation could not be chosen by validation.")
    found = fit_linear(*every, classes, weight_decays=strengths)
    return _score(found(splits.test[0]), splits.test[1], {"weight_decay": found.weight_decay})


def score_few_shot(
    splits: ProbeSplits, shots: Sequence[int] | None, names: tuple[str, ...], seed: int, remarks: list[str]
) -> list[ProbeScore]:
    """Least squares from `shots` images of each class; what the data allow if None. names: of the classes."""
    (known, labels), (test, truth) = splits.train, splits.test
    counts = torch.bincount(labels, minlength=splits.classes)
    fewest = int(counts[counts > 0].min())
    name = names[int(torch.where(counts == fewest)[0][0])]
    if shots is None:
        shots = [count for count in SHOTS if count <= fewest]
        if left := [str(count) for count in SHOTS if count > fewest]:
            remarks.append(f"{', '.join(left)} shots left out: class {name!r} has only {fewest} training images.")
    for count in shots:
        if not 1 <= count <= fewest:
            raise UserError(
                f"shots={count}: class {name!r} has {fewest} training images; give numbers from 1 to {fewest}."
            )
    if not shots:
        raise UserError("shots: give at least one number of images per class, such as 1,5,10.")
    accuracies: dict[int, list[float]] = {count: [] for count in shots}
    for draw in range(DRAWS):
        for count, index in draw_shots(labels, list(accuracies), seed + draw).items():
            logits = F.linear(test, *fit_least_squares(known[index], labels[index], splits.classes))
            accuracies[count].append(is_right(logits, truth).double().mean().item())
    return [
        ProbeScore({"shots": count}, float(np.mean(found)), mean_interval(found, len(truth)), tuple(found))
        for count, found in accuracies.items()
    ]
