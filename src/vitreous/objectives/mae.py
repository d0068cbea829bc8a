"""Learning by filling in: the masked autoencoder of He et al. 2021, step by step.

Letters: B images, C channels, P patch side, N patches, V visible ones, M masked ones, D width, d the decoder's width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vitreous.config.model import ViTConfig, grid_of
from vitreous.config.objective import Mae
from vitreous.data.batch import Batch
from vitreous.errors import UserError
from vitreous.model.initialise import Linear
from vitreous.model.keyed_random import keyed_uniform
from vitreous.model.network import LeavesPatchesOut, Network, ParameterGroup, require
from vitreous.model.position import Grid, Layout, sincos_like, take_cells
from vitreous.model.vit import Block, ViT
from vitreous.objectives.collapse import explained, feature_std
from vitreous.objectives.objective import Metrics, Objective, Setting
from vitreous.storage.manifest import check_manifest

STEPS_BETWEEN, IMAGES_COMPARED = 10, 32  # every so many steps, the features of so many images are compared
MASK_STREAM = 2**32  # stream of `keyed_uniform` for the masks; a network's own begin at 0


class MaskedAutoencoder(Objective):
    """The encoder sees some patches of an image, a small decoder rebuilds the others; what counts is the encoder."""

    model: ViT

    def __init__(self, model: Network, settings: Mae, setting: Setting | None = None) -> None:
        super().__init__()
        setting = setting or Setting()
        self.model, self.settings = require(model, ViT, "mae"), settings
        require(model, LeavesPatchesOut, "mae")  # which a hybrid cannot
        self.seed, self.world = setting.seed, setting.world
        self.decoder = Decoder(self.model.config, settings, self.seed)
        self.taken: Tensor
        self.register_buffer("taken", torch.zeros((), dtype=torch.long))

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The mean squared error of the masked patches, and the metrics by which a collapse shows."""
        keep_ids, masked = shuffle(self.noise(batch), self.settings.mask)
        rebuilt, _ = self.rebuild(batch.images, keep_ids, masked, batch.keys)
        targets = self.targets(batch.images, masked)
        loss = masked_loss(rebuilt, targets)
        metrics = {"explained": explained(loss.detach(), targets.var(correction=0))}
        if self.training and self.taken.item() % STEPS_BETWEEN == 0:
            metrics["feature_std"] = self.full_image_std(batch.images[: -(-IMAGES_COMPARED // self.world.size)])
        return loss, metrics

    @torch.no_grad()
    def full_image_std(self, images: Tensor) -> Tensor:
        """How far apart the features of whole images are; masks would set even equal images apart."""
        self.model.eval()
        features = self.model.representation(images)
        self.model.train(self.training)
        return feature_std(features, self.world)

    def after_step(self, progress: float) -> None:
        """Count: an interrupted training compares features in the same steps as another."""
        self.taken += 1

    def extras(self) -> Mapping[str, nn.Module]:
        return {"decoder": self.decoder}

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The decoder's blocks lie above the encoder's layers, and learn as fast as the last; Muon takes matrices."""
        found, matrices = super().parameter_groups(), {p for p in self.decoder.blocks.parameters() if p.ndim == 2}
        for name, parameter in self.named_parameters():
            if parameter is self.decoder.mask_token:
                found[name] = found[name]._replace(decayed=False)
            elif parameter in matrices:
                found[name] = found[name]._replace(kind="matrix")
        return found

    def transformer_blocks(self) -> list[nn.Module]:
        return [*super().transformer_blocks(), *self.decoder.blocks]

    def noise(self, batch: Batch) -> Tensor:
        """(B, N) numbers whose order decides which patches are seen: others in every epoch, the same in evaluation."""
        height, width = batch.images.shape[2:]
        rows, columns = grid_of((height, width), self.model.config.patch)
        return keyed_uniform(batch.keys, MASK_STREAM, rows * columns)

    def rebuild(
        self, images: Tensor, keep_ids: Tensor, masked: Tensor, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The masked patches (B, M, P*P*C) as the decoder imagines them, and the encoder's tokens (B, T, D)."""
        z, layout = self.model.embed(images, keep_ids, keys)
        tokens = self.model.encode(z, layout, keys=keys)
        return self.decoder(tokens, layout, masked), tokens

    def targets(self, images: Tensor, masked: Tensor) -> Tensor:
        """(B, M, P*P*C): what the masked patches are, each normalised by itself if the settings say so."""
        patches, _ = self.model.patchify(images)
        patches = pixels_last(take_cells(patches, masked), self.model.config.channels)
        if not self.settings.normalise:
            return patches
        return (patches - patches.mean(dim=2, keepdim=True)) / patches_spread(patches)

    @torch.no_grad()
    def reconstruct(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) with the masked patches rebuilt, and which patches those are, (B, rows, columns) bool.

        Where the decoder gives normalised patches, each gets its true mean and spread back, as the paper draws them.
        """
        keep_ids, masked = shuffle(self.noise(batch), self.settings.mask)
        rebuilt, _ = self.rebuild(batch.images, keep_ids, masked)
        patches, grid = self.model.patchify(batch.images)
        patches = pixels_last(patches, self.model.config.channels)
        if self.settings.normalise:
            truth = take_cells(patches, masked)
            rebuilt = rebuilt * patches_spread(truth) + truth.mean(dim=2, keepdim=True)
        filled = patches.scatter(1, masked[:, :, None].expand_as(rebuilt), rebuilt.to(patches.dtype))
        hidden = torch.zeros(patches.shape[:2], dtype=torch.bool, device=masked.device).scatter(1, masked, True)
        return unpatchify(filled, grid, self.model.config.patch), hidden.view(-1, *grid)


class Decoder(nn.Module):
    """From the tokens of the visible patches to the pixels of the masked ones.

    A sequence of tokens has no order but its positions, so the masked ones may come first: the last block then
    computes nothing that the loss does not read.
    """

    def __init__(self, c: ViTConfig, settings: Mae, seed: int) -> None:
        super().__init__()
        width = settings.decoder_width
        shape = ViTConfig(
            width=width,
            depth=settings.decoder_depth,
            heads=settings.decoder_heads,
            mlp_width=4 * width,
            patch=c.patch,
            image_size=c.image_size,
            norm_eps=c.norm_eps,
            position="sincos-2d",
        )
        self.trained = c.sincos_grid or c.grid
        self.embed = Linear(c.width, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.blocks = nn.ModuleList(Block(shape, drop_path=0.0) for _ in range(settings.decoder_depth))
        self.norm = nn.LayerNorm(width, c.norm_eps)
        self.pred = Linear(width, c.patch**2 * c.channels)
        self._initialise(torch.Generator().manual_seed(seed + 1))  # not the encoder's numbers once more

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Matrices: Xavier uniform, q, k and v each on its own; the mask token: normal, 0.02; biases: zero."""
        for name, parameter in self.named_parameters():
            if name == "mask_token":
                nn.init.normal_(parameter, std=0.02, generator=generator)
            elif parameter.ndim == 2:
                for part in parameter.chunk(3 if ".qkv." in name else 1):
                    nn.init.xavier_uniform_(part, generator=generator)
            elif "norm" not in name:
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, layout: Layout, masked: Tensor) -> Tensor:
        """(B, prefix + V, D) and the masked cells (B, M) to (B, M, P*P*C)."""
        assert layout.keep_ids is not None
        cells = sincos_like(tokens, layout.grid, self.mask_token.shape[2], self.trained)
        seen = self.embed(tokens)
        prefix, visible = seen[:, : layout.prefix], seen[:, layout.prefix :] + cells[layout.keep_ids]
        z = torch.cat([self.mask_token + cells[masked], prefix, visible], dim=1)
        layout = layout._replace(rotation=None)  # it has positions of its own
        last, count = len(self.blocks) - 1, masked.shape[1]
        for number, block in enumerate(self.blocks):
            z = block(z, layout, read=count if number == last else None)
        return self.pred(self.norm(z))


def load_autoencoder(folder: Path, model: Network) -> MaskedAutoencoder:
    """The encoder `model` with the decoder that a run kept in `folder`, in evaluation mode."""
    check_manifest(folder)
    described = json.loads((folder / "config.json").read_text())
    fields = dict(described.get("objective") or described["method"])  # "method" until version 0.1
    if fields.pop("kind") != Mae.kind:
        raise UserError(f"{folder}: not the decoder of a masked autoencoder; give the run of pretrain --method mae.")
    objective = MaskedAutoencoder(require(model, ViT, "reconstruct"), Mae(**fields), Setting(described["seed"]))
    objective.decoder.load_state_dict(load_file(folder / "decoder.safetensors"))
    return objective.eval()


def shuffle(noise: Tensor, mask: float) -> tuple[Tensor, Tensor]:
    """(B, V) cells to keep and (B, M) cells to mask: those with the least and those with the most noise (B, N)."""
    order = noise.argsort(dim=1, stable=True)
    visible = max(1, int(noise.shape[1] * (1 - mask)))
    return order[:, :visible], order[:, visible:]


def masked_loss(rebuilt: Tensor, targets: Tensor) -> Tensor:
    """The squared error, averaged over pixels and masked patches; both (B, M, P*P*C)."""
    return (rebuilt - targets).square().mean()


def pixels_last(patches: Tensor, channels: int) -> Tensor:
    """(B, M, C*P*P) to (B, M, P*P*C): the colours of a pixel side by side, as public decoders have them."""
    images, count, _ = patches.shape
    return patches.view(images, count, channels, -1).transpose(2, 3).flatten(2)


def patches_spread(patches: Tensor) -> Tensor:
    """(B, M, 1): the standard deviation of each patch, never zero."""
    return (patches.var(dim=2, keepdim=True) + 1e-6).sqrt()


def unpatchify(patches: Tensor, grid: Grid, side: int) -> Tensor:
    """(B, N, P*P*C) to images (B, C, H, W)."""
    rows, columns = grid
    cells = patches.reshape(len(patches), rows, columns, side, side, -1)
    return cells.permute(0, 5, 1, 3, 2, 4).reshape(len(patches), -1, rows * side, columns * side)
