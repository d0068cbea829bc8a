"""Who trains together: one process, or several that must agree. For one process everything here is the identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from vitreous.errors import UserError


@dataclass(frozen=True)
class World:
    """This process among all that train together, and the device that it computes on."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over all processes of tensors of one shape."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.size

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def mean_number(self, value: float) -> float:
        """The mean over all processes of a number."""
        return value if self.size == 1 else self.mean(torch.tensor([value], device=self.device)).item()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor (n, ...) of every process, in the order of their ranks; n may differ."""
        if self.size == 1:
            return [tensor]
        counts = [torch.empty(1, dtype=torch.long, device=tensor.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(tensor)], device=tensor.device))
        most = max(int(count) for count in counts)
        padded = tensor.new_zeros(most, *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        pieces = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(pieces, padded)
        return [piece[: int(count)] for piece, count in zip(pieces, counts, strict=True)]

    def jointly(self, function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
        """This process's rows of a function of the rows (n, ...) of all processes."""
        pieces = self.gather(tensor)
        first = sum(len(piece) for piece in pieces[: self.rank])
        return function(torch.cat(pieces))[first : first + len(tensor)]

    def agree(self, flag: bool) -> bool:
        """Whether any process says so: then all act alike."""
        if self.size == 1:
            return flag
        said = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(said, op=dist.ReduceOp.MAX)
        return bool(said.item())


def find_device(name: str = "auto") -> torch.device:
    """The device of this name; "auto" is the accelerator where there is one, else the processor."""
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device {name!r}: there is no such kind; give auto, cpu or cuda.") from None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"device {name!r}: not available here ({reason}); give auto or cpu.") from None
    return device
