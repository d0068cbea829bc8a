"""EfficientNet: inverted bottlenecks with depthwise convolutions, squeeze-and-excitation, batch norm and swish.

Parameter names follow timm's (`blocks.1.0.conv_dw`). Letters in shapes: B images, C channels, H x W pixels, D
features, h x w places on the last map, K classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.efficientnet import EfficientNetConfig, Stage
from vitreous.model.batch_norm import BatchNorm
from vitreous.model.convolution import PaddedConvolution, check_images
from vitreous.model.initialise import Convolution, Linear, initialise_convolutions
from vitreous.model.keyed_random import keyed_uniform
from vitreous.model.layers import drop_branch
from vitreous.model.network import Network, Outputs

DROPOUT, BLOCKS = 0, 1
"""Streams of `keyed_uniform`: for dropout, and for the stochastic depth of block 0, then of block 1 and so on."""


class NormSwish(BatchNorm):
    """Batch norm, then swish: x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(super().forward(x))


class SqueezeExcite(nn.Module):
    """Each channel times a number between 0 and 1 that follows from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv_reduce = Convolution(channels, squeezed, 1)
        self.conv_expand = Convolution(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3), keepdim=True)
        gate: Tensor = self.conv_expand(F.silu(self.conv_reduce(means))).sigmoid()
        return x * gate


class Residual(nn.Module, ABC):
    """A block whose input is added to what it computes, where both have one shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, drop_path: float) -> None:
        super().__init__()
        self.skips, self.drop_path = stride == 1 and inputs == outputs, drop_path

    @abstractmethod
    def branch(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H/stride, W/stride)."""

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Tensor:
        """The same; uniform: (B,) in [0, 1) that decides on stochastic depth; None: torch's generator."""
        y = self.branch(x)
        return x + drop_branch(y, self.drop_path if self.training else 0.0, uniform) if self.skips else y


class Separable(Residual):
    """The first stage's block: each channel by itself, then all of them at each place."""

    def __init__(self, c: EfficientNetConfig, inputs: int, stage: Stage, stride: int, drop_path: float) -> None:
        super().__init__(inputs, stage.outputs, stride, drop_path)
        padded = partial(PaddedConvolution, tf_padding=c.padding == "same")
        self.conv_dw = padded(inputs, inputs, stage.kernel, stride, groups=inputs)
        self.bn1 = NormSwish(inputs, c.norm_eps)
        self.se = SqueezeExcite(inputs, max(1, inputs // 4))
        self.conv_pw = padded(inputs, stage.outputs, 1)
        self.bn2 = BatchNorm(stage.outputs, c.norm_eps)

    def branch(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv_pw(self.se(self.bn1(self.conv_dw(x)))))


class MBConv(Residual):
    """The inverted bottleneck: more channels, each of them by itself, and fewer again."""

    def __init__(self, c: EfficientNetConfig, inputs: int, stage: Stage, stride: int, drop_path: float) -> None:
        super().__init__(inputs, stage.outputs, stride, drop_path)
        padded = partial(PaddedConvolution, tf_padding=c.padding == "same")
        inner = inputs * stage.expansion
        self.conv_pw = padded(inputs, inner, 1)
        self.bn1 = NormSwish(inner, c.norm_eps)
        self.conv_dw = padded(inner, inner, stage.kernel, stride, groups=inner)
        self.bn2 = NormSwish(inner, c.norm_eps)
        self.se = SqueezeExcite(inner, max(1, inputs // 4))
        self.conv_pwl = padded(inner, stage.outputs, 1)
        self.bn3 = BatchNorm(stage.outputs, c.norm_eps)

    def branch(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv_dw(self.bn1(self.conv_pw(x))))
        return self.bn3(self.conv_pwl(self.se(y)))


class EfficientNet(Network):
    """An EfficientNet. The classifier starts at 0."""

    config: EfficientNetConfig
    embedding = ("conv_stem.", "bn1.")

    def __init__(self, config: EfficientNetConfig, *, seed: int | None = 0) -> None:
        super().__init__()
        self.config = c = config
        self.conv_stem = PaddedConvolution(c.channels, c.stem_width, 3, 2, tf_padding=c.padding == "same")
        self.bn1 = NormSwish(c.stem_width, c.norm_eps)
        self.blocks = nn.Sequential()
        number = 0
        for stage in c.stages:
            block = Separable if stage.expansion == 1 else MBConv
            blocks = nn.Sequential()
            for place in range(stage.blocks):
                inputs, stride = (stage.outputs, 1) if place else (stage.inputs, stage.stride)
                blocks.append(block(c, inputs, stage, stride, c.drop_path * number / c.layers))
                number += 1
            self.blocks.append(blocks)
        self.conv_head = PaddedConvolution(c.stages[-1].outputs, c.features, 1)
        self.bn2 = NormSwish(c.features, c.norm_eps)
        self.classifier = Linear(c.features, c.classes) if c.classes else nn.Identity()
        if seed is not None:
            initialise_convolutions(self, seed)

    def layers(self) -> list[nn.Module]:
        return [block for stage in self.blocks.children() for block in stage.children()]

    def classifiers(self) -> list[nn.Linear]:
        return [self.classifier] if isinstance(self.classifier, nn.Linear) else []

    def feature_map(self, images: Tensor, *, keys: Tensor | None = None) -> Tensor:
        """(B, D, h, w): the last features that still have a place.

        keys: (B,) int64 from which stochastic depth is drawn in training; None: torch's generator.
        """
        check_images(images, self.config.channels)
        images = images.contiguous(memory_format=torch.channels_last)  # faster on a CPU, and all else follows
        x = self.bn1(self.conv_stem(images))
        if not self.training or not self.config.drop_path:
            keys = None
        for number, block in enumerate(self.layers()):
            x = block(x, None if keys is None else keyed_uniform(keys, BLOCKS + number, 1)[:, 0])
        return self.bn2(self.conv_head(x))

    def classify(self, feature_map: Tensor, *, keys: Tensor | None = None) -> Tensor:
        """(B, D, h, w) to (B, K): the classifier reads the mean over all places, of which dropout leaves some out."""
        y, p = feature_map.mean(dim=(2, 3)), self.config.dropout
        if self.config.classes and self.training and p:
            kept = None if keys is None else keyed_uniform(keys, DROPOUT, y.shape[1]) >= p
            y = F.dropout(y, p) if kept is None else y * (kept / (1 - p)).to(y.dtype)
        return self.classifier(y)

    def outputs(self, images: Tensor, *, keys: Tensor | None = None) -> Outputs:
        features = self.feature_map(images, keys=keys)
        return Outputs(features.mean(dim=(2, 3)), self.classify(features, keys=keys))
