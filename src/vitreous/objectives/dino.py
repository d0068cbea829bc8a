"""Learning from one's own average: DINO (Caron et al. 2021), and what DINOv2 adds to it.

Letters: B images, G large views of each, V views in all (the large ones first), C channels, N patches of a large view,
n masked patches, D width, K prototypes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.objective import Dino
from vitreous.data.batch import Batch
from vitreous.distributed.world import SINGLE_PROCESS, World
from vitreous.errors import UserError
from vitreous.model.initialise import Linear
from vitreous.model.keyed_random import fold, keyed_uniform
from vitreous.model.network import LeavesPatchesOut, Network, require
from vitreous.model.position import draw_cells
from vitreous.model.vit import ViT
from vitreous.objectives.collapse import entropy, feature_std, information
from vitreous.objectives.objective import Metrics, Objective, Setting, move_average

KEEP_STREAM, MASK_STREAM = 2**32, 2**32 + 1
"""Streams of `keyed_uniform`, for the patches that the student looks at and for masks; a network's own begin at 0."""


class SelfDistillation(Objective):
    """A student sees many views of an image and learns what a teacher predicts for its large ones.

    The teacher is the student's moving average and gets no gradient; `model` is the teacher's network, the one to keep.
    """

    watched: ClassVar[str] = "information"  # a collapse lowers the loss too
    centre: Tensor
    patch_centre: Tensor

    def __init__(self, model: Network, settings: Dino, setting: Setting | None = None) -> None:
        super().__init__()
        for needed, name in ((settings.keep < 1, "keep"), (settings.ibot_weight > 0, "ibot_weight")):
            if needed:
                require(model, LeavesPatchesOut, name)
        setting = setting or Setting()
        self.settings, self.world = settings, setting.world
        self.student = model
        self.student_head = DinoHead(model.config.features, settings, setting.seed)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.head = copy.deepcopy(self.student_head).requires_grad_(False)
        self.mask_token = nn.Parameter(torch.zeros(_width(model))) if settings.ibot_weight else None
        self.register_buffer("centre", torch.zeros(settings.prototypes))
        self.register_buffer("patch_centre", torch.zeros(settings.prototypes if settings.ibot_weight else 0))
        self._logits: list[Tensor] = []
        self._patch_logits: list[Tensor] = []

    def train(self, mode: bool = True) -> Self:
        """Only the student is ever in training mode."""
        super().train(mode)
        self.model.eval()
        self.head.eval()
        return self

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss of a batch of views, global (B, G, C, H, W) and perhaps local ones, and how a collapse shows."""
        m, views, world = self.settings, batch.views["global"].images.shape[1], self._batch_world
        large, keys = _in_a_row(batch, "global", start=0)
        mask = self._draw_masks(large, keys) if m.ibot_weight else None
        with torch.no_grad():
            features, patches = self._encode(self.model, large, mask, seen=True)
            logits = self.head(features)
            targets = self._targets(logits, self.centre, progress)
        frozen = progress < m.freeze_last_layer
        own, own_patches = self._encode(self.student, large, mask, seen=False, keys=keys)
        both = own
        if "local" in batch.views:
            small, small_keys = _in_a_row(batch, "local", start=views)
            both = torch.cat([own, self.student.representation(small, keys=small_keys)])
        student_logits = self.student_head(both, frozen).view(-1, len(batch.index), m.prototypes)  # (V, B, K)
        loss = distillation_loss(targets.view(views, -1, m.prototypes), student_logits, m.student_temperature)
        if self.training and not m.sinkhorn_iterations:
            self._logits.append(logits)
        if m.koleo_weight:  # the sum over views, as DINOv2's code has it
            loss = loss + m.koleo_weight * torch.stack([koleo_loss(x, world) for x in own.float().chunk(views)]).sum()
        if mask is not None and patches is not None and own_patches is not None:
            loss = loss + m.ibot_weight * self._patch_loss(patches, own_patches, mask, progress, frozen)
        return loss, {
            "entropy": entropy(targets).mean() / math.log(m.prototypes),
            "information": information(targets, world) / math.log(m.prototypes),
            "feature_std": feature_std(features, world),
            **({} if m.sinkhorn_iterations else {"centre": self.centre.norm()}),
        }

    def is_better(self, new: dict[str, float], best: dict[str, float], history: Sequence[dict[str, float]]) -> bool:
        """The more the targets tell images apart, the better."""
        return new[self.watched] > best[self.watched]

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Move the teacher a little towards the student, and the centre towards the teacher's logits."""
        rate = 1 - self.momentum(progress)
        move_average(self.model, self.student, rate)
        move_average(self.head, self.student_head, rate)
        for centre, seen in ((self.centre, self._logits), (self.patch_centre, self._patch_logits)):
            if seen:
                mean = self.world.mean_rows(torch.cat(seen))
                # of masked patches there may be none
                centre.lerp_(torch.where(mean.isnan(), centre, mean), 1 - self.settings.centre_momentum)
                seen.clear()

    def momentum(self, progress: float) -> float:
        """How much of the teacher stays: from the setting to 1, along half a cosine."""
        return 1 - (1 - self.settings.momentum) * (1 + math.cos(math.pi * progress)) / 2

    def temperature(self, progress: float) -> float:
        """The teacher's: from the first value to the second in a straight line, then constant."""
        first, second = self.settings.teacher_temperature
        done = 1.0 if self.settings.temperature_warmup == 0 else min(1.0, progress / self.settings.temperature_warmup)
        return first + (second - first) * done

    def _targets(self, logits: Tensor, centre: Tensor, progress: float) -> Tensor:
        """The teacher's probabilities (n, K); centre or Sinkhorn keeps them from being all the same."""
        temperature, iterations = self.temperature(progress), self.settings.sinkhorn_iterations
        if iterations:
            return sinkhorn_probabilities(logits, temperature, iterations, self._batch_world)
        return teacher_probabilities(logits, centre, temperature)

    @property
    def _batch_world(self) -> World:
        """The processes whose images are one batch: in training all, but each is evaluated by itself."""
        return self.world if self.training else SINGLE_PROCESS

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
        keep_ids = draw_cells(len(large), grid, self.settings.keep, keyed_uniform(keys, KEEP_STREAM, math.prod(grid)))
        return patched.representation(large, keep_ids=keep_ids, keys=keys), None

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
            logits = self.head(patches)
            targets = self._targets(logits, self.patch_centre, progress)
        if self.training and not self.settings.sinkhorn_iterations:
            self._patch_logits.append(logits)
        weights = (1 / mask.sum(dim=1).clamp(min=1))[:, None].expand_as(mask)[mask]
        student_logits = self.student_head(own, frozen)
        return masked_patch_loss(targets, student_logits, self.settings.student_temperature, weights, len(mask))

    def _draw_masks(self, large: Tensor, keys: Tensor) -> Tensor:
        """(G*B, N) bool: in every second view, a random fraction of the patches, anywhere."""
        low, high = self.settings.ibot_mask
        height, width = large.shape[2:]
        count = math.prod(require(self.student, LeavesPatchesOut, "ibot_weight").patch_grid((height, width)))
        uniform = keyed_uniform(keys, MASK_STREAM, 2 + count)
        fractions = (low + (high - low) * uniform[:, :1]) * (uniform[:, 1:2] < 0.5)
        ranks = uniform[:, 2:].argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        return ranks < (fractions * count).round()


