"""How it shows that features collapse: every picture gets the same answer. And who says so, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW = 100
"""So many steps in a row must look collapsed before it is said; the half of what a person may have to wait."""


def entropy(answers: Tensor) -> Tensor:
    """Of distributions (..., K), in nats: (...). 0 is sure of one answer, ln K knows nothing."""
    return -torch.xlogy(answers, answers).sum(dim=-1)


def information(answers: Tensor) -> Tensor:
    """How much the answers (n, K) tell pictures apart, in nats: the entropy of their mean less their mean entropy.

    0 when all pictures get the same answer, be it one prototype or all alike: in both ways of collapsing.
    """
    return entropy(answers.mean(dim=0)) - entropy(answers).mean()


def feature_spread(features: Tensor) -> float:
    """The standard deviation of the features' directions (n, D) times sqrt(D): 1 if spread evenly, 0 if all alike."""
    direction = F.normalize(features.float(), dim=1)
    return direction.std(dim=0, correction=0).mean().item() * math.sqrt(features.shape[1])


@dataclass
class Alarm:
    """Listens to a training's records, and says once when it has collapsed, and what to change."""

    said: list[str] = field(default_factory=list)
    _since: dict[str, int] = field(default_factory=dict)
    """Each sign that is there now, and the step it was first seen at."""

    def hear(self, record: Mapping[str, float]) -> str | None:
        """The sentence to say after a step, if there is one."""
        if "spread" not in record:  # a line about an evaluation
            return None
        step = int(record["step"])
        signs = _signs(record)
        self._since = {name: self._since.get(name, step) for name in signs}
        for name, since in self._since.items():
            if step - since + 1 == WINDOW and not any(name in text for text in self.said):
                self.said.append(f"From step {since} on: {name}. {signs[name]}")
                return self.said[-1]
        return None


def _signs(record: Mapping[str, float]) -> dict[str, str]:
    """What looks collapsed in a record, and what to change."""
    signs: dict[str, str] = {}
    return signs
