"""How a batch goes through a model: in how many parts, and in which precision."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from vitreous.data.loader import Batch


def split(batch: Batch, parts: int) -> list[Batch]:
    """A batch in so many parts of nearly equal size."""
    tensors = [t for t in (batch.images, batch.targets, batch.index, batch.small) if t is not None]
    pieces = zip(*(t.tensor_split(parts) for t in tensors), strict=True)
    return [Batch(*piece) for piece in pieces if len(piece[2])]


def precision() -> Any:
    """bfloat16 where the processor multiplies it faster than float32; float32 elsewhere."""
    able = torch.cpu.get_capabilities()
    return torch.autocast("cpu", torch.bfloat16) if able.get("amx_bf16") or able.get("avx512_bf16") else nullcontext()
