"""First weights, as the paper's code draws them, as a pure function of a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.init import constant_, normal_, ones_, trunc_normal_, xavier_uniform_, zeros_

if TYPE_CHECKING:
    from vitreous.model.vit import ViT


class Linear(nn.Linear):
    """A linear layer that `initialise` fills: it draws nothing itself, and leaves the global random state alone."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Convolution(nn.Conv2d):
    """The same for a convolution."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


@torch.no_grad()
def initialise(model: ViT, seed: int) -> None:
    """Draw all weights from `seed`.

    Matrices of the blocks: Xavier uniform, q, k and v each on its own; the MLPs' biases: normal, 1e-6. Patch projection
    and tanh layer: LeCun normal. Positions and registers: normal, 0.02. Class token, its like and classifier: zero. A
    hybrid's stem: as a convolutional network's.
    """
    generator = torch.Generator().manual_seed(seed)
    if model.patch_embed.backbone is not None:
        initialise_convolutions(model.patch_embed.backbone, seed)
    for name, parameter in model.named_parameters():
        *_, owner, kind = name.split(".") if "." in name else ("", "", name)
        if name.startswith("patch_embed.backbone."):
            continue
        if kind == "gamma":
            constant_(parameter, model.config.layer_scale or 0.0)
        elif owner.startswith("norm") or owner.endswith("norm"):
            constant_(parameter, 1.0 if kind == "weight" else 0.0)
        elif name.startswith("pos_embed") or name == "reg_token":
            normal_(parameter, std=0.02, generator=generator)
        elif kind == "latent":
            xavier_uniform_(parameter[0], generator=generator)
        elif name in ("patch_embed.proj.weight", "pre_logits.fc.weight"):
            _lecun_normal(parameter, generator)
        elif owner in ("fc1", "fc2") and kind == "bias":
            normal_(parameter, std=1e-6, generator=generator)
        elif kind == "weight" and owner not in ("head", "head_dist"):
            parts = {"qkv": 3, "kv": 2}.get(owner, 1)
            for part in parameter.chunk(parts):
                xavier_uniform_(part, generator=generator)
        else:
            zeros_(parameter)


@torch.no_grad()
def initialise_convolutions(network: nn.Module, seed: int) -> None:
    """Draw all weights from `seed`: kernels normal of variance 2 / (what one input feeds), as He et al. have it.

    Norms start as the identity, biases and the classifier at zero.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fed = module.weight[:, 0].numel() // module.groups
            module.weight.normal_(0.0, (2 / fed) ** 0.5, generator=generator)
        elif isinstance(module, nn.Linear):
            zeros_(module.weight)
        elif isinstance(module, nn.GroupNorm | nn.BatchNorm2d):
            ones_(module.weight)
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor):
            zeros_(bias)


@torch.no_grad()
def whiten_patches(model: ViT, images: Tensor, seed: int, floor: float = 0.005) -> None:
    """Let the patch projection start by making a patch's pixels uncorrelated and equally strong, in random directions.

    Neighbouring pixels are nearly alike, so a random projection sees mostly a patch's mean brightness; whitened, it
    sees edges and colours from the first step. images: (n, C, H, W), some of the training. floor: added to each
    variance, as a share of their mean, so that noise is not blown up to the size of what is seen.
    """
    proj = model.patch_embed.proj
    p = model.config.patch
    pixels = nn.functional.unfold(images, p, stride=p).transpose(1, 2).flatten(0, 1)  # (n * N, C * P * P)
    mean = pixels.mean(dim=0)
    covariance = (pixels - mean).T @ (pixels - mean) / len(pixels)
    variances, axes = torch.linalg.eigh(covariance.double())  # ascending
    variances, axes = variances.flip(0), axes.flip(1)
    whitening = (axes / (variances + floor * variances.mean()).sqrt()).T
    width, inputs = model.config.width, len(mean)
    generator = torch.Generator().manual_seed(seed)
    most = max(width, inputs)
    mixing = torch.linalg.qr(torch.randn(most, most, generator=generator, dtype=torch.float64)).Q[:width, :inputs]
    weight = mixing @ whitening * (width / min(width, inputs)) ** 0.5  # each output has variance near 1
    proj.weight.copy_(weight.view_as(proj.weight))
    assert proj.bias is not None
    proj.bias.copy_(-(weight @ mean.double()))


def _lecun_normal(weight: Tensor, generator: torch.Generator) -> None:
    """A normal of variance 1/inputs cut at two standard deviations, widened so that the variance stays."""
    inputs = weight[0].numel()
    std = inputs**-0.5 / 0.87962566103423978
    trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
