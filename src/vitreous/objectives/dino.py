"""Learning from one's own average: DINO (Caron et al. 2021), and what DINOv2 adds to it.

Letters: B images, G large views of each, V views in all, C channels, N patches of a large view, D width,
K prototypes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from vitreous.config.objective import Dino
from vitreous.data.batch import Batch
from vitreous.distributed.world import ALONE, World
from vitreous.errors import UserError
from vitreous.model.keyed_random import fold, keyed_uniform
from vitreous.model.network import LeavesPatchesOut, Network, require
from vitreous.model.position import draw_cells
from vitreous.model.vit import ViT
from vitreous.objectives.collapse import entropy, feature_std, information
from vitreous.objectives.dino_head import DinoHead
from vitreous.objectives.dino_loss import (
    balanced_answers,
    distillation_loss,
    koleo_loss,
    masked_patch_loss,
    teacher_answers,
)
from vitreous.objectives.objective import Metrics, Objective, move_average
from vitreous.objectives.setting import Setting

KEEP, MASKS = 2**32, 2**32 + 1
"""Streams of `keyed_uniform` for the patches that the student looks at and for masks; a network's own begin at 0."""


class SelfDistillation(Objective):
    """A student sees many views of an image and learns what a teacher says of its large ones.

    The teacher is the student's moving average and gets no gradient; `model` is the teacher's network, the one to keep.
    """

    watched: ClassVar[str] = "information"  # a collapse lowers the loss too
    centre: Tensor
    patch_centre: Tensor

    def __init__(self, model: Network, settings: Dino, seed: int = 0, world: World | None = None) -> None:
        super().__init__()
        self.settings, self.world = settings, world or World()
        self.student = model
        self.student_head = DinoHead(model.config.features, settings, seed)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.head = copy.deepcopy(self.student_head).requires_grad_(False)
        self.mask_token = nn.Parameter(torch.zeros(_width(model))) if settings.ibot_weight else None
        self.register_buffer("centre", torch.zeros(settings.prototypes))
        self.register_buffer("patch_centre", torch.zeros(settings.prototypes if settings.ibot_weight else 0))
        self._heard: list[Tensor] = []
        self._heard_patches: list[Tensor] = []

    def train(self, mode: bool = True) -> Self:
        """Only the student is ever in training mode."""
        super().train(mode)
        self.model.eval()
        self.head.eval()
        return self

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss of a batch of views, global (B, G, C, H, W) and perhaps local ones, and how a collapse shows."""
        m, views, world = self.settings, batch.views["global"].images.shape[1], self._beside
        large, keys = _in_a_row(batch, "global", first=0)
        mask = self._draw_masks(large, keys) if m.ibot_weight else None
        with torch.no_grad():
            features, patches = self._encode(self.model, large, mask, seen=True)
            scores = self.head(features).float()  # temperatures this low want float32
            answers = self._answers(scores, self.centre, progress)
        frozen = progress < m.freeze_last_layer
        own, own_patches = self._encode(self.student, large, mask, seen=False, keys=keys)
        both = own
        if "local" in batch.views:
            small, small_keys = _in_a_row(batch, "local", first=views)
            both = torch.cat([own, self.student.representation(small, keys=small_keys)])
        said = self.student_head(both, frozen).float().view(-1, len(batch.index), m.prototypes)  # (V, B, K)
        loss = distillation_loss(answers.view(views, -1, m.prototypes), said, m.student_temperature)
        if self.training and not m.sinkhorn_iterations:
            self._heard.append(scores)
        if m.koleo_weight:
            loss = (
                loss
                + m.koleo_weight * torch.stack([koleo_loss(view, world) for view in own.float().chunk(views)]).mean()
            )
        if mask is not None and patches is not None and own_patches is not None:
            loss = loss + m.ibot_weight * self._patch_loss(patches, own_patches, mask, progress, frozen)
        return loss, {
            "entropy": entropy(answers).mean() / math.log(m.prototypes),
            "information": information(answers, world) / math.log(m.prototypes),
            "feature_std": feature_std(features, world),
            **({} if m.sinkhorn_iterations else {"centre": self.centre.norm()}),
        }

    def is_better(self, new: dict[str, float], best: dict[str, float], history: Sequence[dict[str, float]]) -> bool:
        """The more the answers tell apart, the better."""
        return new[self.watched] > best[self.watched]

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Move the teacher a little towards the student, and the centre towards what the teacher said."""
        rate = 1 - self.momentum(progress)
        move_average(self.model, self.student, rate)
        move_average(self.head, self.student_head, rate)
        for centre, heard in ((self.centre, self._heard), (self.patch_centre, self._heard_patches)):
            if heard:
                scores = torch.cat(heard)  # of masked patches perhaps none, and elsewhere more than here
                total = self.world.all_reduce(scores.sum(dim=0))
                count = self.world.all_reduce(scores.new_tensor(float(len(scores))))
                if count > 0:
                    centre.lerp_(total / count, 1 - self.settings.centre_momentum)
                heard.clear()

    def momentum(self, progress: float) -> float:
        """How much of the teacher stays: from the setting to 1, along half a cosine."""
        return 1 - (1 - self.settings.momentum) * (1 + math.cos(math.pi * progress)) / 2

    def temperature(self, progress: float) -> float:
        """The teacher's: from the first value to the second in a straight line, then constant."""
        first, second = self.settings.teacher_temperature
        done = 1.0 if self.settings.temperature_warmup == 0 else min(1.0, progress / self.settings.temperature_warmup)
        return first + (second - first) * done

    def _answers(self, scores: Tensor, centre: Tensor, progress: float) -> Tensor:
        """The teacher's answers (n, K) to scores (n, K); centre or Sinkhorn keeps them from being all the same."""
        temperature, iterations = self.temperature(progress), self.settings.sinkhorn_iterations
        if iterations:
            return balanced_answers(scores, temperature, iterations, self._beside)
        return teacher_answers(scores, centre, temperature)

    @property
    def _beside(self) -> World:
        """The processes whose images are one batch: in training all, but each is evaluated by itself."""
        return self.world if self.training else ALONE

    def _encode(
        self, model: Network, large: Tensor, mask: Tensor | None, *, seen: bool, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Representations (G*B, D) of large views, and with a mask (G*B, N) the tokens of the masked patches (n, D).

        seen: the masked patches are shown all the same, and all patches are looked at: the teacher's way.
        """
        if mask is not None:
            return self._encode_masked(require(model, ViT, "ibot_weight"), large, mask, seen, keys)
        if seen or not self.training or self.settings.keep == 1.0:
            return model.representation(large, keys=keys), None
        assert keys is not None
        patched = require(model, LeavesPatchesOut, "keep")
        height, width = large.shape[2:]
        grid = patched.patch_grid((height, width))
        keep = draw_cells(len(large), grid, self.settings.keep, keyed_uniform(keys, KEEP, math.prod(grid)))
        return patched.representation(large, keep_ids=keep, keys=keys), None

    def _encode_masked(
        self, model: ViT, large: Tensor, mask: Tensor, seen: bool, keys: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        z, layout = model.embed(large, keys=keys)
        if not seen:
            assert self.mask_token is not None
            cells = model.cell_positions(layout.grid)
            blank = self.mask_token if cells is None else self.mask_token + cells
            prefix, patches = z[:, : layout.prefix], z[:, layout.prefix :]
            z = torch.cat([prefix, torch.where(mask[:, :, None], blank, patches)], dim=1)
        tokens = model.encode(z, layout, keys=keys)
        return model.pool(tokens), tokens[:, layout.prefix :][mask]

    def _patch_loss(self, patches: Tensor, own: Tensor, mask: Tensor, progress: float, frozen: bool) -> Tensor:
        """iBOT's term, of the teacher's and the student's tokens (n, D) of masked patches."""
        with torch.no_grad():
            scores = self.head(patches).float()
            answers = self._answers(scores, self.patch_centre, progress)
        if self.training and not self.settings.sinkhorn_iterations:
            self._heard_patches.append(scores)
        weights = (1 / mask.sum(dim=1).clamp(min=1))[:, None].expand_as(mask)[mask]
        said = self.student_head(own, frozen).float()
        return masked_patch_loss(answers, said, self.settings.student_temperature, weights, len(mask))

    def _draw_masks(self, large: Tensor, keys: Tensor) -> Tensor:
        """(G*B, N) bool: in every second view, a random share of the patches, anywhere."""
        low, high = self.settings.ibot_mask
        height, width = large.shape[2:]
        count = math.prod(require(self.student, LeavesPatchesOut, "ibot_weight").patch_grid((height, width)))
        uniform = keyed_uniform(keys, MASKS, 2 + count)
        shares = (low + (high - low) * uniform[:, :1]) * (uniform[:, 1:2] < 0.5)
        return uniform[:, 2:].argsort(dim=1).argsort(dim=1) < (shares * count).round()


def build_dino(network: Network, settings: Dino, setting: Setting) -> SelfDistillation:
    """Any network can learn from its own average; leaving patches out and masks want one of patches."""
    for wanted, name in ((settings.keep < 1, "keep"), (settings.ibot_weight > 0, "ibot_weight")):
        if wanted:
            require(network, LeavesPatchesOut, name)
    return SelfDistillation(network, settings, setting.seed, setting.world)


def _width(model: Network) -> int:
    """The length of a patch token, for a mask token; the head must take both tokens and representations."""
    c = require(model, ViT, "ibot_weight").config
    if c.features != c.width:
        raise UserError(
            f"pool={c.pool!r}: one head scores images and masked patches, but an image would have {c.features} "
            f"numbers and a patch has {c.width}; set pool to 'class' or 'mean', or ibot_weight=0."
        )
    return c.width


def _in_a_row(batch: Batch, name: str, first: int) -> tuple[Tensor, Tensor]:
    """The views of this name, view by view (V*B, C, H, W), and a key for each (V*B,); `first` is the number of one."""
    images = batch.views[name].images.transpose(0, 1)
    keys = torch.cat([fold(batch.keys, first + view) for view in range(len(images))])
    return images.flatten(0, 1), keys
