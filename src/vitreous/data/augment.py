"""Views of single images: the one that is evaluated, and the random ones that are trained on.

A view is uint8 (C, H, W); `normalise` makes numbers for the model of a whole batch at once. Pixels are (h, w, C) uint8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vitreous.config.data import Augment, Interpolation, Preprocess, View
from vitreous.data.augment_ops import (
    ERASE_AREA,
    ERASE_RATIO,
    TRIES,
    box_sides,
    change_colours,
    fill_boxes,
    largest_sides,
    shift,
)
from vitreous.data.decode import OriginalSize, original_size
from vitreous.data.rng import generator

Pixels = NDArray[np.uint8]
BoxFractions = tuple[float, float, float, float]  # top, left, height, width, as fractions of height and width
Box = tuple[int, int, int, int]  # top, left, height, width

_PIL: dict[Interpolation, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# Of an image resized as a whole; of a strip 300 times as long as wide, at 224 pixels, only the centre is.
MAX_RESIZED_PIXELS = 2**24


class Cut(NamedTuple):
    """A view, and where in the image it was cut."""

    pixels: Tensor  # (C, H, W) uint8
    box: BoxFractions
    flipped: bool = False


def normalise(images: Tensor, preprocess: Preprocess) -> Tensor:
    """(x/255 - mean) / std: (B, C, H, W) of bytes, or of floats from 0 to 255, to float32."""
    scale, shift = (numbers.to(images.device) for numbers in scale_and_shift(preprocess))
    return images.to(torch.float32, copy=True).mul_(scale).add_(shift)  # in place: no second large tensor


def scale_and_shift(preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """(C, 1, 1) each: what a byte is multiplied by, and what is added, so that it is normalised."""
    mean = torch.tensor(preprocess.mean, dtype=torch.float64)[:, None, None]
    std = torch.tensor(preprocess.std, dtype=torch.float64)[:, None, None]
    return (1 / (255 * std)).float(), (-mean / std).float()


def eval_view(image: Image.Image, preprocess: Preprocess) -> Tensor:
    """The view that evaluation and prediction use, (C, H, W) uint8: resized, then the centre.

    To the bit what timm, torchvision and `transformers` make with Pillow of the same pixels. Of an image that was
    decoded at a smaller scale, it is where theirs would be. So all of the image is resized, although
    only the centre is kept: Pillow goes first along the axis that costs less, and for the centre alone that may be the
    other one, which rounds differently by ten levels and more.
    """
    height, width = preprocess.size
    how, full = _PIL[preprocess.interpolation], original_size(image)
    rows, columns, top, left = resized_and_centre(full.height, full.width, preprocess)
    if rows * columns > MAX_RESIZED_PIXELS:
        seen = image.resize((width, height), how, box=_within(full, seen_box(full.height, full.width, preprocess)))
    else:
        seen = image.resize((columns, rows), how, box=full.box).crop((left, top, left + width, top + height))
    return _to_tensor(np.asarray(seen))


def _within(full: OriginalSize, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """A box in pixels of the image in full, in those that were decoded."""
    left, top, right, bottom = full.box
    across, down = (right - left) / full.width, (bottom - top) / full.height
    return left + box[0] * across, top + box[1] * down, left + box[2] * across, top + box[3] * down


def seen_box(height: int, width: int, preprocess: Preprocess) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) in pixels of the part of an image that `eval_view` shows to the model."""
    rows, columns, top, left = resized_and_centre(height, width, preprocess)
    down, across = height / rows, width / columns
    right, bottom = (left + preprocess.size[1]) * across, (top + preprocess.size[0]) * down
    return left * across, top * down, min(right, width), min(bottom, height)


def seen_fractions(height: int, width: int, preprocess: Preprocess) -> BoxFractions:
    """What `eval_view` shows of an image of this height and width: top, left, height, width as fractions of it."""
    left, top, right, bottom = seen_box(height, width, preprocess)
    return top / height, left / width, (bottom - top) / height, (right - left) / width


def train_view(image: Image.Image | Pixels, preprocess: Preprocess, augment: Augment, rng: np.random.Generator) -> Cut:
    """A random view: crop and resize in one resampling, then policy, colours, mirror, erasing."""
    pixels = to_pixels(image)
    if augment.crop_scale is None:
        view, fractions = _shifted(pixels, preprocess, augment.pad, rng)
    else:
        height, width = pixels.shape[:2]
        box = random_box(height, width, augment.crop_scale, augment.crop_ratio, rng)
        view = resample(pixels, box, preprocess)
        fractions = (box[0] / height, box[1] / width, box[2] / height, box[3] / width)
    if augment.policy != "none":
        view = _to_tensor(np.asarray(apply_policy(to_image(view), preprocess, augment, rng)))
    if augment.jitter or augment.tint or augment.grey:
        wanted = ((augment.jitter, 3), (augment.tint, len(view)), (augment.grey, 1))
        uniforms = [rng.random((1, count if amount else 0)) for amount, count in wanted]
        view = change_colours(view[None], augment, *uniforms)[0].round().to(torch.uint8)
    flipped = augment.flip and rng.random() < 0.5
    if flipped:
        view = view.flip(2)
    if rng.random() < augment.erase:
        box = random_box(view.shape[1], view.shape[2], ERASE_AREA, ERASE_RATIO, rng)
        sides = tuple(np.array([side]) for side in box)
        view = fill_boxes(view[None], sides, np.ones(1, np.bool_), mean_colour(preprocess))[0]
    return Cut(view, fractions, flipped)


