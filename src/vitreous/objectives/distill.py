"""Distillation (DeiT, Touvron et al. 2021): a student learns from labels, and from what a teacher says.

Letters: B images, K classes. z are scores, psi the softmax, lambda the weight of the teacher, tau the temperature:
hard: (1 - lambda) CE(psi(z_s), y) + lambda CE(psi(z_s), y_t) with y_t = argmax z_t, the paper's equation 3 at 1/2
soft: (1 - lambda) CE(psi(z_s), y) + lambda tau^2 KL(psi(z_s / tau), psi(z_t / tau)), its equation 2
With a distillation token, the first z_s are of the class token and the second of that token.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import objective as config
from vitreous.data.batch import Batch
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.model.predictions import class_probabilities, is_right, predicted_class
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT
from vitreous.objectives.answers import Answers, Believe
from vitreous.objectives.objective import Metrics
from vitreous.objectives.setting import Setting
from vitreous.objectives.supervised import Classification, accuracy, class_weights


class Distillation(Classification):
    """Labels and a teacher's answers; evaluated by labels alone, as `Classification` is."""

    settings: config.Distill

    def __init__(
        self, model: Network, settings: config.Distill, answers: Answers, class_weight: Tensor | None = None
    ) -> None:
        """`answers` asks the teacher; `class_weight` (K,) weighs images by their classes."""
        super().__init__(model, settings, class_weight)
        self.answers = answers
        self.believe: Believe = (
            chosen if settings.targets == "hard" else partial(tempered, temperature=settings.temperature)
        )

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss of a batch, its accuracy, and how often student and teacher agree."""
        of_labels, of_teacher = self._both_scores(batch, progress)
        believed = self.answers(batch, self.believe)
        s = self.settings
        each = (
            hard_loss(of_teacher, believed) if s.targets == "hard" else soft_loss(of_teacher, believed, s.temperature)
        )
        loss = (1 - s.weight) * self._label_loss(of_labels, batch) + s.weight * self._mean(each, batch)
        agreement = is_right(of_teacher.detach(), predicted_class(believed)).float().mean()
        return loss, {"accuracy": accuracy((of_labels + of_teacher) / 2, batch), "teacher_agreement": agreement}

    def _both_scores(self, batch: Batch, progress: float) -> tuple[Tensor, Tensor]:
        """(B, K) each: the scores that learn the labels, and those that learn the teacher's answers."""
        if not isinstance(self.model, ViT) or self.model.head_dist is None:
            scores = self._scores(batch, progress)
            return scores, scores
        trace = Trace(layers=())
        self._scores(batch, progress, trace=trace)
        assert trace.pre_logits is not None
        return self.model.head(trace.pre_logits), self.model.head_dist(trace.pre_logits_dist)


def chosen(scores: Tensor) -> Tensor:
    """(B, K) to (B, K): 1 for the class with the highest score, 0 for the others."""
    return F.one_hot(predicted_class(scores), scores.shape[1]).to(scores.dtype)


def tempered(scores: Tensor, temperature: float) -> Tensor:
    """psi(z / tau): (B, K) to (B, K)."""
    return class_probabilities(scores / temperature)


def hard_loss(scores: Tensor, believed: Tensor) -> Tensor:
    """CE(psi(z_s), y_t), (B,), of what the teacher chose (B, K), perhaps of two mixed images."""
    return F.cross_entropy(scores.to(believed.dtype), believed, reduction="none")


def soft_loss(scores: Tensor, believed: Tensor, temperature: float) -> Tensor:
    """tau^2 KL(psi(z_s / tau), psi(z_t / tau)), (B,): the sum of p_t (log p_t - log p_s), as Hinton et al. have it.

    The factor keeps gradients as large as they are at temperature 1. believed: (B, K) at this temperature.
    """
    logs = (scores.to(believed.dtype) / temperature).log_softmax(dim=1)
    return temperature**2 * (torch.xlogy(believed, believed) - believed * logs).sum(dim=1)


def build_distill(network: Network, settings: config.Distill, setting: Setting) -> Distillation:
    """With the teacher of the setting."""
    if setting.answers is None:
        raise UserError("objective distill: there is no teacher to learn from; name one with distill.")
    return Distillation(network, settings, setting.answers, class_weights(network, settings, setting))
