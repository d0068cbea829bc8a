"""An objective that several processes train together: replicated (DDP) or, where it is too large, sharded (FSDP2).

Either way each process works on its part of a batch, gradients are averaged, and the objective's parameters keep their
names. Sharded ones are `DTensor`s, of which a process holds some rows.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from vitreous.distributed.heartbeat import collectives
from vitreous.distributed.world import World
from vitreous.model.batch_norm import join_batches
from vitreous.objectives.objective import Objective


class Single:
    """One process: the objective as it is, or compiled."""

    def __init__(self, objective: Objective, compiled: bool) -> None:
        self.call: Callable[..., Any] = torch.compile(objective) if compiled else objective

    def no_sync(self, last: bool) -> AbstractContextManager[None]:
        """Around a part of a batch; `last`: gradients are complete after it."""
        return nullcontext()

    def shard_same(self, twin: Objective) -> None:
        """Hold a copy of the objective, made before, in the same way."""

    def full_model(self, objective: Objective) -> Objective:
        """The objective, or a copy that is held alike, with all its weights in this process."""
        return objective

    def offload_full_model(self) -> None:
        """What `full_model` gave is not needed until it is asked for again: its memory may be given back."""


class Replicated(Single):
    """Every process has all weights, beginning with the first one's."""

    def __init__(self, objective: Objective, compiled: bool, world: World) -> None:
        super().__init__(objective, compiled)
        join_norms(objective, world)
        assert isinstance(self.call, nn.Module)
        with warnings.catch_warnings(), collectives.enter("DistributedDataParallel"):
            warnings.simplefilter("ignore", FutureWarning)  # the name of the first option overrides in torch 2.13
            self.wrapped = DistributedDataParallel(
                self.call,
                broadcast_buffers=False,  # they follow from the same numbers in every process
                # DINO's prototypes have no gradient at first. Without this, torch also rebuilds its buckets after the
                # first step: three processes then add in another order, and a resumed training has other bits.
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
            )
        self.call = self.wrapped

    def no_sync(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.wrapped.no_sync()


class Sharded(Single):
    """Every process has a part of each parameter, and of what the optimizer keeps; blocks are put together in turn."""

    def __init__(self, objective: Objective, compiled: bool, world: World) -> None:
        join_norms(objective, world)
        broadcast_parameters(objective, world)
        self.device = world.device
        self.mesh = init_device_mesh(world.device.type, (world.size,))  # left to itself, torch takes the accelerator
        self.plain = copy.deepcopy(objective).requires_grad_(False)  # for `full_model`
        self.offload_full_model()
        self.shard_same(objective)
        self.objective = objective
        super().__init__(objective, compiled)

    def shard_same(self, twin: Objective) -> None:
        from torch.distributed.fsdp import fully_shard

        for module in (*twin.transformer_blocks(), twin):
            fully_shard(module, mesh=self.mesh)

    def no_sync(self, last: bool) -> AbstractContextManager[None]:
        """The gradients of earlier parts stay where they are, unreduced."""
        set_sync: Callable[[bool], None] = self.objective.set_requires_gradient_sync  # type: ignore[assignment]
        set_sync(last)
        return nullcontext()

    def full_model(self, objective: Objective) -> Objective:
        """A plain copy, on this process's device; there is one, so it is good until the next."""
        tensors = objective.state_dict()
        for name, tensor in tensors.items():
            full = full_tensor(tensor)
            tensors[name] = full.clone() if full is tensor else full  # what is not divided is still the objective's
        self.plain.load_state_dict(tensors, assign=True)
        return self.plain.to(self.device)

    def offload_full_model(self) -> None:
        nothing = {name: tensor.to("meta") for name, tensor in self.plain.state_dict().items()}
        self.plain.load_state_dict(nothing, assign=True)


def parallelise(objective: Objective, world: World, compiled: bool) -> Single:
    if world.size == 1:
        return Single(objective, compiled)
    return (Sharded if world.sharded else Replicated)(objective, compiled, world)


@cache
def count_parts(micro_batch: int | None, images: int, processes: int, unit: int = 1) -> int:
    """In how many parts every process works through its images of a batch: the same number, because objectives compare
    parts among processes, and none is empty. images: of the whole batch, divided in units."""
    slices = [World(rank, processes).rank_slice(images, unit) for rank in range(processes)]
    sizes = [own.stop - own.start for own in slices]
    return 1 if micro_batch is None else max(1, min(-(-max(sizes) // micro_batch), min(sizes)))


def broadcast_parameters(objective: nn.Module, world: World) -> None:
    """Give every process the first one's weights: what is computed before a training may differ by rounding."""
    if world.size == 1:
        return
    with torch.no_grad():
        for tensor in objective.state_dict().values():
            tensor.copy_(world.broadcast(tensor))


def checkpoint_blocks(objective: Objective) -> None:
    for block in objective.transformer_blocks():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def join_norms(objective: nn.Module, world: World) -> None:
    for module in objective.modules():
        if isinstance(module, _BatchNorm):
            join_batches(module, world)


def full_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, as another of its shape is divided."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor.to(like.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    return distribute_tensor(tensor.to(like.device), sharded.device_mesh, sharded.placements, src_data_rank=None)


def load_full_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module, sharded or not, the weights of a whole one."""
    own = module.state_dict()
    module.load_state_dict({name: shard_like(tensor, own[name]) for name, tensor in tensors.items()})