def cut_views(
    image: Image.Image | Pixels,
    preprocess: Preprocess,
    augment: Augment,
    views: Mapping[str, View],
    *,
    seed: int,
    epoch: int,
    index: int,
) -> dict[str, list[Cut]]:
    """The wanted views of an image by name, each with a random number stream of its own."""
    pixels = to_pixels(image)
    return {
        name: [train_view(pixels, prepared, varied, generator(seed, epoch, index, number)) for number in numbers]
        for name, numbers, prepared, varied in numbered_views(preprocess, augment, views)
    }


def numbered_views(
    preprocess: Preprocess, augment: Augment, views: Mapping[str, View]
) -> Iterable[tuple[str, range, Preprocess, Augment]]:
    """Of each kind of views its name, its numbers among all views of an image, and how it is prepared and varied."""
    first = 0
    for name, view in views.items():
        varied = augment if view.scale is None else replace(augment, crop_scale=view.scale)
        if view.count:
            yield name, range(first, first + view.count), replace(preprocess, size=view.size or preprocess.size), varied
        first += view.count


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> Box:
    """A box of a uniform fraction of the area and a log-uniform ratio of width to height, at a uniform place. One that
    does not fit is drawn again; after ten, the largest centred box of a permitted ratio."""
    for _ in range(TRIES):
        h, w, fits = box_sides(rng.random(), rng.random(), height, width, scale, ratio)
        if fits:
            return int(rng.random() * (height - h + 1)), int(rng.random() * (width - w + 1)), int(h), int(w)
    h, w = largest_sides(height, width, ratio)
    return (height - h) // 2, (width - w) // 2, h, w


def resample(pixels: Pixels, box: Box, preprocess: Preprocess) -> Tensor:
    """A box of an image at the input size, (C, H, W) uint8. torch's antialiased resampling of bytes: Pillow's numbers
    to within 2, in a third of the time."""
    top, left, height, width = box
    part = torch.from_numpy(pixels[top : top + height, left : left + width]).permute(2, 0, 1)[None]
    return resize(part, preprocess.size, preprocess.interpolation)[0]


def shrink(image: Image.Image, short: int) -> Pixels:
    """The image's pixels (h, w, C), resized so that the short side is `short` if it is longer."""
    pixels = to_pixels(image)
    height, width = pixels.shape[:2]
    if min(height, width) <= short:
        return pixels
    size = covering(height, width, (short, short))
    part = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return np.ascontiguousarray(resize(part, size, "bicubic")[0].permute(1, 2, 0).numpy())


def to_pixels(image: Image.Image | Pixels) -> Pixels:
    """(h, w, C) uint8, writable, of an image that is "RGB" or "L", or of such pixels."""
    pixels = np.array(image) if isinstance(image, Image.Image) else image
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def mean_colour(preprocess: Preprocess) -> Tensor:
    """(C,) uint8: what becomes zero when it is normalised, as nearly as a byte can say."""
    return torch.tensor([min(max(round(255 * value), 0), 255) for value in preprocess.mean], dtype=torch.uint8)


