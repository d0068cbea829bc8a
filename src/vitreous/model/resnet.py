"""ResNet-v2 with group norm and standardised kernels: the trunk that BiT is, and that hybrids put before a Transformer.

Parameter names follow timm's (`stem.conv`, `stages.0.blocks.0.norm1`). Letters in shapes: B images, C channels,
H x W pixels, D channels of the last stage, h x w places on its map, s the stride of a hybrid's
stem, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.bit import BiTConfig, Root
from vitreous.config.stem import GROUPS, ConvStem, Stem
from vitreous.model.convolution import (
    PaddedConvolution,
    StandardisedConvolution,
    check_images,
    pad_same,
)
from vitreous.model.initialise import Linear, initialise_convolutions
from vitreous.model.network import Network, Outputs


class GroupNorm32(nn.GroupNorm):
    """Group norm as every layer has it."""

    def __init__(self, channels: int) -> None:
        super().__init__(GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad or not (self.weight.requires_grad and torch.is_grad_enabled()):
            return super().forward(x)
        # Behind frozen layers, with channels last, the backward pass of torch 2.13 ends the process.
        return super().forward(x.contiguous()).contiguous(memory_format=layout_of(x))


class NormReLU(GroupNorm32):
    """Group norm, then ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x), inplace=True)


def layout_of(x: Tensor) -> torch.memory_format:
    return torch.contiguous_format if x.is_contiguous() else torch.channels_last


