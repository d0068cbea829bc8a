"""What a function says of many images, batch by batch: scores to judge, or features to learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from vitreous.data.rows import Rows
from vitreous.distributed.world import ALONE, World
from vitreous.errors import nothing_readable


class LabelledBatch(Protocol):
    """What is needed of a batch: `vitreous.data.batch.Batch` has it."""

    @property
    def images(self) -> Tensor:
        """(B, C, H, W), as the function takes them: uint8 for an engine, normalised for a network."""

    @property
    def targets(self) -> Tensor:
        """(B,) int64."""


Seen = TypeVar("Seen", bound=LabelledBatch)


def compute_features(
    function: Callable[[Tensor], Tensor],
    batches: Iterable[Seen],
    count: int,
    progress: Callable[[int], None] | None = None,
    told: Callable[[Seen, Tensor], None] | None = None,
    world: World = ALONE,
) -> tuple[Tensor, Tensor]:
    """(n, D) float32 features or scores, and (n,) int64 labels, in the order of the batches.

    function: (B, C, H, W) to (B, D): `engine.logits`, `engine.representations`, or a network in evaluation mode. It is
        called without gradients.
    count: images in the batches; fewer may come, where some cannot be read.
    progress: called after each batch with the number of images done.
    told: called with each batch and what the function says of it, (B, D).
    world: where several processes look together, `batches` are this one's, and the result is that of all.
    """
    features, labels = Rows(count), Rows(count)
    for batch in batches:
        with torch.inference_mode():
            found = function(batch.images).float()
        features.add(found)
        labels.add(batch.targets)
        if told is not None:
            told(batch, found)
        if progress is not None:
            progress(labels.done)
    if not world.any_rank(labels.done > 0):
        raise nothing_readable()
    return world.gather(features.all()), world.gather(labels.all())
