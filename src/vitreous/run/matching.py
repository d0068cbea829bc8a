"""Which of a model's outputs each class of the data is, and among which outputs the answer is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitreous.data.source import Source


@dataclass(frozen=True)
class Matched:
    """Pictures whose labels count in the classes that may be answered."""

    source: Source
    labels: tuple[str, ...]
    """(K,) names of the classes that may be answered."""

    def answerable(self, scores: Tensor) -> Tensor:
        """(B, K) of all scores of the model, those of the classes that may be answered."""
        return scores


def match_names(source: Source, labels: tuple[str, ...]) -> Matched:
    """Each class is the output of its name, and the answer is chosen among all outputs."""
    return Matched(source.relabelled(labels), labels)
