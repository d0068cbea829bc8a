"""Learning from one's own average: DINO (Caron et al. 2021), and what DINOv2 adds to it.

Letters: B pictures, G large views of each, V views in all, C channels, N patches of a large view, D width,
K prototypes.
"""

from __future__ import annotations

import copy
import math
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.config.model import grid_of
from vitreous.config.pretrain import Dino
from vitreous.data.chance import MIX, uniforms
from vitreous.data.loader import Batch
from vitreous.errors import UserError
from vitreous.model.position import Grid, draw_cells
from vitreous.model.vit import ViT
from vitreous.objectives.collapse import entropy, feature_spread, information
from vitreous.objectives.dino_head import Head
from vitreous.objectives.dino_loss import (
    balanced_answers,
    distillation_loss,
    koleo_loss,
    masked_patch_loss,
    teacher_answers,
)


class SelfDistillation(nn.Module):
    """A student sees many views of a picture and learns what a teacher says of its large ones.

    The teacher is the student's moving average and gets no gradient; `model` is the teacher's network, the one to keep.
    """

    centre: Tensor
    patch_centre: Tensor

    def __init__(self, model: ViT, method: Dino, seed: int = 0) -> None:
        super().__init__()
        if method.masked and model.config.features != model.config.width:
            raise UserError(
                f"pool={model.config.pool!r}: one head scores pictures and masked patches, but a picture would have "
                f"{model.config.features} numbers and a patch has {model.config.width}; set pool to 'class' or 'mean', "
                "or masked=0."
            )
        self.method, self.seed = method, seed
        self.student = model
        self.student_head = Head(model.config.features, method, seed)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.head = copy.deepcopy(self.student_head).requires_grad_(False)
        self.mask_token = nn.Parameter(torch.zeros(model.config.width)) if method.masked else None
        self.register_buffer("centre", torch.zeros(method.prototypes))
        self.register_buffer("patch_centre", torch.zeros(method.prototypes if method.masked else 0))
        self._heard: list[Tensor] = []
        self._heard_patches: list[Tensor] = []

    def train(self, mode: bool = True) -> Self:
        """Only the student is ever in training mode."""
        super().train(mode)
        self.model.eval()
        self.head.eval()
        return self

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch of views, and the figures by which a collapse shows.

        images: (B, G, C, H, W), small: (B, V - G, C, h, w).
        """
        m, views = self.method, batch.images.shape[1]
        large = batch.images.transpose(0, 1).flatten(0, 1)  # (G*B, C, H, W), view by view
        mask = self._draw_masks(large, batch.index) if m.masked else None
        with torch.no_grad():
            features, patches = self._encode(self.model, large, mask, seen=True)
            scores = self.head(features).float()  # temperatures this low want float32
            answers = self._answers(scores, self.centre, progress)
        frozen = progress < m.frozen
        own, own_patches = self._encode(self.student, large, mask, seen=False)
        small = batch.small
        both = own if small is None or not small.shape[1] else torch.cat([own, self._encode_small(small)])
        said = self.student_head(both, frozen).float().view(-1, len(batch.images), m.prototypes)  # (V, B, K)
        loss = distillation_loss(answers.view(views, -1, m.prototypes), said, m.student_temperature)
        if self.training and not m.balance:
            self._heard.append(scores)
        if m.koleo:
            loss = loss + m.koleo * torch.stack([koleo_loss(view) for view in own.chunk(views)]).mean()
        if mask is not None and patches is not None and own_patches is not None and mask.any():
            loss = loss + m.masked * self._patch_loss(patches, own_patches, mask, progress, frozen)
        return loss, {
            "entropy": entropy(answers).mean().item() / math.log(m.prototypes),
            "information": information(answers).item() / math.log(m.prototypes),
            "spread": feature_spread(features),
            **({} if m.balance else {"centre": self.centre.norm().item()}),
        }

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Move the teacher a little towards the student, and the centre towards what the teacher said."""
        rate = 1 - self.momentum(progress)
        for teacher, student in ((self.model, self.student), (self.head, self.student_head)):
            for average, now in zip(teacher.parameters(), student.parameters(), strict=True):
                average.lerp_(now, rate)
        for centre, heard in ((self.centre, self._heard), (self.patch_centre, self._heard_patches)):
            if heard:
                centre.lerp_(torch.cat(heard).mean(dim=0), 1 - self.method.centre_momentum)
                heard.clear()

    def momentum(self, progress: float) -> float:
        """How much of the teacher stays: from the method's value to 1, along half a cosine."""
        return 1 - (1 - self.method.momentum) * (1 + math.cos(math.pi * progress)) / 2

    def temperature(self, progress: float) -> float:
        """The teacher's: from the first value to the second in a straight line, then constant."""
        first, second = self.method.teacher_temperature
        done = 1.0 if self.method.temperature_warmup == 0 else min(1.0, progress / self.method.temperature_warmup)
        return first + (second - first) * done

    def _answers(self, scores: Tensor, centre: Tensor, progress: float) -> Tensor:
        """The teacher's answers (n, K) to scores (n, K); the centre or balance keeps them from being all the same."""
        if self.method.balance:
            return balanced_answers(scores, self.temperature(progress), self.method.balance)
        return teacher_answers(scores, centre, self.temperature(progress))

    def _encode_small(self, small: Tensor) -> Tensor:
        """(B, V - G, C, h, w) to ((V - G)*B, D): the student's view of the small crops, all in one batch."""
        return self.student.representation(small.transpose(0, 1).flatten(0, 1))

    def _encode(self, model: ViT, large: Tensor, mask: Tensor | None, seen: bool) -> tuple[Tensor, Tensor | None]:
        """Representations (G*B, D) of large views, and with a mask (G*B, N) the tokens of the masked patches (n, D).

        seen: the masked patches are shown all the same, and all patches are looked at: the teacher's way.
        """
        if mask is None:
            return model.representation(large, keep=None if seen else self._draw_patches(large)), None
        z, layout = model.embed(large)
        if not seen:
            assert self.mask_token is not None
            cells = model.cell_positions(layout.grid)
            blank = self.mask_token if cells is None else self.mask_token + cells
            prefix, patches = z[:, : layout.prefix], z[:, layout.prefix :]
            z = torch.cat([prefix, torch.where(mask[:, :, None], blank, patches)], dim=1)
        tokens = model.encode(z, layout)
        return model.pool(tokens), tokens[:, layout.prefix :][mask]

    def _patch_loss(self, patches: Tensor, own: Tensor, mask: Tensor, progress: float, frozen: bool) -> Tensor:
        """iBOT's term, of the teacher's and the student's tokens (n, D) of masked patches."""
        with torch.no_grad():
            scores = self.head(patches).float()
            answers = self._answers(scores, self.patch_centre, progress)
        if self.training and not self.method.balance:
            self._heard_patches.append(scores)
        weights = (1 / mask.sum(dim=1).clamp(min=1))[:, None].expand_as(mask)[mask]
        said = self.student_head(own, frozen)
        return masked_patch_loss(answers, said, self.method.student_temperature, weights, len(mask))

    def _draw_patches(self, large: Tensor) -> Tensor | None:
        """(G*B, M) patches that the student looks at; None for all."""
        if self.method.keep == 1.0 or not self.training:
            return None
        return draw_cells(len(large), self._grid(large), self.method.keep)

    def _draw_masks(self, large: Tensor, index: Tensor) -> Tensor:
        """(G*B, N) bool: in every second view, a random share of the patches, anywhere.

        In evaluation the masks follow from the seed and the pictures, index (B,).
        """
        low, high = self.method.masked_share
        count = math.prod(self._grid(large))
        if self.training:
            chance = torch.rand(len(large), 2 + count)
        else:
            views = len(large) // len(index)
            draws = uniforms(self.seed, 0, index.numpy().astype(np.int64), views * (2 + count), view=MIX)
            chance = torch.from_numpy(draws).view(len(index), views, -1).transpose(0, 1).flatten(0, 1)
        shares = (low + (high - low) * chance[:, :1]) * (chance[:, 1:2] < 0.5)
        return chance[:, 2:].argsort(dim=1).argsort(dim=1) < (shares * count).round()

    def _grid(self, large: Tensor) -> Grid:
        height, width = large.shape[2:]
        return grid_of((height, width), self.student.config.patch)
