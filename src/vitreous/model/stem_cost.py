"""What a hybrid's stem costs, counted layer by layer without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vitreous.config.stem import ConvStem, ResNetStem, Stem

Size = tuple[int, int]


class StemLayer(NamedTuple):
    """A convolution without bias, and what follows it."""

    inputs: int
    outputs: int
    kernel: int
    places: int
    """Of its output."""
    normed: bool
    kept: int
    """Numbers that training keeps of one image, from its output on to the next layer's input."""


def stem_layers(stem: Stem, channels: int, size: Size) -> Iterator[StemLayer]:
    """The convolutions of a stem for images (height, width)."""
    if isinstance(stem, ConvStem):
        yield from _convolutions(stem, channels, size)
    else:
        yield from _resnet(stem, channels, size)


def count_stem_parameters(stem: Stem, channels: int) -> int:
    """Learned numbers."""
    return sum(
        layer.inputs * layer.outputs * layer.kernel**2 + 2 * layer.outputs * layer.normed
        for layer in stem_layers(stem, channels, (stem.stride, stem.stride))
    )


def count_stem_flops(stem: Stem, channels: int, size: Size) -> int:
    """Floating-point operations of its convolutions for one image."""
    layers = stem_layers(stem, channels, size)
    return sum(2 * layer.inputs * layer.outputs * layer.kernel**2 * layer.places for layer in layers)


def count_stem_kept(stem: Stem, channels: int, size: Size) -> int:
    """Numbers of one image that training keeps for the backward pass, besides the patches cut from the map."""
    kept = sum(layer.kept for layer in stem_layers(stem, channels, size))
    if isinstance(stem, ResNetStem) and stem.depths:  # the last ReLU keeps the map itself too
        kept += stem.features * (size[0] // stem.stride) * (size[1] // stem.stride)
    return kept


def largest_stem_map(stem: Stem, channels: int, size: Size) -> int:
    """Numbers of the largest output of a layer."""
    return max(layer.outputs * layer.places for layer in stem_layers(stem, channels, size))


def _convolutions(stem: ConvStem, channels: int, size: Size) -> Iterator[StemLayer]:
    height, width = size
    for outputs in stem.widths:
        places, halved = height * width, (height // 2) * (width // 2)
        # its input; after ReLU; where the largest were, in 8 bytes each
        yield StemLayer(channels, outputs, 3, places, False, places * (channels + outputs) + 2 * halved * outputs)
        channels, height, width = outputs, height // 2, width // 2


def _resnet(stem: ResNetStem, channels: int, size: Size) -> Iterator[StemLayer]:
    (height, width), outputs = size, stem.root_width
    padded = channels * (height + 5) * (width + 5)
    height, width = height // 2, width // 2
    before_pool, pooled = outputs * (height + 1) * (width + 1), outputs * height * width // 4
    yield StemLayer(
        channels, outputs, 7, height * width, True, padded + 2 * outputs * height * width + before_pool + 2 * pooled
    )
    height, width, inputs = height // 2, width // 2, outputs
    for stage, depth in enumerate(stem.depths):
        outputs, stride = 4 * stem.root_width * 2**stage, 1 if stage == 0 else 2
        inner, fine = outputs // 4, height * width
        places = (height // stride) * (width // stride)
        for block in range(depth):
            if block == 0:
                yield StemLayer(inputs, outputs, 1, places, True, outputs * places)
            around = inner * (height + 1) * (width + 1) if block == 0 and stride == 2 else 0
            # of each: before its norm, and after ReLU; of the block's output, the sum is the next one's input
            yield StemLayer(inputs, inner, 1, fine, True, inputs * fine + 2 * inner * fine + around)
            yield StemLayer(inner, inner, 3, places, True, 2 * inner * places)
            yield StemLayer(inner, outputs, 1, places, True, outputs * places)
            height, width, fine, inputs = height // stride, width // stride, places, outputs
            stride = 1
