"""Small results of many batches, in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.memory import check_memory


class Rows:
    """Rows that come batch by batch, written at once into one tensor made beforehand.

    Kept as they come, they would pin the heap around the freed activations of their batches: some 100 kB for each
    image, gigabytes for a large dataset.
    """

    def __init__(self, count: int) -> None:
        """count: rows there will be at most."""
        self.count, self.done = count, 0
        self._all: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Take in a copy of these (B, ...), which all have the same shape and type."""
        if self._all is None:
            needed = self.count * rows[:1].numel() * rows.element_size()
            check_memory(needed, f"what is kept of {self.count:,} images", "give fewer images")
            self._all = torch.empty(self.count, *rows.shape[1:], dtype=rows.dtype)
        self._all[self.done : self.done + len(rows)] = rows
        self.done += len(rows)

    def all(self) -> Tensor:
        """(n, ...): those that came, in their order; an ordinary tensor, which training may use."""
        return torch.empty(0) if self._all is None else self._all[: self.done]
