"""`vitreous probe`: what a model's frozen features are worth on labelled data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitreous.arguments import Count, Seed, Workers, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.inference.choice import deploy
from vitreous.inference.folder import is_engine
from vitreous.inference.opening import open_dataset
from vitreous.inference.probing import (
    FeatureReader,
    ProbeScore,
    check_labelled,
    score_few_shot,
    score_linear,
    score_neighbours,
)
from vitreous.weights.bundle import Bundle

Protocol = Literal["knn", "linear", "fewshot"]


@dataclass(frozen=True)
class Probed:
    """What features are worth, and how it was measured."""

    protocol: Protocol
    judged: str
    """Which images were judged: test, val, or images that were set aside."""
    n: int
    """How many."""
    known: int
    """Images whose labels could be learned from."""
    classes: int
    width: int
    """D, the length of a feature."""
    scores: tuple[ProbeScore, ...]
    computed: int
    """Images that the model had to look at; the others' features were known from before."""
    remarks: tuple[str, ...]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Images that were left out: path to reason."""
    seconds: float = 0.0
    engine: str = "torch-fp32"
    """What computed the features, and in what numbers."""

    def to_json(self) -> dict[str, Any]:
        """{"protocol", "judged", "n", "scores": [{"k", "accuracy", "interval"}, ...], ...}."""
        scores = []
        for score in self.scores:
            found = {**score.setting, "accuracy": score.accuracy, "interval": list(score.interval)}
            scores.append(found | ({"std": score.std, "draws": list(score.draws)} if score.draws else {}))
        return {**asdict(self), "scores": scores, "remarks": list(self.remarks), "seconds": round(self.seconds, 3)}


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
    engine, precision: what computes, and in what numbers; `vitreous.inference.choice.deploy` says how it is chosen.
        int8 only if it is asked for: what it costs was judged by a classifier, which says nothing of features.
    protocol: "knn", the weighted vote of the nearest training images; "linear", a linear classifier; "fewshot", least
        squares from a few images per class, the mean of several draws.
    shots: few-shot: how many images of each class, each number by itself; 1, 5 and 10 if None.
    seed: of what is drawn at random: the shots, and the images set aside where the data have no split for them.
    progress: called with images done and in all, for each split of the data that the model must look at.
    """
    start = time.perf_counter()
    if shots is not None and protocol != "fewshot":
        raise UserError(f"shots: only the protocol fewshot draws any, not {protocol}; take that, or leave shots out.")
    opened = open_dataset(data)
    check_labelled(opened)
    drawing_seed = _drawing_seed(seed, protocol, opened)
    exported = not isinstance(model, Bundle) and is_engine(Path(model))
    if engine == "auto" and precision is None and not exported:
        precision = "fp32"
    deployed = deploy(
        model,
        engine=engine,
        precision=precision,
        preprocess=preprocess,
        images=sum(map(len, opened.splits.values())),
        classifier=False,
    )
    reader = FeatureReader(deployed, batch_size, workers, progress)
    splits = reader.splits(opened, drawing_seed, validate=protocol == "linear")
    remarks: list[str] = []
    if protocol == "knn":
        scores = score_neighbours(splits, remarks)
    elif protocol == "linear":
        scores = [score_linear(splits, drawing_seed, remarks)]
    else:
        scores = score_few_shot(splits, shots, opened.classes, drawing_seed, remarks)
    return Probed(
        protocol=protocol,
        judged=splits.judged,
        n=len(splits.test[1]),
        known=sum(len(part[1]) for part in (splits.train, splits.val) if part is not None),
        classes=splits.classes,
        width=splits.test[0].shape[1],
        scores=tuple(scores),
        computed=reader.computed,
        remarks=(*reader.cache.remarks, *remarks),
        unreadable=reader.unreadable,
        engine=f"{deployed.engine.name}-{deployed.engine.precision}",
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