class RootBlock(nn.Module):
    """How pixels enter.

    normed: with norm and ReLU between convolution and pooling, where the blocks have theirs at the end (hybrids).
    tf_padding: padded as TensorFlow does it (hybrids). BiT pads both sides alike, zeros before the pooling too.
    """

    def __init__(
        self, channels: int, width: int, root: Root, *, normed: bool = False, tf_padding: bool = False
    ) -> None:
        super().__init__()
        self.pooled, self.tf_padding = root == "7x7", tf_padding
        kernel, stride = (7, 2) if self.pooled else (3, 1)
        self.conv = StandardisedConvolution(channels, width, kernel, stride, tf_padding=tf_padding)
        self.norm = NormReLU(width) if normed else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, width, H/4, W/4), or as large as it came without pooling."""
        x = self.norm(self.conv(images))
        if not self.pooled:
            return x
        x = pad_same(x, 3, 2, value=float("-inf")) if self.tf_padding else F.pad(x, (1, 1, 1, 1))
        return F.max_pool2d(x, 3, 2)


class PreActBottleneck(nn.Module):
    """A bottleneck with norm and ReLU before each convolution: what is added to the stream is a plain sum (BiT)."""

    def __init__(self, inputs: int, outputs: int, stride: int, project: bool, tf_padding: bool) -> None:
        super().__init__()
        inner = outputs // 4
        self.downsample = Projection(inputs, outputs, stride, tf_padding=tf_padding) if project else None
        self.norm1 = NormReLU(inputs)
        self.conv1 = StandardisedConvolution(inputs, inner, 1)
        self.norm2 = NormReLU(inner)
        self.conv2 = StandardisedConvolution(inner, inner, 3, stride, tf_padding=tf_padding)
        self.norm3 = NormReLU(inner)
        self.conv3 = StandardisedConvolution(inner, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        shortcut = x if self.downsample is None else self.downsample(y)
        return self.conv3(self.norm3(self.conv2(self.norm2(self.conv1(y))))) + shortcut


class Bottleneck(nn.Module):
    """A bottleneck with a norm after each convolution, and ReLU after the sum (the hybrids')."""

    def __init__(self, inputs: int, outputs: int, stride: int, project: bool, tf_padding: bool) -> None:
        super().__init__()
        inner = outputs // 4
        self.downsample = Projection(inputs, outputs, stride, normed=True, tf_padding=tf_padding) if project else None
        self.conv1 = StandardisedConvolution(inputs, inner, 1)
        self.norm1 = NormReLU(inner)
        self.conv2 = StandardisedConvolution(inner, inner, 3, stride, tf_padding=tf_padding)
        self.norm2 = NormReLU(inner)
        self.conv3 = StandardisedConvolution(inner, outputs, 1)
        self.norm3 = GroupNorm32(outputs)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.norm3(self.conv3(self.norm2(self.conv2(self.norm1(self.conv1(x))))))
        return F.relu(out + shortcut, inplace=True)


class Projection(nn.Module):
    """The shortcut where a stage begins and the stream changes its shape."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, *, normed: bool = False, tf_padding: bool = False
    ) -> None:
        super().__init__()
        self.conv = StandardisedConvolution(inputs, outputs, 1, stride, tf_padding=tf_padding)
        self.norm = GroupNorm32(outputs) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class ResNetStage(nn.Module):
    """Blocks of one width; the first takes every `stride`-th place."""

    def __init__(
        self,
        block: type[PreActBottleneck | Bottleneck],
        inputs: int,
        outputs: int,
        depth: int,
        stride: int,
        tf_padding: bool,
    ):
        super().__init__()
        first = block(inputs, outputs, stride, True, tf_padding)
        self.blocks = nn.Sequential(first, *(block(outputs, outputs, 1, False, tf_padding) for _ in range(depth - 1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class Trunk(nn.Module):
    """A root block and stages of bottlenecks, without a classifier.

    depths: blocks of each stage; stage i gives 256 * width * 2**i channels.
    preactivated: norm before the convolutions and once at the end, as in BiT; otherwise after them, as in hybrids.
    tf_padding: padded as TensorFlow does it.
    """

    def __init__(
        self,
        depths: Sequence[int],
        *,
        width: float = 1.0,
        channels: int = 3,
        root: Root = "7x7",
        preactivated: bool = True,
        tf_padding: bool = False,
    ) -> None:
        super().__init__()
        inputs = round(64 * width)
        self.stem = RootBlock(channels, inputs, root, normed=not preactivated, tf_padding=tf_padding)
        block = PreActBottleneck if preactivated else Bottleneck
        self.stages = nn.Sequential()
        for number, depth in enumerate(depths):
            outputs = round(256 * width) * 2**number
            self.stages.append(ResNetStage(block, inputs, outputs, depth, 1 if number == 0 else 2, tf_padding))
            inputs = outputs
        self.norm = NormReLU(inputs) if preactivated else nn.Identity()

    def feature_map(self, images: Tensor) -> Tensor:
        """(B, D, h, w): the last stage's features, after the final norm if there is one."""
        check_images(images, self.stem.conv.in_channels)
        # On a CPU channels last is a tenth faster for photographs, and a quarter slower for images of 32 pixels.
        layout = torch.channels_last if self.stem.pooled else torch.contiguous_format
        return self.norm(self.stages(self.stem(images.contiguous(memory_format=layout))))


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


class ClassifierHead(nn.Module):
    """The classifier, under timm's name for it."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.fc = Linear(features, classes) if classes else nn.Identity()

    def forward(self, y: Tensor) -> Tensor:
        return self.fc(y)


class BiT(Trunk, Network):
    """A BiT. The classifier starts at 0."""

    config: BiTConfig
    embedding = ("stem.",)

    def __init__(self, config: BiTConfig, *, seed: int | None = 0) -> None:
        c = config
        super().__init__(c.depths, width=c.width, channels=c.channels, root=c.root)
        self.config = c
        self.head = ClassifierHead(c.features, c.classes)
        if seed is not None:
            initialise_convolutions(self, seed)

    def layers(self) -> list[nn.Module]:
        return [block for stage in self.stages for block in stage.get_submodule("blocks").children()]

    def classifiers(self) -> list[nn.Linear]:
        return [self.head.fc] if isinstance(self.head.fc, nn.Linear) else []

    def classify(self, feature_map: Tensor) -> Tensor:
        """(B, D, h, w) to (B, K): the classifier reads the mean over all positions."""
        return self.head(feature_map.mean(dim=(2, 3)))

    def outputs(self, images: Tensor, *, keys: Tensor | None = None) -> Outputs:
        features = self.feature_map(images)
        return Outputs(features.mean(dim=(2, 3)), self.classify(features))
