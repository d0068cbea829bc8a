"""What frozen features are worth with nothing trained on them: the vote of the nearest known images.

As in DINO: cosine similarity s, each of the k nearest votes for its class with weight exp(s / T), T = 0.07.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError

NEIGHBOURS = (10, 20, 100, 200)  # the k that DINO reports
TEMPERATURE = 0.07
CHUNK = 1024  # images asked at once: their similarities to all known ones are in memory together


def vote_neighbours(
    known: Tensor,
    labels: Tensor,
    asked: Tensor,
    classes: int,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> dict[int, Tensor]:
    """For each k the votes (n, K) that the asked images (n, D) get from the known ones (m, D) with labels (m,)."""
    most = max(neighbours, default=0)
    if not neighbours or min(neighbours) < 1 or most > len(known):
        raise UserError(f"neighbours={tuple(neighbours)}: give numbers from 1 to the {len(known)} known images.")
    known = F.normalize(known.float())
    votes: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    for some in torch.split(asked, CHUNK):
        similarity, nearest = (F.normalize(some.float()) @ known.T).topk(most)  # (c, most) both
        weights = (similarity / temperature).exp()
        of_class = labels[nearest]
        for k in neighbours:
            empty = torch.zeros(len(some), classes)
            votes[k].append(empty.scatter_add_(1, of_class[:, :k], weights[:, :k]))
    return {k: torch.cat(parts) for k, parts in votes.items()}
