"""Which parameters learn how fast: groups without decay, slower early layers, Muon for matrices, and the schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config.train import Optimizer
from vitreous.train.muon import Muon

_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")
_UNDECAYED = re.compile(
    r"(?:cls_token|dist_token|reg_token|mask_token|pos_embed\w*|latent|relative_position_bias_table)$"
)


def make_optimizers(module: nn.Module, c: Optimizer) -> list[torch.optim.Optimizer]:
    """One optimizer, or with Muon two, over the parameters that want a gradient. Each group knows its `peak` rate."""
    parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    matrices = [(name, p) for name, p in parameters if c.name == "muon" and is_block_matrix(name, p)]
    rest = [(name, p) for name, p in parameters if not (c.name == "muon" and is_block_matrix(name, p))]
    depth = 1 + max((layer_of(name) for name, _ in module.named_parameters() if _BLOCK.search(name)), default=0)

    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        groups = _groups(matrices, c, depth, c.muon_rate)
        optimizers.append(Muon(groups, lr=c.muon_rate, weight_decay=c.weight_decay))
    if rest:
        groups = _groups(rest, c, depth, c.rate)
        if c.name == "sgd":
            optimizers.append(torch.optim.SGD(groups, lr=c.rate, momentum=c.momentum, weight_decay=c.weight_decay))
        else:
            optimizers.append(torch.optim.AdamW(groups, lr=c.rate, weight_decay=c.weight_decay, fused=True))
    return optimizers


def is_block_matrix(name: str, parameter: Tensor) -> bool:
    """Whether this is a weight matrix inside a block, which Muon is made for."""
    return bool(_BLOCK.search(name)) and parameter.ndim == 2 and name.endswith(".weight")


def is_decayed(name: str, parameter: Tensor) -> bool:
    """Whether weight decay acts on it: on matrices, not on biases, norms, tokens and positions."""
    return parameter.ndim >= 2 and not _UNDECAYED.search(name)


def layer_of(name: str) -> int:
    """The layer of a parameter: -1 for the embedding, a block's number, or a large number for what comes after."""
    if match := _BLOCK.search(name):
        return int(match[1])
    return -1 if re.search(r"(?:^|\.)(?:patch_embed|cls_token|dist_token|reg_token|pos_embed)", name) else 1_000_000


def _groups(
    parameters: Iterable[tuple[str, nn.Parameter]], c: Optimizer, depth: int, rate: float
) -> list[dict[str, Any]]:
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in parameters:
        layer, decayed = min(layer_of(name), depth), is_decayed(name, parameter)
        peak = rate * c.layer_decay ** (depth - layer)
        group = groups.setdefault(
            (layer, decayed),
            {
                "params": [],
                "lr": peak,
                "peak": peak,
                "weight_decay": c.weight_decay if decayed else 0.0,
                "decayed": decayed,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


def rate_factor(c: Optimizer, progress: float, after: float) -> float:
    """The share of its peak that the rate has in a step, from how far the training is before and after it."""
    if after < c.warmup:
        return after / c.warmup
    if c.decay == "constant":
        return 1.0
    done = (progress - c.warmup) / (1 - c.warmup)
    done = min(max(done, 0.0), 1.0)
    return 0.5 * (1 + math.cos(math.pi * done)) if c.decay == "cosine" else 1 - done


def set_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Let every group learn at this share of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def decay_now(c: Optimizer, progress: float) -> float:
    """The weight decay when this share of the steps is done: constant, or along half a cosine to its last value."""
    if c.weight_decay_end is None:
        return c.weight_decay
    return c.weight_decay_end + (c.weight_decay - c.weight_decay_end) * (1 + math.cos(math.pi * progress)) / 2


def set_decay(optimizers: Iterable[torch.optim.Optimizer], decay: float) -> None:
    """Let every group that is decayed at all be decayed so much."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["weight_decay"] = decay if group["decayed"] else 0.0
