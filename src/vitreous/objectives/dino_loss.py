"""The terms of self-distillation, as formulas: DINO's, iBOT's for masked patches, and KoLeo.

Letters: G large views, V views in all (the large ones first), B images, K prototypes, n masked patches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.distributed.world import ALONE, World


def teacher_answers(scores: Tensor, centre: Tensor, temperature: float) -> Tensor:
    """softmax((scores - centre) / temperature): (..., K) and (K,) to distributions (..., K)."""
    return ((scores - centre) / temperature).softmax(dim=-1)


def balanced_answers(scores: Tensor, temperature: float, iterations: int, world: World = ALONE) -> Tensor:
    """The same with every prototype equally often the answer in this batch: (n, K) to distributions (n, K).

    world: the processes whose rows are one batch; n may differ, and be 0.

    Sinkhorn and Knopp's algorithm, as SwAV and DINOv2 have it instead of the centre: in turns, each prototype's shares
    are made to sum to one number, then each image's to 1.
    """
    logs = scores / temperature
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


def distillation_loss(answers: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """The student's cross-entropy with what the teacher said of another view, averaged over pairs and images.

    answers: (G, B, K), the teacher's. scores: (V, B, K), the student's, where view g is the same in both.
    """
    said = (scores / temperature).log_softmax(dim=-1)
    large, views = len(answers), len(scores)
    other = said.sum(dim=0) - said[:large]  # for each large view, the sum over all the others
    return -(answers * other).sum() / (large * (views - 1) * scores.shape[1])


def masked_patch_loss(answers: Tensor, scores: Tensor, temperature: float, weights: Tensor, images: int) -> Tensor:
    """The student's cross-entropy at masked patches with what the teacher, who sees them, says there.

    answers, scores: (n, K). weights: (n,), one over the number of masked patches in the same image, so that each
    image counts alike; `images` are counted with those in which nothing is masked.
    """
    said = (scores / temperature).log_softmax(dim=-1)
    return -((answers * said).sum(dim=-1) * weights).sum() / images


def koleo_loss(features: Tensor, world: World = ALONE) -> Tensor:
    """Minus the mean logarithm of the distance to the nearest other: (B, D); the more evenly spread, the less.

    Distances are between directions (Sablayrolles et al. 2019, as in DINOv2). world: the processes among whose rows the
    nearest is looked for; the mean is over this one's.
    """
    direction = F.normalize(features, dim=1, eps=1e-8)
    every, first = world.all_gather(direction)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):  # in half precision many are as near
        likeness = direction @ every.T
        own = torch.arange(len(direction), device=features.device)
        likeness[own, first + own] = -1
        near = likeness.argmax(dim=1)
    return -(F.pairwise_distance(direction, every[near], eps=1e-8) + 1e-8).log().mean()
