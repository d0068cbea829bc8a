"""A new objective: each patch token should know in which quarter of the image its patch lies."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from vitreous.config.data import Augment
from vitreous.config.objective import ObjectiveConfig
from vitreous.config.train import Optimizer, Training
from vitreous.model.network import require
from vitreous.model.vit import ViT
from vitreous.objectives.build import Kind
from vitreous.objectives.objective import Objective


@dataclass(frozen=True)
class Quadrants(ObjectiveConfig):
    kind: ClassVar[str] = "quadrants"
    smoothing: float = 0.0


class QuadrantObjective(Objective):
    def __init__(self, model, settings, setting):
        super().__init__()
        self.model, self.settings = require(model, ViT, "quadrants"), settings
        self.head = nn.Linear(model.config.width, 4)
        nn.init.zeros_(self.head.weight)  # so that nothing depends on torch's global generator
        nn.init.zeros_(self.head.bias)

    def forward(self, batch, progress):
        z, layout = self.model.embed(batch.images, keys=batch.keys)
        tokens = self.model.encode(z, layout, keys=batch.keys)[:, layout.prefix :]
        scores, targets = self.head(tokens).flatten(0, 1), patch_targets(batch, layout.grid).flatten()
        loss = F.cross_entropy(scores, targets, label_smoothing=self.settings.smoothing)
        return loss, {"patch_accuracy": (scores.argmax(dim=1) == targets).float().mean()}


def patch_targets(batch, grid):
    """(B, N): 0 to 3 for the upper left, upper right, lower left and lower right quarter, by the patch's centre."""
    view = batch.views["image"]
    top, left, height, width = view.box[:, 0].T[..., None]  # each (B, 1), as shares of the image
    y, x = ((torch.arange(side) + 0.5) / side for side in grid)
    x = torch.where(view.flipped, 1 - x, x)  # (B, columns)
    lower, right = (top + height * y >= 0.5).long(), (left + width * x >= 0.5).long()
    return (2 * lower[:, :, None] + right[:, None, :]).flatten(1)


def recipe(stats):
    model, preprocess = stats.model_and_preprocess("F/4@24", position="sincos-2d", classes=0)
    augment, optimizer = Augment(crop_scale=(0.3, 1.0)), Optimizer(learning_rate=3e-3)
    return Training(model, preprocess, Quadrants(), augment, optimizer, batch_size=16, evaluations=2)


KIND = Kind(Quadrants, QuadrantObjective)
