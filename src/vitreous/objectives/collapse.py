"""Collapse: every image gets the same output. The metrics that show it, and the alarm that says so in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.distributed.world import SINGLE_PROCESS, World

ALARM_STEPS = 100  # so many in a row must look collapsed before it is said: half of what a person should have to wait
AVERAGED_STEPS = 20
"""Metrics are averaged over so many steps: a lucky batch is no cure, and some are measured only now and then."""
MIN_INFORMATION, MIN_STD, MIN_EXPLAINED = 0.02, 0.05, 0.01
"""Below this information, feature_std, or explained fraction of the hidden patches, something is wrong."""


def entropy(probabilities: Tensor) -> Tensor:
    """Of distributions (..., K), in nats: (...). 0 is sure of one prototype, ln K knows nothing."""
    return -torch.xlogy(probabilities, probabilities).sum(dim=-1)


def information(probabilities: Tensor, world: World = SINGLE_PROCESS) -> Tensor:
    """How much distributions (n, K) tell images apart, in nats: the entropy of their mean less their mean entropy.

    0 when all images get the same one, be it one prototype or all equally: in both ways of collapsing. world: the
    processes that have rows.
    """
    return entropy(world.mean_rows(probabilities)) - world.mean_rows(entropy(probabilities)[:, None])[0]


def feature_std(features: Tensor, world: World = SINGLE_PROCESS) -> Tensor:
    """The standard deviation of the features' directions (n, D) times sqrt(D): 1 if spread evenly, 0 if all alike.

    world: the processes that have rows.
    """
    direction = F.normalize(features.float(), dim=1)
    if world.size == 1:
        return direction.std(dim=0, correction=0).mean() * math.sqrt(features.shape[1])
    variance = world.mean_rows((direction - world.mean_rows(direction)).square())
    return variance.sqrt().mean() * math.sqrt(features.shape[1])


def explained(loss: Tensor, prior: Tensor) -> Tensor:
    """The fraction of `prior`, the loss of one answer for all hidden patches, that a loss leaves explained; at least 0.

    The prior depends on the images: the variance of normalised patches is 1 - 1/(P*P*C), or 0 where they are flat.
    """
    found = (1 - loss / prior).clamp(min=0)
    return torch.where(prior > 1e-6, found, torch.zeros_like(found))  # less is rounding: nothing to explain


@dataclass
class Alarm:
    """Reads the records of a training; says once of each sign of collapse that it is there, and what to change."""

    _sentences: dict[str, str] = field(default_factory=dict)
    """Each sign that was ever said to be there, and the sentence about it."""
    _since: dict[str, int] = field(default_factory=dict)
    """Each sign that is there now, and the step at which it was first seen."""
    _recent: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # each metric's steps and values of late
    _step: int = 0
    _fastest: float = 0.0  # the highest learning rate so far: until it is reached, a training has hardly begun

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that was said, in the order of the steps."""
        return tuple(self._sentences.values())

    @property
    def ringing(self) -> tuple[str, ...]:
        return tuple(sentence for sign, sentence in self._sentences.items() if self._lasts(sign))

    def update(self, record: Mapping[str, float]) -> str | None:
        """The sentence to say after a step, if there is one."""
        if "loss" not in record:  # a line about an evaluation
            return None
        self._step = int(record["step"])
        rate = record.get("learning_rate", 0.0)
        rising = rate > self._fastest
        self._fastest = max(rate, self._fastest)
        signs = _signs(self._average(record), warm=not rising)
        self._since = {sign: self._since.get(sign, self._step) for sign in signs}
        for sign, since in self._since.items():
            if self._lasts(sign) and sign not in self._sentences:
                self._sentences[sign] = f"Collapse: {sign}, from step {since} on ({signs[sign]})."
                return self._sentences[sign]
        return None

    def _lasts(self, sign: str) -> bool:
        return sign in self._since and self._step - self._since[sign] + 1 >= ALARM_STEPS

    def _average(self, record: Mapping[str, float]) -> dict[str, float]:
        """The mean of each metric over the last steps, as far as it was measured in them."""
        for name, value in record.items():
            self._recent.setdefault(name, []).append((self._step, value))
        first = self._step - AVERAGED_STEPS + 1
        self._recent = {name: [one for one in some if one[0] >= first] for name, some in self._recent.items()}
        return {name: fmean(value for _, value in some) for name, some in self._recent.items() if some}


def _signs(mean: Mapping[str, float], warm: bool) -> dict[str, str]:
    """What looks collapsed in a record's averages, and what to change; `warm`: the learning rate no longer rises."""
    signs = {}
    slower = "lower optimizer.learning_rate and optimizer.muon_learning_rate"
    if mean.get("feature_std", 1.0) < MIN_STD:
        signs["all images get the same features"] = (
            f"their standard deviation is {mean['feature_std']:.3f} of what it could be; {slower}, or take images "
            "that differ more"
        )
    if warm and mean.get("explained", 1.0) < MIN_EXPLAINED:
        signs["nothing of what is hidden is predicted"] = (
            f"one colour for all would fit as well; {slower}, lower objective.mask, or take images with more to see "
            "in them than noise"
        )
    if mean.get("information", 1.0) >= MIN_INFORMATION:
        return signs
    centred = "centre" in mean  # else its probabilities are balanced in every batch
    sure = f"its entropy is {mean['entropy']:.1%} of ln K"
    balance = "set objective.sinkhorn_iterations=3" if centred else "take a larger batch_size"
    if mean["entropy"] > 0.5:
        signs["the teacher knows nothing of any image"] = f"{sure}; lower objective.teacher_temperature, or {balance}"
    else:
        cure = f"{balance}, lower objective.centre_momentum" if centred else balance
        signs["the teacher says the same of every image"] = f"{sure}; {cure}, or raise objective.teacher_temperature"
    return signs
