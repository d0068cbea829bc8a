"""Learning by telling colours: masked patch prediction, the paper's own self-supervision (appendix B.1.2).

Letters: B images, C channels, P patch side, N patches, M corrupted ones, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.objective import MaskedPatch
from vitreous.data.batch import Batch
from vitreous.errors import UserError
from vitreous.model.initialise import Linear
from vitreous.model.keyed_random import keyed_uniform
from vitreous.model.network import LeavesPatchesOut, Network, require
from vitreous.model.position import take_cells
from vitreous.model.predictions import is_right
from vitreous.model.vit import ViT
from vitreous.objectives.collapse import entropy, explained
from vitreous.objectives.objective import Metrics, Objective, Setting

PATCH_STREAM, FATE_STREAM, OTHER_STREAM = 2**32, 2**32 + 1, 2**32 + 2
"""Streams of `keyed_uniform`: which patches are corrupted, how, and by which others; a network's begin at 0."""
MAX_COLOURS = 2**12  # the logits of more would take more memory than the network, and most of them would never be seen


class PatchCorruption(NamedTuple):
    """What is done to the patches of each image."""

    cells: Tensor  # (B, M) int64: the corrupted ones, whose colours are to be told
    source: Tensor
    """(B, N) int64: for each place, the patch that is embedded there; its own but for some of the corrupted."""
    masked: Tensor  # (B, N) bool: where the learned embedding takes the place of any patch's


class MaskedPatchPrediction(Objective):
    """Half of an image's patches are corrupted, and the mean colour of each is told from its final token."""

    model: ViT
    mean: Tensor
    std: Tensor

    def __init__(self, model: Network, settings: MaskedPatch, setting: Setting) -> None:
        super().__init__()
        self.model, self.settings = require(model, ViT, "masked-patch"), settings
        require(model, LeavesPatchesOut, "masked-patch")  # a hybrid's stem would tell of the masked ones
        c = self.model.config
        if c.patch_dropout:
            raise UserError(
                f"patch_dropout={c.patch_dropout}: masked-patch looks at all patches and corrupts some of them; "
                "set patch_dropout=0."
            )
        self.colours = Colours(c.width, count_colours(settings.bits, c.channels))
        self.register_buffer("mean", torch.tensor(setting.preprocess.mean), persistent=False)
        self.register_buffer("std", torch.tensor(setting.preprocess.std), persistent=False)

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The cross-entropy of the corrupted patches' colours; what it explains of them, and how many were right."""
        patches, grid = self.model.patchify(batch.images)
        corruption = corrupt(batch.keys, patches.shape[1], self.settings)
        # A patch is embedded by itself, so another's embedding is the embedding of another: no gradient is gathered.
        z = self.model.patch_embed(take_cells(patches, corruption.source))
        z = torch.where(corruption.masked[:, :, None], self.colours.mask_token, z)
        z, layout = self.model.place(z, grid)
        tokens = self.model.encode(z, layout, keys=batch.keys)[:, layout.prefix :]
        logits = self.colours(take_cells(tokens, corruption.cells)).flatten(0, 1).float()  # (B*M, colours)
        targets = self.targets(patches, batch.images.shape[2:]).gather(1, corruption.cells).flatten()
        loss = F.cross_entropy(logits, targets)
        right = is_right(logits, targets).float().mean()
        return loss, {"explained": explained(loss.detach(), colour_entropy(targets)), "colour_accuracy": right}

    def targets(self, patches: Tensor, size: Sequence[int]) -> Tensor:
        """(B, N) int64: the mean colours of patches (B, N, C*P*P), each channel's level a digit, the first the highest.

        The levels divide [0, 1], where pixels lie before they are normalised. size: height and width of the images;
        what pads them to whole patches is zero, and has no part in the mean.
        """
        levels: int = 2**self.settings.bits
        real = real_fractions(size, self.model.config.patch).to(patches.device)
        mean = patches.view(*patches.shape[:2], len(self.mean), -1).mean(dim=3) / real[:, None]
        colour = mean * self.std + self.mean  # (B, N, C)
        digits = (colour * levels).long().clamp(0, levels - 1)
        places = levels ** torch.arange(len(self.mean) - 1, -1, -1, device=digits.device)
        return (digits * places).sum(dim=2)

    def extras(self) -> Mapping[str, nn.Module]:
        return {"colours": self.colours}


class Colours(nn.Module):
    """The learned embedding of what is masked, and one linear layer from a token to the logits of the colours."""

    def __init__(self, width: int, colours: int) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.pred = Linear(width, colours)
        nn.init.zeros_(self.pred.weight)  # as every classifier of the house: all colours are equally likely at first
        nn.init.zeros_(self.pred.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, M, D) to (B, M, colours)."""
        return self.pred(tokens)


def corrupt(keys: Tensor, patches: int, settings: MaskedPatch) -> PatchCorruption:
    """What happens to so many patches of each image, by its key (B,): others in every epoch."""
    count = min(patches, max(1, round(settings.mask * patches)))
    cells = keyed_uniform(keys, PATCH_STREAM, patches).argsort(dim=1, stable=True)[:, :count]
    fate = keyed_uniform(keys, FATE_STREAM, count)
    masked = fate < settings.by_mask_token
    moved = ~masked & (fate < settings.by_mask_token + settings.by_other_patch)
    step = 1 + (keyed_uniform(keys, OTHER_STREAM, count) * (patches - 1)).long().clamp(
        max=patches - 2
    )  # never round to itself
    every = torch.arange(patches, device=keys.device).repeat(len(keys), 1)
    return PatchCorruption(
        cells,
        source=every.scatter(1, cells, torch.where(moved, (cells + step) % patches, cells)),
        masked=torch.zeros_like(every, dtype=torch.bool).scatter(1, cells, masked),
    )


def real_fractions(size: Sequence[int], patch: int) -> Tensor:
    """(N,): which fraction of each patch of an image (height, width) is its own, if it is padded to whole patches."""
    rows, columns = ((side - torch.arange(0, side, patch)).clamp(max=patch) / patch for side in size)
    return (rows[:, None] * columns).flatten()


def count_colours(bits: int, channels: int) -> int:
    colours: int = 2 ** (bits * channels)
    if colours > MAX_COLOURS:
        raise UserError(
            f"objective.bits={bits}: the mean colour of {channels} channels would have {colours:,} classes, more than "
            f"{MAX_COLOURS:,}; lower it."
        )
    return colours


def colour_entropy(targets: Tensor) -> Tensor:
    """The cross-entropy of colours (n,) for who knows their frequencies alone, in nats."""
    return entropy(torch.bincount(targets) / len(targets))
