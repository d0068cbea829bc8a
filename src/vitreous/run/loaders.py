"""The loaders of a training: pictures to learn from, and pictures to be judged by."""

from __future__ import annotations

from vitreous.config.model import ViTConfig
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source
from vitreous.model.family import inference_batch


def training_loader(source: Source, t: Training, workers: int) -> Loader:
    """Pictures varied as the training says, in the views that its objective wants."""
    return Loader(
        source,
        t.preprocess,
        t.augment,
        batch_size=t.batch_size,
        seed=t.seed,
        workers=workers,
        views=t.objective.views,
        patch=t.model.patch if isinstance(t.model, ViTConfig) else None,
    )


def plain_loader(source: Source, t: Training, workers: int) -> Loader:
    """Pictures as evaluation sees them; those that cannot be read are left out, and reported."""
    batch = inference_batch(t.model)
    return Loader(source, t.preprocess, batch_size=batch, workers=workers, unreadable_limit=1.0)


def evaluation_loader(source: Source, t: Training, workers: int) -> Loader:
    """What the objective is evaluated on: plain pictures, or its own views of them, the same each time."""
    if not t.objective.evaluates_views:
        return plain_loader(source, t, workers)
    return Loader(
        source,
        t.preprocess,
        t.augment,
        batch_size=t.batch_size,
        seed=t.seed,
        shuffle=False,
        views=t.objective.views,
        unreadable_limit=1.0,
    )
