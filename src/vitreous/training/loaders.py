"""The loaders of a training: images to learn from, and images to be judged by."""

from __future__ import annotations

from vitreous.config.model import ViTConfig
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source
from vitreous.distributed.world import ALONE, World
from vitreous.model.family import inference_batch

MOST_VIEWED = 256
"""Images at once, at most, that views are made of in evaluation: a batch of many processes is too large for one. The
same for any number of them, for what an objective says may depend on the batch; no recipe has a larger one."""


def training_loader(source: Source, t: Training, workers: int, world: World = ALONE) -> Loader:
    """Images varied as the training says, in the views that its objective wants; of each batch a process's part."""
    return Loader(
        source,
        t.preprocess,
        t.augment,
        batch_size=t.batch_size,
        seed=t.seed,
        workers=workers,
        views=t.objective.views,
        patch=t.model.patch if isinstance(t.model, ViTConfig) else None,
        world=world,
    )


def plain_loader(source: Source, t: Training, workers: int, world: World = ALONE) -> Loader:
    """Images as evaluation sees them; those that cannot be read are left out, and reported."""
    batch = inference_batch(t.model)
    return Loader(source, t.preprocess, batch_size=batch, workers=workers, unreadable_limit=1.0, world=world)


def evaluation_loader(source: Source, t: Training, workers: int, world: World = ALONE) -> Loader:
    """What the objective is evaluated on: plain images, or its own views of them, the same each time."""
    if not t.objective.evaluates_views:
        return plain_loader(source, t, workers, world)
    return Loader(
        source,
        t.preprocess,
        t.augment,
        batch_size=min(t.batch_size, MOST_VIEWED),
        seed=t.seed,
        shuffle=False,
        views=t.objective.views,
        unreadable_limit=1.0,
        world=world,
    )
