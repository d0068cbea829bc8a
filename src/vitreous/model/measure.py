"""What a network of any family costs, found by running one that has shapes and no numbers (torch's meta device)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitreous.config.model import ModelConfig
from vitreous.model.network import Network

Build = Callable[[Any, int | None], Network]


def measure_parameters(build: Build, config: ModelConfig) -> int:
    """Learned numbers, all of them."""
    return sum(parameter.numel() for parameter in _shapes(build, config).parameters())


def measure_flops(build: Build, config: ModelConfig) -> int:
    """Floating-point operations of the matrix products and convolutions of one image's forward pass."""
    network = _shapes(build, config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(_images(config, 1))
    return int(counter.get_total_flops())


def measure_activation_bytes(build: Build, config: ModelConfig) -> int:
    """Bytes of one image that a training step keeps from the forward pass for the backward pass."""
    network = _shapes(build, config).train()
    own = {tensor.untyped_storage()._cdata for tensor in (*network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # an address means one storage only as long as that lives

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
            alive.append(tensor)
        return tensor

    images = 2  # a norm over the batch refuses a single one
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(_images(config, images))
    return sum(kept.values()) // images


def largest_activation(build: Build, config: ModelConfig) -> int:
    """Bytes of the largest tensor that a module makes of one image."""
    network = _shapes(build, config).eval()
    sizes = [0]

    def look(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    for module in network.modules():
        module.register_forward_hook(look)
    with torch.no_grad():
        network(_images(config, 1))
    return max(sizes)


def _shapes(build: Build, config: ModelConfig) -> Network:
    with torch.device("meta"):
        return build(config, None)


def _images(config: ModelConfig, count: int) -> Tensor:
    return torch.empty(count, config.channels, *config.image_size, device="meta")
