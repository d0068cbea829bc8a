"""Muon for processors: momentum, made orthogonal, for weight matrices.

The same steps as `torch.optim.Muon`, in float32. PyTorch's own works in bfloat16, which a processor without
instructions for it multiplies several times slower than float32 (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from vitreous.training.parallel import full_tensor, shard_like

_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalised Nesterov momentum of each matrix (Jordan et al.), with decoupled weight decay."""

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
