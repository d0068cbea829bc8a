"""Which parameters learn how fast: groups without decay, slower early layers, Muon for matrices, and the schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config.train import Optimizer
from vitreous.model.network import Role
from vitreous.objectives.objective import Objective
from vitreous.training.parallel import full_tensor, shard_like

_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalised Nesterov momentum of each matrix (Jordan et al.), with decoupled weight decay.

    The same steps as `torch.optim.Muon`, in float32. PyTorch's own works in bfloat16, which a processor without
    instructions for it multiplies several times slower than float32 (docs/log.md).
    """

    def __init__(
        self, params: Iterable[dict[str, Any]], lr: float, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step for every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                buffer = state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
                step = weight.grad.lerp(buffer, group["momentum"])
                update = shard_like(orthogonalise(full_tensor(step)), step)
                rows, columns = weight.shape
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Nearly the closest matrix (m, n) with all singular values 1, by a Newton-Schulz iteration of degree five."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    result: Tensor = x if wide is matrix else x.T
    return result


def make_optimizers(objective: Objective, c: Optimizer) -> list[torch.optim.Optimizer]:
    """One optimizer, or with Muon two, over the parameters that want a gradient. Each group knows its `peak` rate."""
    roles, layers = objective.roles(), objective.model.config.layers
    learned = [(roles[name], p) for name, p in objective.named_parameters() if p.requires_grad]
    matrices = [(role, p) for role, p in learned if c.name == "muon" and role.kind == "matrix"]
    rest = [(role, p) for role, p in learned if not (c.name == "muon" and role.kind == "matrix")]

    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        groups = _groups(matrices, c, layers, c.muon_learning_rate)
        optimizers.append(Muon(groups, lr=c.muon_learning_rate, weight_decay=c.weight_decay))
    if rest:
        groups = _groups(rest, c, layers, c.learning_rate)
        rate, decay = c.learning_rate, c.weight_decay
        if c.name == "sgd":
            optimizers.append(torch.optim.SGD(groups, lr=rate, momentum=c.momentum, weight_decay=decay))
        else:
            optimizers.append(torch.optim.AdamW(groups, lr=rate, weight_decay=decay, fused=True))
    return optimizers


def _groups(
    parameters: Iterable[tuple[Role, nn.Parameter]], c: Optimizer, layers: int, rate: float
) -> list[dict[str, Any]]:
    """A group for each layer, which learns slower the lower it is, and in it for what is decayed and what is not."""
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for role, parameter in parameters:
        peak = rate * c.layer_decay ** (layers - role.layer)
        group = groups.setdefault(
            (role.layer, role.decayed),
            {
                "params": [],
                "lr": peak,
                "peak": peak,
                "weight_decay": c.weight_decay if role.decayed else 0.0,
                "decayed": role.decayed,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


STEPS = (0.3, 0.6, 0.9)
"""Shares of the training at which a learning rate that falls in steps is divided by ten: BiT's."""


def rate_factor(c: Optimizer, progress: float, after: float) -> float:
    """The share of its peak that the learning rate has in a step, from how far the training is before and after it."""
    if after < c.warmup:
        return after / c.warmup
    if c.decay == "constant":
        return 1.0
    if c.decay == "steps":
        return float(0.1 ** sum(progress >= share for share in STEPS))
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
