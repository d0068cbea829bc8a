"""What an objective may need to know beside its network and its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.distributed.world import World
from vitreous.objectives.answers import Answers


@dataclass(frozen=True)
class Setting:
    """Where an objective learns."""

    seed: int = 0
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """(n,) of the training images; -1 where there is none."""
    world: World = field(default_factory=World)
    preprocess: Preprocess = field(default_factory=Preprocess)
    """What made the images of a batch: pixels in [0, 1] are x * std + mean."""
    answers: Answers | None = None
    """What a teacher says of the training images, where there is one."""
