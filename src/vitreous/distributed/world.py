"""The processes that train together, and their collectives; for one process every collective is the identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitreous.distributed.heartbeat import collectives
from vitreous.errors import MachineError, UserError, no_readable_images

Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """The rank of this process, the number of processes, and the device. Every method that communicates is a
    collective, which all processes call in the same order. What depends on a clock may differ among processes, so the
    main one decides it (`on_main`)."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    sharded: bool = False  # whether the weights are divided among the processes, rather than copied to each

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def rank_slice(self, count: int, unit: int = 1) -> slice:
        """This process's part of `count` rows: in the order of ranks, as evenly as whole units allow."""
        units = -(-count // unit)
        first, last = (unit * (units * rank // self.size) for rank in (self.rank, self.rank + 1))
        return slice(min(first, count), min(last, count))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all processes of tensors of one shape; gradients flow back to each of them."""
        if self.size == 1:
            return tensor
        return _AllReduce.apply(tensor)  # type: ignore[no-untyped-call]

    def mean_rows(self, rows: Tensor) -> Tensor:
        """(D,): the mean of the rows (n, D) of all processes; n may differ. NaN if there are none."""
        sums = self.all_reduce(torch.cat([rows.sum(dim=0), rows.new_tensor([len(rows)])]))
        return sums[:-1] / sums[-1]

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """The elementwise maximum over all processes; without gradients."""
        if self.size == 1:
            return tensor
        largest = tensor.detach().clone()
        with collectives.enter("all_reduce"):
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest

    def sum_numbers(self, *values: float) -> list[float]:
        return list(values) if self.size == 1 else self.all_reduce(torch.tensor(values, dtype=torch.float64)).tolist()

    def mean_number(self, value: float) -> float:
        return self.sum_numbers(value)[0] / self.size

    def all_gather_rows(self, tensor: Tensor | None) -> Tensor:
        """(N, ...): the rows (n, ...) of all processes, by rank; n may differ, None has no rows. Without gradients.
        If no process has any rows, no image could be read, which is an error in all of them."""
        if self.size == 1:
            assert tensor is not None
            return tensor
        kinds = self.all_gather_object(None if tensor is None or not len(tensor) else (tensor.shape, tensor.dtype))
        if (some := next((kind for kind in kinds if kind is not None), None)) is None:
            raise no_readable_images()
        shape, dtype = some
        counts = [0 if kind is None else kind[0][0] for kind in kinds]
        own = torch.zeros(max(counts), *shape[1:], dtype=dtype, device=self.device if tensor is None else tensor.device)
        if tensor is not None and len(tensor):
            own[: len(tensor)] = tensor
        pieces = [torch.empty_like(own) for _ in counts]
        with collectives.enter("all_gather"):
            dist.all_gather(pieces, own)
        return torch.cat([piece[:count] for piece, count in zip(pieces, counts, strict=True)])

    def all_gather_object(self, value: Value) -> list[Value]:
        """A small picklable value of each process, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with collectives.enter("all_gather_object"):
            dist.all_gather_object(values, value)
        return values

    def union(self, items: dict[str, str]) -> dict[str, str]:
        return {name: value for one in self.all_gather_object(items) for name, value in one.items()}

    def all_gather_with_grad(self, tensor: Tensor) -> tuple[Tensor, int]:
        """(N, ...): the rows (n, ...) of all processes, by rank, and the index of this one's first. With gradients."""
        if self.size == 1:
            return tensor, 0
        counts = self.all_gather_object(len(tensor))
        others = [tensor.new_zeros(count, *tensor.shape[1:]) for count in counts]
        rows = self.all_reduce(torch.cat([*others[: self.rank], tensor, *others[self.rank + 1 :]]))
        return rows, sum(counts[: self.rank])

    def any_rank(self, flag: bool) -> bool:
        return self.sum_numbers(flag)[0] > 0

    def on_main(self, function: Callable[[], Value]) -> Value:
        """The result of the function in the main process, for all; a `UserError` there is raised in all."""
        if self.size == 1:
            return function()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = function()
            except (UserError, MachineError) as error:
                outcome[1] = error
        with collectives.enter("broadcast_object_list"):
            dist.broadcast_object_list(outcome, src=0)
        value: Value = outcome[0]
        if outcome[1] is not None:
            raise outcome[1]
        return value

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The main process's tensor; the others give one of its shape and dtype, which may be on the device meta."""
        if self.size == 1:
            return tensor
        device = "cpu" if tensor.is_meta else tensor.device
        sent = tensor.contiguous() if self.is_main else torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        with collectives.enter("broadcast"):
            dist.broadcast(sent, src=0)
        return sent


SINGLE_PROCESS = World()  # one process, on the CPU


class _AllReduce(torch.autograd.Function):
    """The sum over all processes; the gradient of each summand is the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        with collectives.enter("all_reduce"):
            dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _AllReduce.forward(ctx, gradients[0])


def find_device(name: str = "auto") -> torch.device:
    """The device of this name, to compute on; "auto" is the accelerator if there is one, else the CPU. A CUDA GPU from
    then on multiplies float32 matrices in TF32, several times as fast; the CPU computes as before."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = accelerator or torch.device("cpu")
    else:
        try:
            device = torch.device(name)
        except RuntimeError:
            raise UserError(f"device {name!r}: there is no such device; give auto, cpu or cuda.") from None
        try:
            torch.empty(0, device=device).tolist()  # "meta" has no numbers
        except (RuntimeError, AssertionError, ImportError) as error:
            reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")  # the rest is about compiling torch
            raise UserError(f"device {name!r}: not available here ({reason}); give auto or cpu.") from None
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return device
