"""How well a classifier does on pictures with known labels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Source
from vitreous.deploy.engine import Deployed
from vitreous.evaluate.classify import ClassificationResult, score_classes
from vitreous.evaluate.features import compute_features
from vitreous.run.needs import check_inference_memory
from vitreous.run.opening import names_of


def measure_classifier(
    model: Deployed,
    source: Source,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[ClassificationResult, dict[str, str]]:
    """The result, and pictures that were left out: path to reason. Classes are matched to the labels by name.

    batch_size: pictures at once; if None, as many as is fastest.
    """
    source = source.relabelled(model.labels)
    engine = model.engine
    batch = min(batch_size or engine.batch_size, len(source))
    check_inference_memory(model.config, engine.preprocess, batch)
    loader = Loader(
        source,
        engine.preprocess,
        batch_size=batch,
        workers=choose_workers(workers, len(source)),
        cache_bytes=0,
        normalised=False,
    )
    with closing(loader):
        scores, targets = compute_features(engine.scores, loader.batches(), len(source), progress)
    result = score_classes(scores, targets, model.labels, names=names_of(source, loader.unreadable))
    return result, dict(loader.unreadable)
