"""What the convolutional families cost, counted layer by layer from a configuration.

Without torch, so that asking is instant; the tests hold the counts against real networks, torch's own FLOP counter, and
what autograd really keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vitreous.config.bit import BiTConfig
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.config.model import ModelConfig
from vitreous.model.cost import CACHED, FEWEST, MOST
from vitreous.model.table import check_whole


class ConvLayer(NamedTuple):
    """A convolution and what goes with it."""

    inputs: int
    outputs: int
    kernel: int
    places: int
    """On the map that comes out."""
    others: int
    """Learned numbers beside the kernels: scale and shift of a norm, or a bias."""
    kept: int
    """Numbers of one image that the backward pass needs: what goes into convolution, norm and activation."""
    groups: int = 1

    @property
    def kernels(self) -> int:
        """Learned numbers in the kernels."""
        return self.inputs // self.groups * self.outputs * self.kernel**2


Layers = Callable[[Any], Iterator[ConvLayer]]


def count_parameters(layers: Layers, c: ModelConfig) -> int:
    """Learned numbers, all of them."""
    return sum(layer.kernels + layer.others for layer in layers(c)) + (c.features + 1) * c.classes


def count_flops(layers: Layers, c: ModelConfig, keep: float) -> int:
    """Floating-point operations of the convolutions and the matrix product of one image's forward pass."""
    check_whole(c, keep)
    return 2 * sum(layer.kernels * layer.places for layer in layers(c)) + 2 * c.features * c.classes


def count_activation_bytes(layers: Layers, c: ModelConfig) -> int:
    """Bytes of one image that a float32 training step keeps for the backward pass, within 7 %."""
    return 4 * (sum(layer.kept for layer in layers(c)) + c.features)


def count_forward_bytes(layers: Layers, c: ModelConfig) -> int:
    """Bytes of one image that a forward pass needs at once where no gradient is wanted: a layer's ends."""
    return 2 * _largest(layers, c)


def inference_batch(layers: Layers, c: ModelConfig) -> int:
    """How many images to look at at once where no gradient is needed."""
    return max(FEWEST, min(MOST, CACHED // _largest(layers, c)))


def _largest(layers: Layers, c: ModelConfig) -> int:
    return 4 * max(layer.outputs * layer.places for layer in layers(c))


def bit_layers(c: BiTConfig) -> Iterator[ConvLayer]:
    """Of a BiT. A norm comes before its convolution, and both keep what goes into them."""
    (height, width), inputs = c.image_size, c.root_width
    pixels = c.channels * height * width
    if c.root == "3x3":
        yield ConvLayer(c.channels, inputs, 3, height * width, 0, pixels)
    else:
        height, width = _half(height), _half(width)
        places, padded = height * width, (height + 2) * (width + 2)
        height, width = _half(height), _half(width)
        pooled = padded + 2 * height * width  # which was largest is kept as a number of 8 bytes
        yield ConvLayer(c.channels, inputs, 7, places, 0, pixels + inputs * pooled)
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
    places, stem = height * width, c.stem_width
    yield ConvLayer(c.channels, stem, 3, places, 2 * stem, c.channels * 4 * places + 2 * stem * places)
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
    features, places = c.features, height * width
    last = c.stages[-1].outputs
    yield ConvLayer(last, features, 1, places, 2 * features, (last + 2 * features) * places)


def _half(side: int) -> int:
    """Places that a stride of 2 leaves."""
    return -(-side // 2)
