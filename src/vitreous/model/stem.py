"""The stems of hybrids: from pixels to the feature map that a Vision Transformer takes for its image.

Letters in shapes: B images, C channels, H x W pixels, D channels of the map, s the stem's stride.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.stem import ConvStem, Stem
from vitreous.model.convolution import PaddedConvolution
from vitreous.model.resnet import RootBlock, Trunk


class ResNetFeatures(Trunk):
    """A ResNet's last feature map."""

    def forward(self, images: Tensor) -> Tensor:
        return self.feature_map(images)


class Convolutions(nn.Module):
    """3x3 convolutions, each followed by ReLU and a pooling of 3x3 places that takes every second one."""

    def __init__(self, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        sizes = zip((channels, *widths), widths, strict=False)
        self.convs = nn.ModuleList(PaddedConvolution(inputs, outputs, 3) for inputs, outputs in sizes)

    def forward(self, images: Tensor) -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last)
        for convolution in self.convs:
            x = F.max_pool2d(F.relu(convolution(x), inplace=True), 3, 2, padding=1)
        return x


def build_stem(stem: Stem, channels: int) -> nn.Module:
    """From images (B, C, H, W) to (B, D, H/s, W/s); parameters have timm's names for those that it has."""
    if isinstance(stem, ConvStem):
        return Convolutions(channels, stem.widths)
    if not stem.depths:
        return RootBlock(channels, stem.root_width, "7x7", normed=True, tf_padding=True)
    return ResNetFeatures(stem.depths, width=stem.width, channels=channels, preactivated=False, tf_padding=True)
