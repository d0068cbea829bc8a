"""The projection head of DINO: from a representation to scores for prototypes."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.objective import Dino
from vitreous.model.initialise import Linear


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
        """LeCun's normal, so that a short training need not first make the scores grow; biases zero."""
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)
            else:
                nn.init.zeros_(parameter)

    def forward(self, y: Tensor, frozen: bool = False) -> Tensor:
        """(n, D) to scores (n, K) between -1 and 1; `frozen`: the prototypes get no gradient."""
        for layer in self.layers[:-1]:
            y = F.gelu(layer(y))
        direction = F.normalize(self.layers[-1](y), dim=1)
        prototypes = self.prototypes.detach() if frozen else self.prototypes
        return F.linear(direction, F.normalize(prototypes, dim=1))
