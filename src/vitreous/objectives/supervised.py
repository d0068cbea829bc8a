"""Learning from labels: cross-entropy, as the paper pre-trains and fine-tunes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.model import grid_of
from vitreous.config.train import Training
from vitreous.data.loader import Batch
from vitreous.model.position import draw_cells
from vitreous.model.vit import ViT


class Supervised(nn.Module):
    """Cross-entropy between the model's scores and the labels, hard or mixed."""

    class_weight: Tensor | None

    def __init__(self, model: ViT, training: Training, class_weight: Tensor | None = None) -> None:
        """`class_weight` (K,) weighs the classes; None for all alike."""
        super().__init__()
        self.model = model
        self.training_config = training
        self.register_buffer("class_weight", class_weight, persistent=False)
        if training.compile:
            model.compile()

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch and its accuracy, when `progress` (0 to 1) of the training is done."""
        scores = self.model(batch.images, keep=self._patches(batch.images, progress))
        loss = F.cross_entropy(
            scores, batch.targets, weight=self.class_weight, label_smoothing=self.training_config.label_smoothing
        )
        truth = batch.targets if batch.targets.ndim == 1 else batch.targets.argmax(dim=1)
        return loss, {"accuracy": (scores.detach().argmax(dim=1) == truth).float().mean().item()}

    def after_step(self, progress: float) -> None:
        """Nothing to do: no teacher follows."""

    def _patches(self, images: Tensor, progress: float) -> Tensor | None:
        """The token schedule: a random choice of patches (B, M) for each picture; None for all."""
        share = self.training_config.keep_share(progress)
        if share == 1.0:
            return None
        height, width = images.shape[2:]
        return draw_cells(len(images), grid_of((height, width), self.model.config.patch), share)


def balance(labels: Tensor, classes: int) -> Tensor:
    """(K,) weights by which every class counts alike, however many pictures (n,) it has; 0 for one that has none."""
    counts = torch.bincount(labels, minlength=classes).float()
    present = counts > 0
    weight = torch.zeros(classes)
    weight[present] = len(labels) / (present.sum() * counts[present])
    return weight
