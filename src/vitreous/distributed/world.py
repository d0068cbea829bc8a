"""Who trains together: one process, or several that must agree. For one process everything here is the identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitreous.errors import UserError, nothing_readable

Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """This process among all that train together, and the device that it computes on.

    What is said of all processes is a collective: each of them must come to it, in the same order.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    sharded: bool = False
    """Whether a training divides the weights among the processes, rather than giving each a copy."""

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes files and speaks."""
        return self.rank == 0

    def rank_slice(self, count: int, unit: int = 1) -> slice:
        """This process's rows of so many: in the order of ranks, as evenly as whole units allow."""
        units = -(-count // unit)
        first, last = (unit * (units * rank // self.size) for rank in (self.rank, self.rank + 1))
        return slice(min(first, count), min(last, count))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all processes of tensors of one shape; gradients flow back to each of them."""
        if self.size == 1:
            return tensor
        total: Tensor = _Total.apply(tensor)  # type: ignore[no-untyped-call]
        return total

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over all processes of tensors of one shape."""
        return tensor if self.size == 1 else self.all_reduce(tensor) / self.size

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """The largest over all processes, place by place; without gradients."""
        if self.size == 1:
            return tensor
        largest = tensor.detach().clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest

    def mean_numbers(self, values: Sequence[float]) -> list[float]:
        """The means over all processes of as many numbers."""
        if self.size == 1:
            return list(values)
        found: list[float] = self.mean(torch.tensor(values, dtype=torch.float64)).tolist()
        return found

    def mean_number(self, value: float) -> float:
        """The mean over all processes of a number."""
        return self.mean_numbers([value])[0]

    def gather(self, tensor: Tensor | None) -> Tensor:
        """The rows (n, ...) of all processes, in the order of their ranks; None or any n will do.

        Where none has any, no image could be read, and all are told so.
        """
        if self.size == 1:
            assert tensor is not None
            return tensor
        kinds = self.all_gather_object(None if tensor is None or not len(tensor) else (tensor.shape, tensor.dtype))
        if (some := next((found for found in kinds if found is not None), None)) is None:
            raise nothing_readable()
        shape, kind = some
        counts = [0 if found is None else found[0][0] for found in kinds]
        own = torch.zeros(max(counts), *shape[1:], dtype=kind, device=self.device if tensor is None else tensor.device)
        if tensor is not None and len(tensor):
            own[: len(tensor)] = tensor
        pieces = [torch.empty_like(own) for _ in counts]
        dist.all_gather(pieces, own)
        return torch.cat([piece[:count] for piece, count in zip(pieces, counts, strict=True)])

    def all_gather_object(self, value: Value) -> list[Value]:
        """A small value of each process, in the order of their ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def union(self, found: dict[str, str]) -> dict[str, str]:
        """What any process has found."""
        return {name: value for one in self.all_gather_object(found) for name, value in one.items()}

    def all_gather(self, tensor: Tensor) -> tuple[Tensor, int]:
        """(N, ...): the rows (n, ...) of all processes, in the order of their ranks, and where this one's begin.

        Gradients flow back to each.
        """
        if self.size == 1:
            return tensor, 0
        counts = self.all_gather_object(len(tensor))
        others = [tensor.new_zeros(count, *tensor.shape[1:]) for count in counts]
        rows = self.all_reduce(torch.cat([*others[: self.rank], tensor, *others[self.rank + 1 :]]))
        return rows, sum(counts[: self.rank])

    def any_rank(self, flag: bool) -> bool:
        """Whether any process says so: then all act alike."""
        return self.any_rank_each(flag)[0]

    def any_rank_each(self, *flags: bool) -> list[bool]:
        """The same of several questions at once, for the price of one."""
        if self.size == 1:
            return list(flags)
        said: list[float] = self.all_reduce_max(torch.tensor([float(flag) for flag in flags])).tolist()
        return [bool(one) for one in said]

    def on_main(self, function: Callable[[], Value]) -> Value:
        """What the function gives in the first process, for all; where it fails there, it has failed for all."""
        if self.size == 1:
            return function()
        told: list[Any] = [None, None]
        if self.is_main:
            try:
                told[0] = function()
            except UserError as error:
                told[1] = error
        dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise told[1]
        value: Value = told[0]
        return value

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor; the others give one of its shape and type, which may be on no device (meta)."""
        if self.size == 1:
            return tensor
        sent = tensor.contiguous() if self.is_main else torch.empty(tensor.shape, dtype=tensor.dtype)
        dist.broadcast(sent, src=0)
        return sent


ALONE = World()
"""One process, on the processor."""


class _Total(torch.autograd.Function):
    """The sum over all processes; what it is the sum of has, in each process, the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Total.forward(ctx, gradients[0])


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
        torch.empty(0, device=device).tolist()  # "meta" has no numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")  # more is for whoever compiles torch
        raise UserError(f"device {name!r}: not available here ({reason}); give auto or cpu.") from None
    return device
