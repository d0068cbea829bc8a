"""What the convolutional families and the stems of hybrids cost, counted layer by layer from a configuration.

Without torch, so that asking is instant; the tests hold the counts against real networks, torch's own FLOP counter, and
what autograd really keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vitreous.config.bit import BiTConfig
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.config.model import ModelConfig
from vitreous.config.stem import ConvStem, ResNetStem, Stem
from vitreous.model.cost import NetworkCost


class ConvLayer(NamedTuple):
    """A convolution and what goes with it."""

    inputs: int
    outputs: int
    kernel: int
    positions: int  # on the map that comes out
    others: int  # learned numbers beside the kernels: scale and shift of a norm, or a bias
    saved: int  # numbers of one image that the backward pass needs: what goes into convolution, norm and activation
    groups: int = 1

    @property
    def kernels(self) -> int:
        return self.inputs // self.groups * self.outputs * self.kernel**2


def conv_cost(layers: Callable[[Any], Iterator[ConvLayer]], c: ModelConfig, patch_fraction: float) -> NetworkCost:
    """Exact, but for `activation_bytes`, which are within 7 %."""
    found = list(layers(c))
    parameters = sum(layer.kernels + layer.others for layer in found) + (c.features + 1) * c.classes
    flops = 2 * sum(layer.kernels * layer.positions for layer in found) + 2 * c.features * c.classes
    activations = 4 * (sum(layer.saved for layer in found) + c.features)
    largest = 4 * max(layer.outputs * layer.positions for layer in found)
    return NetworkCost(parameters, flops, activations, 2 * largest, largest)  # a layer's input and its output


def bit_layers(c: BiTConfig) -> Iterator[ConvLayer]:
    """Of a BiT. A norm comes before its convolution, and both keep what goes into them."""
    (height, width), inputs = c.image_size, c.root_width
    pixels = c.channels * height * width
    if c.root == "3x3":
        yield ConvLayer(c.channels, inputs, 3, height * width, 0, pixels)
    else:
        height, width = _half(height), _half(width)
        positions, padded = height * width, (height + 2) * (width + 2)
        height, width = _half(height), _half(width)
        pooled = padded + 2 * height * width  # which was largest is kept as a number of 8 bytes
        yield ConvLayer(c.channels, inputs, 7, positions, 0, pixels + inputs * pooled)
    for stage, (depth, outputs) in enumerate(zip(c.depths, c.stage_widths, strict=True)):
        inner = outputs // 4
        for block in range(depth):
            before = height * width
            if stage and not block:
                height, width = _half(height), _half(width)
            after = height * width
            if not block:
                yield ConvLayer(inputs, outputs, 1, after, 0, 0)
            yield ConvLayer(inputs, inner, 1, before, 2 * inputs, 2 * inputs * before)
            yield ConvLayer(inner, inner, 3, after, 2 * inner, 2 * inner * before)
            yield ConvLayer(inner, outputs, 1, after, 2 * inner, 2 * inner * after)
            inputs = outputs
    yield ConvLayer(0, inputs, 1, height * width, 2 * inputs, 2 * inputs * height * width)  # the last norm


def efficientnet_layers(c: EfficientNetConfig) -> Iterator[ConvLayer]:
    """Of an EfficientNet. A norm comes after its convolution, and keeps what that gives; swish keeps what it gets."""
    height, width = (_half(side) for side in c.image_size)
    positions, stem = height * width, c.stem_width
    yield ConvLayer(c.channels, stem, 3, positions, 2 * stem, c.channels * 4 * positions + 2 * stem * positions)
    for stage in c.stages:
        for block in range(stage.blocks):
            before, inputs = height * width, stage.outputs if block else stage.inputs
            if stage.stride == 2 and not block:
                height, width = _half(height), _half(width)
            after, inner = height * width, inputs * stage.expansion
            squeezed = max(1, inputs // 4)
            if stage.expansion > 1:
                yield ConvLayer(inputs, inner, 1, before, 2 * inner, (inputs + 2 * inner) * before)
            yield ConvLayer(inner, inner, stage.kernel, after, 2 * inner, inner * (before + 3 * after), groups=inner)
            yield ConvLayer(inner, squeezed, 1, 1, squeezed, inner + squeezed)
            yield ConvLayer(squeezed, inner, 1, 1, inner, squeezed + inner)
            yield ConvLayer(inner, stage.outputs, 1, after, 2 * stage.outputs, (inner + stage.outputs) * after)
    features, positions = c.features, height * width
    last = c.stages[-1].outputs
    yield ConvLayer(last, features, 1, positions, 2 * features, (last + 2 * features) * positions)


def _half(side: int) -> int:
    """Places that a stride of 2 leaves."""
    return -(-side // 2)


def stem_layers(stem: Stem, channels: int, size: tuple[int, int]) -> Iterator[ConvLayer]:
    """Of a hybrid's stem, for images (height, width)."""
    if isinstance(stem, ConvStem):
        yield from _conv_stem_layers(stem, channels, size)
    else:
        yield from _resnet_stem_layers(stem, channels, size)


def _conv_stem_layers(stem: ConvStem, channels: int, size: tuple[int, int]) -> Iterator[ConvLayer]:
    height, width = size
    for outputs in stem.widths:
        positions, halved = height * width, (height // 2) * (width // 2)
        # its input; after ReLU; where the largest were, in 8 bytes each
        yield ConvLayer(channels, outputs, 3, positions, 0, positions * (channels + outputs) + 2 * halved * outputs)
        channels, height, width = outputs, height // 2, width // 2


def _resnet_stem_layers(stem: ResNetStem, channels: int, size: tuple[int, int]) -> Iterator[ConvLayer]:
    (height, width), outputs = size, stem.root_width
    padded = channels * (height + 5) * (width + 5)
    height, width = height // 2, width // 2
    before_pool, pooled = outputs * (height + 1) * (width + 1), outputs * height * width // 4
    yield ConvLayer(
        channels,
        outputs,
        7,
        height * width,
        2 * outputs,
        padded + 2 * outputs * height * width + before_pool + 2 * pooled,
    )
    height, width, inputs = height // 2, width // 2, outputs
    for stage, depth in enumerate(stem.depths):
        outputs, stride = 4 * stem.root_width * 2**stage, 1 if stage == 0 else 2
        inner, fine = outputs // 4, height * width
        positions = (height // stride) * (width // stride)
        for block in range(depth):
            if block == 0:
                yield ConvLayer(inputs, outputs, 1, positions, 2 * outputs, outputs * positions)
            around = inner * (height + 1) * (width + 1) if block == 0 and stride == 2 else 0
            # of each: before its norm, and after ReLU; of the block's output, the sum is the next one's input
            yield ConvLayer(inputs, inner, 1, fine, 2 * inner, inputs * fine + 2 * inner * fine + around)
            yield ConvLayer(inner, inner, 3, positions, 2 * inner, 2 * inner * positions)
            yield ConvLayer(inner, outputs, 1, positions, 2 * outputs, outputs * positions)
            height, width, fine, inputs = height // stride, width // stride, positions, outputs
            stride = 1
