"""Batch norm that is right from the first batch on, and any batch norm over the images of several processes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitreous.distributed.world import SINGLE_PROCESS, World

MOMENTUM = 0.01  # share of a batch in the running statistics once there were a hundred: TensorFlow's decay of 0.99


class BatchNorm(nn.BatchNorm2d):
    """Batch norm as every layer has it.

    The first hundred batches count alike in the running statistics: at 1 % each from the beginning, a short training
    would end with those that it began with.
    """

    world: World = SINGLE_PROCESS  # the processes whose images are one batch

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(channels, eps, MOMENTUM)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not x.is_meta:
            assert self.num_batches_tracked is not None
            assert self.running_mean is not None
            if not self.num_batches_tracked and self.running_mean.any():  # of given weights, which kept no count
                self.num_batches_tracked.fill_(round(1 / MOMENTUM))
            self.momentum = max(MOMENTUM, 1 / (1 + int(self.num_batches_tracked)))
            if self.world.size > 1:
                return normalise_jointly(self, self.world, x)
        return super().forward(x)


def join_batches(norm: _BatchNorm, world: World) -> None:
    """From now on the norm's statistics in training are those of the images of all processes."""
    if isinstance(norm, BatchNorm):
        norm.world = world
    elif not isinstance(norm, nn.SyncBatchNorm):  # which joins them itself
        norm.forward = partial(normalise_jointly, norm, world)  # type: ignore[method-assign]


def normalise_jointly(norm: _BatchNorm, world: World, x: Tensor) -> Tensor:
    """x (B, C, ...) normalised, in training by the mean and the variance of what all processes have.

    In float32 at least: bfloat16 has 8 bits, and would round even the number of places.
    """
    if not norm.training:
        return type(norm).forward(norm, x)
    places, shape = (0, *range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    count = world.all_reduce(wide.new_tensor(float(x[:, 0].numel())))
    mean = world.all_reduce(wide.sum(dim=places)) / count
    centred = wide - mean.view(shape)
    variance = world.all_reduce(centred.square().sum(dim=places)) / count
    if norm.num_batches_tracked is not None:
        with torch.no_grad():
            norm.num_batches_tracked += 1
            momentum = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            for average, now in ((norm.running_mean, mean), (norm.running_var, variance * count / (count - 1))):
                assert average is not None
                average.lerp_(now, momentum)
    scale = (variance + norm.eps).rsqrt()
    if norm.affine:
        return (centred * (norm.weight * scale).view(shape) + norm.bias.view(shape)).to(x.dtype)
    return (centred * scale.view(shape)).to(x.dtype)