def _width(model: Network) -> int:
    """The length of a patch token, for a mask token; the head must take both tokens and representations."""
    c = require(model, ViT, "ibot_weight").config
    if c.features != c.width:
        raise UserError(
            f"pool={c.pool!r}: one head classifies images and masked patches, but an image would have {c.features} "
            f"numbers and a patch has {c.width}; set pool to 'class' or 'mean', or ibot_weight=0."
        )
    return c.width


def _in_a_row(batch: Batch, name: str, start: int) -> tuple[Tensor, Tensor]:
    """The views of this name, view by view (V*B, C, H, W), and a key for each (V*B,); `start` is the number of one."""
    images = batch.views[name].images.transpose(0, 1)
    keys = torch.cat([fold(batch.keys, start + view) for view in range(len(images))])
    return images.flatten(0, 1), keys


class DinoHead(nn.Module):
    """Three layers with GELU between, a vector of length one, and its cosine with each of K prototypes.

    The last layer is weight-normalised with all lengths fixed at 1: prototypes have a direction only.
    """

    def __init__(self, width: int, settings: Dino, seed: int) -> None:
        super().__init__()
        sizes = (width, settings.hidden, settings.hidden, settings.bottleneck)
        self.layers = nn.ModuleList(Linear(a, b) for a, b in pairwise(sizes))
        self.prototypes = nn.Parameter(torch.empty(settings.prototypes, settings.bottleneck))
        self._initialise(torch.Generator().manual_seed(seed + 2))  # not the encoder's numbers once more

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """LeCun's normal, so that a short training need not first make the logits grow; biases zero."""
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)
            else:
                nn.init.zeros_(parameter)

    def forward(self, y: Tensor, frozen: bool = False) -> Tensor:
        """(n, D) to logits (n, K) between -1 and 1; `frozen`: the prototypes get no gradient."""
        for layer in self.layers[:-1]:
            y = F.gelu(layer(y))
        y = self.layers[-1](y)
        prototypes = self.prototypes.detach() if frozen else self.prototypes
        with torch.autocast(y.device.type, enabled=False):  # temperatures this low want more than bfloat16's 8 bits
            return F.linear(F.normalize(y.to(prototypes.dtype), dim=1), F.normalize(prototypes, dim=1)).float()


