"""Distillation (DeiT, Touvron et al. 2021): a student learns from labels, and from what a teacher predicts.

Letters: B images of a batch, n of the source, C channels, H x W pixels, K classes. z are logits, psi the softmax,
lambda the weight of the teacher, tau the temperature:
hard: (1 - lambda) CE(psi(z_s), y) + lambda CE(psi(z_s), y_t) with y_t = argmax z_t, the paper's equation 3 at 1/2
soft: (1 - lambda) CE(psi(z_s), y) + lambda tau^2 KL(psi(z_s / tau), psi(z_t / tau)), its equation 2
With a distillation token, the first z_s are of the class token and the second of that token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import objective as config
from vitreous.config.data import Preprocess
from vitreous.data.augment import resize
from vitreous.data.augment_ops import LUMA, luma
from vitreous.data.batch import Batch
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.model.predictions import class_probabilities, is_right, predicted_class
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT
from vitreous.objectives.objective import Metrics, Setting, TeacherTargets
from vitreous.objectives.supervised import Classification, accuracy


class Distillation(Classification):
    """Labels and a teacher's predictions; evaluated by labels alone, as `Classification` is."""

    settings: config.Distill

    def __init__(self, model: Network, settings: config.Distill, setting: Setting) -> None:
        super().__init__(model, settings, setting)
        if setting.teacher_targets is None:
            raise UserError("objective distill: there is no teacher to learn from; name one with distill.")
        self.teacher_targets = setting.teacher_targets

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss of a batch, its accuracy, and how often student and teacher agree."""
        s = self.settings
        label_logits, distill_logits = self._both_logits(batch, progress)
        if s.targets == "hard":
            targets = self.teacher_targets(batch, hard_targets)
            each = hard_loss(distill_logits, targets)
        else:
            targets = self.teacher_targets(batch, partial(soft_targets, temperature=s.temperature))
            each = soft_loss(distill_logits, targets, s.temperature)
        loss = (1 - s.weight) * self._label_loss(label_logits, batch) + s.weight * self._mean(each, batch)
        agreement = is_right(distill_logits.detach(), predicted_class(targets)).float().mean()
        return loss, {"accuracy": accuracy((label_logits + distill_logits) / 2, batch), "teacher_agreement": agreement}

    def _both_logits(self, batch: Batch, progress: float) -> tuple[Tensor, Tensor]:
        """(B, K) each: the logits that learn the labels, and those that learn the teacher's predictions."""
        if not isinstance(self.model, ViT) or self.model.head_dist is None:
            logits = self._logits(batch, progress)
            return logits, logits
        trace = Trace(layers=())
        self._logits(batch, progress, trace=trace)
        assert trace.pre_logits is not None
        return self.model.head(trace.pre_logits), self.model.head_dist(trace.pre_logits_dist)


def hard_targets(logits: Tensor) -> Tensor:
    """(B, K) to (B, K): 1 for the predicted class, 0 for the others."""
    return F.one_hot(predicted_class(logits), logits.shape[1]).to(logits.dtype)


def soft_targets(logits: Tensor, temperature: float) -> Tensor:
    """psi(z / tau): (B, K) to (B, K)."""
    return class_probabilities(logits / temperature)


def hard_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """CE(psi(z_s), y_t), (B,), of what the teacher chose (B, K), perhaps of two mixed images."""
    return F.cross_entropy(logits.to(targets.dtype), targets, reduction="none")


def soft_loss(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """tau^2 KL(psi(z_s / tau), psi(z_t / tau)), (B,): the sum of p_t (log p_t - log p_s), as Hinton et al. have it.

    The factor keeps gradients as large as they are at temperature 1. targets: (B, K) at this temperature.
    """
    logs = (logits.to(targets.dtype) / temperature).log_softmax(dim=1)
    return temperature**2 * (torch.xlogy(targets, targets) - targets * logs).sum(dim=1)


def view_targets(logits: Callable[[Tensor], Tensor], own: Preprocess, students: Preprocess) -> TeacherTargets:
    """The teacher looks at the batch's images as the student does, augmented and mixed, but prepared in its own way.

    logits: (B, C, H, W) normalised by `own` to (B, K). students: how the batch's images were normalised.
    """

    @torch.no_grad()
    def targets(batch: Batch, to_targets: Callable[[Tensor], Tensor]) -> Tensor:
        return to_targets(logits(renormalise(batch.images, students, own)).float())

    return targets


def image_targets(logits: Tensor) -> TeacherTargets:
    """The teacher has looked at every image once; for two that are mixed, its targets are mixed by the same lambda.

    logits: (n, K), one row for each image of the source that batches come from.
    """

    def targets(batch: Batch, to_targets: Callable[[Tensor], Tensor]) -> Tensor:
        found = to_targets(logits[batch.index])
        if batch.partner is None or batch.lam is None:
            return found
        return torch.lerp(to_targets(logits[batch.partner]), found, batch.lam[:, None])

    return targets


def renormalise(images: Tensor, given: Preprocess, target: Preprocess) -> Tensor:
    """Images (B, C, H, W) normalised in one way as another has them: its colours, size, mean and std.

    The whole image is resized, and nothing is cut off: whoever made the view has chosen what is on it.
    """
    same_colours = (given.mean, given.std) == (target.mean, target.std)
    if same_colours and images.shape[2:] == target.size:
        return images  # to the bit
    mean, std = _columns(given, images)
    pixels = images * std + mean  # from 0 to 1
    if given.channels != target.channels:
        pixels = _recoloured(pixels, target.channels)
    if pixels.shape[2:] != target.size:
        pixels = resize(pixels, target.size, target.interpolation).clamp_(0, 1)
    mean, std = _columns(target, images)
    return (pixels - mean) / std


def _columns(preprocess: Preprocess, like: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(values, dtype=like.dtype) for values in (preprocess.mean, preprocess.std))
    return mean[:, None, None].to(like.device), std[:, None, None].to(like.device)


def _recoloured(pixels: Tensor, channels: int) -> Tensor:
    """Grey images in as many equal channels, or colour ones in grey."""
    if channels == 1 and pixels.shape[1] == len(LUMA):
        return luma(pixels)
    return pixels.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
