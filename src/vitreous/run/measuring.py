"""How well a classifier does on pictures with known labels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from torch import Tensor

from vitreous.data.batch import Batch
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Source
from vitreous.evaluate.answer_file import Write, read_answers
from vitreous.evaluate.classify import ClassificationResult, distinct_labels, score_classes
from vitreous.evaluate.features import compute_features
from vitreous.run.matching import Matched, match_names
from vitreous.run.needs import check_inference_memory
from vitreous.run.opening import names_of, open_engine
from vitreous.weights.bundle import Bundle


class Asked(NamedTuple):
    """What a classifier says of many pictures."""

    scores: Tensor
    """(n, K)."""
    targets: Tensor
    """(n,) the labels of the source."""
    unreadable: dict[str, str]
    """Pictures that were left out: path to reason."""


def measure_classifier(
    bundle: Bundle,
    source: Source | Matched,
    *,
    device: str = "auto",
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    write: Write | None = None,
) -> tuple[ClassificationResult, dict[str, str]]:
    """The result, and pictures that were left out: path to reason. Classes are matched to the labels by name.

    The bundle's network is moved to the device. batch_size: pictures at once; if None, as many as is fastest.
    source: pictures whose classes are matched to the labels by name, or have been matched otherwise.
    write: called with what is said of the pictures of each batch.
    """
    matched = source if isinstance(source, Matched) else match_names(source, bundle.labels)
    names = distinct_labels(matched.labels)

    def told(batch: Batch, scores: Tensor) -> None:
        if write is not None:
            paths = [matched.source.name(index) for index in batch.index.tolist()]
            write(read_answers(scores, [[label] for label in batch.targets.tolist()], names, paths))

    asked = ask_classifier(
        bundle, matched, device=device, batch_size=batch_size, workers=workers, progress=progress, told=told
    )
    seen = names_of(matched.source, asked.unreadable)
    return score_classes(asked.scores, asked.targets, matched.labels, names=seen), asked.unreadable


def ask_classifier(
    bundle: Bundle,
    matched: Matched,
    *,
    device: str = "auto",
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    told: Callable[[Batch, Tensor], None] | None = None,
) -> Asked:
    """What the classifier says of all pictures; `told` hears of each batch. The other arguments are as above."""
    source, engine = matched.source, open_engine(bundle, device)
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

    def answer(pictures: Tensor) -> Tensor:
        return matched.answerable(engine.scores(pictures))

    with closing(loader):
        scores, targets = compute_features(answer, loader.batches(), len(source), progress, told)
    return Asked(scores, targets, dict(loader.unreadable))
