"""Random numbers for the samples of a batch: a pure function of each sample's key, on whatever device the keys are.

So what is drawn for a sample depends neither on the others of its batch, nor on how a batch is split among steps or
processes. The generator is SplitMix64 (Steele, Lea, Flood 2014) in int64, whose products wrap as unsigned ones do.
"""

from __future__ import annotations

import torch
from torch import Tensor


def keyed_uniform(keys: Tensor, stream: int, count: int) -> Tensor:
    """(B, count) float32 in [0, 1): row i depends on keys[i] and stream only.

    keys: (B,) int64. stream: what the numbers are for, so that one key serves many purposes.
    """
    steps = torch.arange(1, count + 1, device=keys.device) * _GOLDEN
    numbers = _mix(fold(keys, stream)[:, None] + steps)
    return _shifted(numbers, 40).float() * 2.0**-24  # 24 bits are all that a float32 holds exactly


def fold(keys: Tensor, number: int) -> Tensor:
    """(B,) int64: keys of another stream of the same samples, such as another view of each."""
    return _mix((keys ^ _signed(number)) + _GOLDEN)


def _mix(x: Tensor) -> Tensor:
    """The finisher of SplitMix64: every bit of x moves every bit of the result."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits as of an unsigned number: int64's own shift would copy the sign into the upper bits."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The int64 with the same 64 bits as an unsigned number."""
    return (number + 2**63) % 2**64 - 2**63


_GOLDEN = _signed(0x9E3779B97F4A7C15)
