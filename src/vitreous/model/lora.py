"""Low-rank adaptation: learn a small change of each block's q, k and v, and fold it in when done."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitreous.model.vit import Attention, ViT

_STORED = ".qkv.parametrizations.weight."


class LowRank(nn.Module):
    """A fixed matrix (m, n) plus a learned change of rank r, up (m, r) times down (r, n), which starts at zero."""

    def __init__(self, outputs: int, inputs: int, rank: int, draw: torch.Generator) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.down = nn.Parameter(torch.randn(rank, inputs, generator=draw) * inputs**-0.5)

    def forward(self, weight: Tensor) -> Tensor:
        """The changed matrix."""
        return weight + self.up @ self.down


def add_lora(model: ViT, rank: int, seed: int = 0) -> None:
    """Freeze the model but its classifier, and let a change of this rank be learned in each block's q, k and v."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("head", "pre_logits")))
    for block in model.blocks:
        attention = block.attn
        assert isinstance(attention, Attention)
        qkv = attention.qkv
        parametrize.register_parametrization(qkv, "weight", LowRank(qkv.out_features, qkv.in_features, rank, draw))


def merge_lora(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model's tensors under their ordinary names, with learned changes folded into the weights."""
    merged = {name: tensor for name, tensor in state.items() if _STORED not in name}
    for name, tensor in state.items():
        stem, stored, kind = name.partition(_STORED)
        if stored and kind == "original":
            change = state[f"{stem}{_STORED}0.up"] @ state[f"{stem}{_STORED}0.down"]
            merged[f"{stem}.qkv.weight"] = tensor + change
    return merged
