"""The images that verify a conversion, calibrate int8 and judge it: always the same of the same data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.builtin import builtin_data
from vitreous.data.decode import ImageError
from vitreous.data.opening import choose_split, open_dataset
from vitreous.data.source import Data, Source
from vitreous.data.view import Sample, make_view
from vitreous.errors import UserError
from vitreous.inference.matching import match_classes
from vitreous.storage.overwrite import real_path
from vitreous.weights.bundle import Bundle

SEED = 0
BUILTIN_IMAGES = 16
VERIFICATION_IMAGES = 200  # at most: on which a conversion is compared with the network
CALIBRATION_IMAGES = 300  # at most: NNCF's own default
CONTROL_IMAGES = 1000  # at most, and a third of the labelled images that calibrate nothing
HELD_OUT_IMAGES = 2000  # at most: with fewer, the interval of a small loss would be too wide for int8 to be chosen
HELD_OUT_BYTES = 300 * 10**6  # that held-out images may take when they are preprocessed: 2,000 of 224x224 pixels


class LabelledViews(NamedTuple):
    """Preprocessed images (n, C, H, W) uint8 and their classes (n,) int64, -1 if not known."""

    views: Tensor
    labels: Tensor


class QuantizationImages(NamedTuple):
    """Disjoint images, each for one purpose."""

    calibration: Tensor  # (n, C, H, W) uint8, from which the ranges of activations are read
    control: LabelledViews  # decide whether int8 is refused, and which operations stay in float32
    held_out: LabelledViews  # decide nothing in the conversion, so that they measure its accuracy


def sample_views(source: Source, preprocess: Preprocess, count: int, labels: tuple[str, ...] = ()) -> LabelledViews:
    """At most `count` images of the source, chosen at random but always the same; unreadable ones are left out.

    labels: the model's, to which classes are matched by name.
    """
    if labels:
        source = match_classes(source, labels, "all").source
    order = np.random.default_rng(SEED).permutation(len(source))
    if labels:
        order = order[source.labels[order] >= 0]
    views: list[Tensor] = []
    kept: list[int] = []
    for index in order.tolist():
        if len(views) == count:
            break
        try:
            views.append(make_view(Sample(source, index), preprocess))
        except ImageError:
            continue
        kept.append(index)
    if not views:
        raise UserError("none of the images can be read; give others.")
    return LabelledViews(torch.stack(views), torch.from_numpy(source.labels)[kept])


def builtin_views(preprocess: Preprocess) -> Tensor:
    """(n, C, H, W) uint8: some of the images that come with the package.

    These are grey. So that exchanged channels would be noticed, each channel shows another image.
    """
    views = sample_views(builtin_data().train, preprocess, BUILTIN_IMAGES).views
    return torch.stack([views[:, channel].roll(channel, dims=0) for channel in range(views.shape[1])], dim=1)


def split_images(bundle: Bundle, calibrate: str | Path | Data, verify: str | Path | Data | None) -> QuantizationImages:
    """Images to calibrate int8 with, and labelled ones for control and held out: those to verify, else the val split.

    The test split is taken only if there is no other: what it decides, it can no longer measure. Of data with one split
    only, half of the images calibrate. No image is in two of the three.
    """
    data = open_dataset(calibrate)
    other = data if verify is None or _same_place(calibrate, verify) else open_dataset(verify)
    calibration = data.splits.get("train") or next(iter(data.splits.values()))
    labelled = choose_split(other, "val" if verify is None and "val" in other.splits else None)[1]
    rng = np.random.default_rng(SEED)
    if labelled is calibration:
        order = rng.permutation(len(calibration))
        half = min(CALIBRATION_IMAGES, (len(order) + 1) // 2)
        calibration, labelled = calibration.subset(order[:half]), labelled.subset(order[half:])
    if len(labelled) < 2:
        raise UserError("calibrate: too few images to calibrate with some and judge by others; give more.")
    order = rng.permutation(len(labelled))
    third = min(CONTROL_IMAGES, math.ceil(len(order) / 3))
    return QuantizationImages(
        sample_views(calibration, bundle.preprocess, CALIBRATION_IMAGES).views,
        sample_views(labelled.subset(order[:third]), bundle.preprocess, CONTROL_IMAGES, bundle.labels),
        held_out_views(labelled.subset(order[third:]), bundle.preprocess, bundle.labels),
    )


def held_out_views(source: Source, preprocess: Preprocess, labels: tuple[str, ...]) -> LabelledViews:
    count = min(HELD_OUT_IMAGES, max(1, HELD_OUT_BYTES // (preprocess.channels * math.prod(preprocess.size))))
    return sample_views(source, preprocess, count, labels)


def _same_place(one: str | Path | Data, other: str | Path | Data) -> bool:
    if isinstance(one, Data) or isinstance(other, Data):
        return one is other
    return real_path(Path(one)) == real_path(Path(other))
