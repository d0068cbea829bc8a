"""The processes and the device that a training uses; nothing here changes what is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vitreous.data.loader import choose_workers
from vitreous.distributed.launcher import local_world_size, refuse_many, world_size
from vitreous.distributed.process_group import join_world
from vitreous.distributed.world import World, find_device
from vitreous.errors import UserError


@dataclass(frozen=True)
class Runtime:
    """How a run uses the machine; nothing here overrides what is asked for."""

    workers: int
    """Processes that decode images, for each that trains."""
    world: World
    """The processes that train together, and the device of this one."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run folder."""

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        return self.world.device


def local_runtime(workers: int | None, device: str, tensorboard: bool) -> Runtime:
    """What a person said of the machine, with what they left open filled in; for one process."""
    refuse_many("a training of this kind")
    return Runtime(choose_workers(workers), World(device=find_device(device)), tensorboard)


def join_runtime(workers: int | None, device: str, shard: bool, tensorboard: bool) -> Runtime:
    """The same for a training of as many processes as torchrun has started; `shard` divides the weights among them."""
    if shard and world_size() == 1:
        raise UserError(
            "shard: there is one process, and nobody to share the weights with; leave it out, or start "
            "several with torchrun."
        )
    workers = choose_workers(workers, beside=local_world_size())  # what is wrong here is said before anybody is met
    return Runtime(workers, replace(join_world(device), sharded=shard), tensorboard)