def teacher_probabilities(logits: Tensor, centre: Tensor, temperature: float) -> Tensor:
    """softmax((logits - centre) / temperature): (..., K) and (K,) to distributions (..., K)."""
    return ((logits - centre) / temperature).softmax(dim=-1)


def sinkhorn_probabilities(
    logits: Tensor, temperature: float, iterations: int, world: World = SINGLE_PROCESS
) -> Tensor:
    """The same with every prototype equally frequent in this batch: (n, K) to distributions (n, K).

    world: the processes whose rows are one batch; n may differ, and be 0.

    Sinkhorn and Knopp's algorithm, as SwAV and DINOv2 have it instead of the centre: in turns, each prototype's
    probabilities are made to sum to one number, then each image's to 1.
    """
    logs = logits / temperature
    for _ in range(iterations):
        logs = _column_log_softmax(logs, world)
        logs = logs.log_softmax(dim=1)
    return logs.exp()


def _column_log_softmax(logs: Tensor, world: World) -> Tensor:
    """(n, K), such that exp sums to 1 in each column over the rows of all processes."""
    if world.size == 1:
        return logs.log_softmax(dim=0)
    floor = logs.new_full((1, logs.shape[1]), torch.finfo(logs.dtype).min)  # a process may have no rows
    largest = world.all_reduce_max(torch.cat([floor, logs]).amax(dim=0))
    return logs - largest - world.all_reduce((logs - largest).exp().sum(dim=0)).log()


def distillation_loss(targets: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """The student's cross-entropy with the teacher's probabilities of another view, averaged over pairs and images.

    targets: (G, B, K), the teacher's. logits: (V, B, K), the student's, where view g is the same in both.
    """
    log_probabilities = (logits / temperature).log_softmax(dim=-1)
    large, views = len(targets), len(logits)
    other = log_probabilities.sum(dim=0) - log_probabilities[:large]  # for each large view, the sum over all the others
    return -(targets * other).sum() / (large * (views - 1) * logits.shape[1])


def masked_patch_loss(targets: Tensor, logits: Tensor, temperature: float, weights: Tensor, images: int) -> Tensor:
    """The student's cross-entropy at masked patches with the probabilities of the teacher, who sees them.

    targets, logits: (n, K). weights: (n,), one over the number of masked patches in the same image, so that each
    image counts alike; `images` are counted with those in which nothing is masked.
    """
    log_probabilities = (logits / temperature).log_softmax(dim=-1)
    return -((targets * log_probabilities).sum(dim=-1) * weights).sum() / images


def koleo_loss(features: Tensor, world: World = SINGLE_PROCESS) -> Tensor:
    """Minus the mean logarithm of the distance to the nearest other: (B, D); the more evenly spread, the less.

    Distances are between directions (Sablayrolles et al. 2019, as in DINOv2). world: the processes among whose rows the
    nearest is looked for; the mean is over this one's.
    """
    direction = F.normalize(features, dim=1, eps=1e-8)
    every, start = world.all_gather_with_grad(direction)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):  # in half precision many are as near
        cosine_similarity = direction @ every.T
        own = torch.arange(len(direction), device=features.device)
        cosine_similarity[own, start + own] = -1
        near = cosine_similarity.argmax(dim=1)
    return -(F.pairwise_distance(direction, every[near], eps=1e-8) + 1e-8).log().mean()
