"""Learning by telling colours: masked patch prediction, the paper's own self-supervision (appendix B.1.2).

Letters: B images, C channels, P patch side, N patches, M corrupted ones, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.data import Preprocess
from vitreous.config.objective import MaskedPatch
from vitreous.data.batch import Batch
from vitreous.errors import UserError
from vitreous.model.initialise import Linear
from vitreous.model.keyed_random import keyed_uniform
from vitreous.model.network import LeavesPatchesOut, Network, require
from vitreous.model.position import take_cells
from vitreous.model.predictions import is_right
from vitreous.model.vit import ViT
from vitreous.objectives.objective import Metrics, Objective
from vitreous.objectives.setting import Setting

CELLS, FATES, OTHERS = 2**32, 2**32 + 1, 2**32 + 2
"""Streams of `keyed_uniform`: which patches are corrupted, how, and by which others; a network's begin at 0."""
MOST_COLOURS = 2**12
"""The scores of more would take more memory than the network, and most of them would never be seen."""


class PatchCorruption(NamedTuple):
    """What is done to the patches of each image."""

    cells: Tensor
    """(B, M) int64: the corrupted ones, whose colours are to be told."""
    source: Tensor
    """(B, N) int64: for each place, the patch that is embedded there; its own but for some of the corrupted."""
    masked: Tensor
    """(B, N) bool: where the learned embedding takes the place of any patch's."""


class MaskedPatchPrediction(Objective):
    """Half of an image's patches are corrupted, and the mean colour of each is told from its final token."""

    model: ViT
    mean: Tensor
    std: Tensor

    def __init__(self, model: ViT, settings: MaskedPatch, preprocess: Preprocess) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.colours = Colours(model.config.width, count_colours(settings.bits, model.config.channels))
        self.register_buffer("mean", torch.tensor(preprocess.mean), persistent=False)
        self.register_buffer("std", torch.tensor(preprocess.std), persistent=False)

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The cross-entropy of the corrupted patches' colours; what it explains of them, and how many were right."""
        patches, grid = self.model.patchify(batch.images)
        corruption = corrupt(batch.keys, patches.shape[1], self.settings)
        # A patch is embedded by itself, so another's embedding is the embedding of another: no gradient is gathered.
        z = self.model.patch_embed(take_cells(patches, corruption.source))
        z = torch.where(corruption.masked[:, :, None], self.colours.mask_token, z)
        z, layout = self.model.place(z, grid)
        tokens = self.model.encode(z, layout, keys=batch.keys)[:, layout.prefix :]
        scores = self.colours(take_cells(tokens, corruption.cells)).flatten(0, 1).float()  # (B*M, colours)
        targets = self.targets(patches, batch.images.shape[2:]).gather(1, corruption.cells).flatten()
        loss = F.cross_entropy(scores, targets)
        right = is_right(scores, targets).float().mean()
        return loss, {"explained": explained(loss.detach(), targets), "colour_accuracy": right}

    def targets(self, patches: Tensor, size: Sequence[int]) -> Tensor:
        """(B, N) int64: the mean colours of patches (B, N, C*P*P), each channel's level a digit, the first the highest.

        The levels divide [0, 1], where pixels lie before they are normalised. size: height and width of the images;
        what pads them to whole patches is zero, and has no part in the mean.
        """
        levels: int = 2**self.settings.bits
        real = real_shares(size, self.model.config.patch).to(patches.device)
        mean = patches.view(*patches.shape[:2], len(self.mean), -1).mean(dim=3) / real[:, None]
        colour = mean * self.std + self.mean  # (B, N, C)
        digits = (colour * levels).long().clamp(0, levels - 1)
        places = levels ** torch.arange(len(self.mean) - 1, -1, -1, device=digits.device)
        return (digits * places).sum(dim=2)

    def extras(self) -> Mapping[str, nn.Module]:
        """What tells the colours, and the embedding of a patch that is not seen."""
        return {"colours": self.colours}


class Colours(nn.Module):
    """The learned embedding of what is masked, and one linear layer from a token to the scores of the colours."""

    def __init__(self, width: int, colours: int) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.pred = Linear(width, colours)
        nn.init.zeros_(self.pred.weight)  # as every classifier of the house: all colours are alike at first
        nn.init.zeros_(self.pred.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, M, D) to (B, M, colours)."""
        scores: Tensor = self.pred(tokens)
        return scores


def build_masked_patch(network: Network, settings: MaskedPatch, setting: Setting) -> MaskedPatchPrediction:
    """Only a network of patches: a hybrid's stem would tell of the masked ones through their neighbours."""
    model = require(network, ViT, "masked-patch")
    require(network, LeavesPatchesOut, "masked-patch")
    if model.config.patch_dropout:
        raise UserError(
            f"patch_dropout={model.config.patch_dropout}: masked-patch looks at all patches and corrupts some of them; "
            "set patch_dropout=0."
        )
    return MaskedPatchPrediction(model, settings, setting.preprocess)


def corrupt(keys: Tensor, patches: int, settings: MaskedPatch) -> PatchCorruption:
    """What happens to so many patches of each image, by its key (B,): others in every epoch."""
    count = min(patches, max(1, round(settings.mask * patches)))
    cells = keyed_uniform(keys, CELLS, patches).argsort(dim=1, stable=True)[:, :count]
    fate = keyed_uniform(keys, FATES, count)
    masked = fate < settings.by_mask_token
    moved = ~masked & (fate < settings.by_mask_token + settings.by_other_patch)
    step = 1 + (keyed_uniform(keys, OTHERS, count) * (patches - 1)).long().clamp(
        max=patches - 2
    )  # never round to itself
    every = torch.arange(patches, device=keys.device).repeat(len(keys), 1)
    return PatchCorruption(
        cells,
        source=every.scatter(1, cells, torch.where(moved, (cells + step) % patches, cells)),
        masked=torch.zeros_like(every, dtype=torch.bool).scatter(1, cells, masked),
    )


def real_shares(size: Sequence[int], patch: int) -> Tensor:
    """(N,): which share of each patch of an image (height, width) is its own, where it is padded to whole patches."""
    rows, columns = ((side - torch.arange(0, side, patch)).clamp(max=patch) / patch for side in size)
    return (rows[:, None] * columns).flatten()


def count_colours(bits: int, channels: int) -> int:
    """How many mean colours there are, of so many bits for each channel."""
    colours: int = 2 ** (bits * channels)
    if colours > MOST_COLOURS:
        raise UserError(
            f"objective.bits={bits}: the mean colour of {channels} channels would have {colours:,} classes, more than "
            f"{MOST_COLOURS:,}; lower it."
        )
    return colours


def explained(loss: Tensor, targets: Tensor) -> Tensor:
    """The share of the targets' entropy that a cross-entropy leaves explained: 0 if their frequencies do as well."""
    shares = torch.bincount(targets) / len(targets)
    prior = -torch.xlogy(shares, shares).sum()
    share = (1 - loss / prior).clamp(min=0)
    return torch.where(prior > 1e-6, share, torch.zeros_like(share))  # one colour everywhere: nothing to explain