def _shifted(pixels: Pixels, preprocess: Preprocess, pad: int, rng: np.random.Generator) -> tuple[Tensor, BoxFractions]:
    """The view of evaluation, shifted by up to `pad` pixels each way, with the border reflected."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    view = eval_view(image, preprocess)
    y, x, h, w = seen_fractions(image.height, image.width, preprocess)
    _, height, width = view.shape
    pad = min(pad, height - 1, width - 1)
    if pad == 0:
        return view, (y, x, h, w)
    top, left = (int(rng.random() * (2 * pad + 1)) for _ in range(2))
    fractions = (y + h * (top - pad) / height, x + w * (left - pad) / width, h, w)
    by = torch.tensor([[top - pad, left - pad]])
    return shift(view[None], by, torch.zeros(1, dtype=torch.bool))[0], fractions


def resize(images: Tensor, size: tuple[int, int], how: Interpolation) -> Tensor:
    """(B, C, h, w) uint8 to (B, C, *size) uint8."""
    if images.shape[2:] == size:
        return images
    if how == "nearest":
        return F.interpolate(images, size, mode="nearest-exact")
    return F.interpolate(images, size, mode="bilinear" if how == "bilinear" else "bicubic", antialias=True)


def resized_and_centre(height: int, width: int, preprocess: Preprocess) -> Box:
    """(rows, columns) that an image is resized to, and (top, left) of the centre crop in it."""
    stretch = preprocess.resize.startswith("stretch")
    rows, columns = preprocess.resized if stretch else covering(height, width, preprocess.resized)
    down, across = rows - preprocess.size[0], columns - preprocess.size[1]
    if preprocess.resize.endswith("floor"):
        return rows, columns, down // 2, across // 2
    return rows, columns, round(down / 2), round(across / 2)


def covering(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in the image's proportions that cover `size` as tightly as they can. The side that is longer than
    need be is rounded as timm does it: down for a square, to the nearest for any other."""
    if size[0] != size[1]:
        ratio = min(height / size[0], width / size[1])
        return max(round(height / ratio), size[0]), max(round(width / ratio), size[1])
    if size[0] * width >= size[1] * height:
        return size[0], max(int(size[0] * width / height), size[1])
    return max(int(size[1] * height / width), size[0]), size[1]


def _to_tensor(pixels: Pixels) -> Tensor:
    """(h, w) or (h, w, C) to (C, h, w)."""
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order="C"))


def to_image(view: Tensor) -> Image.Image:
    """(C, h, w) to an image of Pillow's."""
    pixels = view.permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


# RandAugment and TrivialAugment, on one image of Pillow's. A change takes a strength from 0 (nothing,
# or least) to 1 (the most its policy allows). Those with a direction go either way. The fourteen changes and the ranges
# are the papers': Cubuk et al. 2020, and Müller and Hutter 2021 ("wide").
Fill = tuple[int, ...] | int
Change = Callable[[Image.Image, float, Fill], Image.Image]


def apply_policy(image: Image.Image, preprocess: Preprocess, augment: Augment, rng: np.random.Generator) -> Image.Image:
    """The image after RandAugment's `layers` changes, or TrivialAugment's one."""
    colour = tuple(mean_colour(preprocess).tolist())
    fill: Fill = colour if len(colour) == 3 else colour[0]
    trivial = augment.policy == "trivial"
    for _ in range(1 if trivial else augment.layers):
        change, usual, wide, signed = _POLICY_CHANGES[int(rng.random() * len(_POLICY_CHANGES))]
        strength = int(rng.random() * 31) / 30 if trivial else augment.magnitude / 10
        sign = -1 if signed and rng.random() < 0.5 else 1
        image = change(image, sign * strength * (wide if trivial else usual), fill)
    return image


def _affine(image: Image.Image, matrix: tuple[float, ...], fill: Fill) -> Image.Image:
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR, fillcolor=fill
    )


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Change:
    return lambda image, by, fill: kind(image).enhance(1 + by)


# The change; RandAugment's greatest value; TrivialAugment's; whether it goes either way.
_POLICY_CHANGES: tuple[tuple[Change, float, float, bool], ...] = (
    (lambda image, by, fill: image, 0.0, 0.0, False),
    (lambda image, by, fill: ImageOps.autocontrast(image), 0.0, 0.0, False),
    (lambda image, by, fill: ImageOps.equalize(image), 0.0, 0.0, False),
    (
        lambda i, by, fill: i.rotate(by, resample=Image.Resampling.BILINEAR, fillcolor=fill),
        30.0,
        135.0,
        True,
    ),  # degrees
    (lambda i, by, fill: _affine(i, (1, by, -by * i.height / 2, 0, 1, 0), fill), 0.3, 0.99, True),  # shear x
    (lambda i, by, fill: _affine(i, (1, 0, 0, by, 1, -by * i.width / 2), fill), 0.3, 0.99, True),  # shear y
    # Translations are of the side: 150 of 331 pixels, and 32 of 224.
    (lambda i, by, fill: _affine(i, (1, 0, by * i.width, 0, 1, 0), fill), 0.45, 0.14, True),
    (lambda i, by, fill: _affine(i, (1, 0, 0, 0, 1, by * i.height), fill), 0.45, 0.14, True),
    (lambda image, by, fill: ImageOps.posterize(image, 8 - round(by)), 4.0, 6.0, False),
    (lambda image, by, fill: ImageOps.solarize(image, round(256 * (1 - by))), 1.0, 1.0, False),
    (_enhanced(ImageEnhance.Brightness), 0.9, 0.99, True),
    (_enhanced(ImageEnhance.Color), 0.9, 0.99, True),
    (_enhanced(ImageEnhance.Contrast), 0.9, 0.99, True),
    (_enhanced(ImageEnhance.Sharpness), 0.9, 0.99, True),
)
