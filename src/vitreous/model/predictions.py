"""What a classifier's outputs mean: probabilities, the predicted class, whether it is right, the likeliest few.

predict, evaluate, serve, explain, distillation, verification and export ask here. K classes.
"""

from __future__ import annotations

from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

A = TypeVar("A", Tensor, NDArray[Any])


def class_probabilities(logits: Tensor) -> Tensor:
    """(..., K), their softmax, in the type of the logits (..., K)."""
    return logits.softmax(dim=-1)


def predicted_class(outputs: A) -> A:
    """(...): the class with the highest logit, probability or vote of (..., K); the first of equal ones."""
    return outputs.argmax(-1)


def is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """(...) bool: whether the class predicted by outputs (..., K) is the target (...)."""
    return predicted_class(outputs) == targets


def ranked_classes(outputs: Tensor, count: int) -> list[tuple[int, float]]:
    """The classes with the highest of outputs (K,), at most `count`, best first, each with its number."""
    best = outputs.topk(min(count, len(outputs)))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
