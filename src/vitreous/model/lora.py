"""Low-rank adaptation: learn a small change of some layers' weights, and fold it in when done."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitreous.errors import UserError
from vitreous.model.network import Network

_STORED = ".parametrizations.weight."


class LowRank(nn.Module):
    """A fixed matrix (m, n) plus a learned change of rank r, up (m, r) times down (r, n), which starts at zero."""

    def __init__(self, outputs: int, inputs: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.down = nn.Parameter(torch.randn(rank, inputs, generator=generator) * inputs**-0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def add_lora(network: Network, rank: int, seed: int = 0) -> None:
    """Freeze the network but its classifier, and let a change of this rank be learned in each of the family's layers.

    Of a ViT, those are each block's q, k and v.
    """
    targets = network.lora_targets()
    if not targets:
        raise UserError(
            f"lora={rank}: the family {network.config.family!r} names no layers that a low-rank change could be "
            "learned for; set lora=0."
        )
    groups = network.parameter_groups()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(groups[name].kind == "classifier")
    generator = torch.Generator().manual_seed(seed)
    for layer in targets:
        change = LowRank(layer.out_features, layer.in_features, rank, generator)
        parametrize.register_parametrization(layer, "weight", change)


def merge_lora(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A network's tensors under their ordinary names, with learned changes folded into the weights."""
    merged = {name: tensor for name, tensor in state.items() if _STORED not in name}
    for name, tensor in state.items():
        stem, stored, kind = name.partition(_STORED)
        if stored and kind == "original":
            change = state[f"{stem}{_STORED}0.up"] @ state[f"{stem}{_STORED}0.down"]
            merged[f"{stem}.weight"] = tensor + change
    return merged
