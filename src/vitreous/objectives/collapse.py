"""How it shows that features collapse: every picture gets the same answer. And who says so, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW = 100
"""So many steps in a row must look collapsed before it is said: half of what a person should have to wait."""
TELLS, ALIKE = 0.02, 0.01
"""Below this information (nats), or below this spread, something is wrong."""


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
    """Listens to the records of a training; says once of each sign of collapse that it is there, and what to change."""

    said: list[str] = field(default_factory=list)
    _since: dict[str, int] = field(default_factory=dict)
    """Each sign that is there now, and the step at which it was first seen."""
    _step: int = 0

    @property
    def ringing(self) -> bool:
        """Whether a sign has been there for long enough, and still is."""
        return any(self._step - since + 1 >= WINDOW for since in self._since.values())

    def hear(self, record: Mapping[str, float]) -> str | None:
        """The sentence to say after a step, if there is one."""
        if "spread" not in record:  # a line about an evaluation
            return None
        self._step = int(record["step"])
        signs = _signs(record)
        self._since = {sign: self._since.get(sign, self._step) for sign in signs}
        for sign, since in self._since.items():
            if self._step - since + 1 >= WINDOW and not any(sign in text for text in self.said):
                self.said.append(f"Collapse: {sign}, from step {since} on ({signs[sign]}).")
                return self.said[-1]
        return None


def _signs(record: Mapping[str, float]) -> dict[str, str]:
    """What looks collapsed in a record, and what to change."""
    signs = {}
    if record["spread"] < ALIKE:
        signs["all pictures get the same features"] = (
            f"their standard deviation is {record['spread']:.3f} of what it could be; lower optimizer.rate and "
            "optimizer.muon_rate, or take pictures that differ more"
        )
    if "information" not in record or record["information"] >= TELLS:
        return signs
    if record["entropy"] > 0.5:
        signs["the teacher knows nothing of any picture"] = (
            f"its entropy is {record['entropy']:.1%} of ln K; lower method.teacher_temperature, raise "
            "method.centre_momentum, or take a larger batch_size"
        )
    else:
        signs["the teacher says the same of every picture"] = (
            f"its entropy is {record['entropy']:.1%} of ln K, the centre's norm {record['centre']:.2f}; lower "
            "method.centre_momentum so that the centre follows faster, or raise method.teacher_temperature"
        )
    return signs
