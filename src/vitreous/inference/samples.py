"""The images that verify a conversion, calibrate int8 and judge it: always the same of the same data."""

from __future__ import annotations

import logging
import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.callbacks import Callbacks, NamedProgress
from vitreous.config.data import Preprocess
from vitreous.data.builtin import builtin_data
from vitreous.data.decode import ImageError
from vitreous.data.opening import choose_split, open_images
from vitreous.data.source import Data, Source
from vitreous.data.view import Sample, make_view
from vitreous.errors import UserError
from vitreous.inference.engine import InferenceModel, in_batches, open_in_torch
from vitreous.inference.matching import match_classes
from vitreous.model.predictions import predicted_class
from vitreous.storage.overwrite import real_path
from vitreous.weights.bundle import Bundle

log = logging.getLogger("vitreous")

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
    split: str = ""  # of the data
    note: str | None = None  # what to say beside an accuracy on them: that the model has seen some


class QuantizationImages(NamedTuple):
    """Disjoint images, each for one purpose."""

    calibration: Tensor  # (n, C, H, W) uint8, from which the ranges of activations are read
    control: LabelledViews  # decide whether int8 is refused, and which operations stay in float32
    held_out: LabelledViews  # decide nothing in the conversion, so that they measure its accuracy
    labelled: bool = True  # False: the labels are the network's own predictions in float32


def sample_views(
    source: Source,
    preprocess: Preprocess,
    count: int,
    labels: tuple[str, ...] = (),
    progress: NamedProgress = Callbacks.progress,
) -> LabelledViews:
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
        progress("reading images", len(kept), min(count, len(order)))
    if not views:
        raise UserError("none of the images can be read; give others.")
    return LabelledViews(torch.stack(views), torch.from_numpy(source.labels)[kept])


def builtin_views(preprocess: Preprocess) -> Tensor:
    """(n, C, H, W) uint8: some of the images that come with the package.

    These are grey. So that exchanged channels would be noticed, each channel shows another image.
    """
    views = sample_views(builtin_data().train, preprocess, BUILTIN_IMAGES).views
    return torch.stack([views[:, channel].roll(channel, dims=0) for channel in range(views.shape[1])], dim=1)


def split_images(
    bundle: Bundle,
    calibrate: str | Path | Data,
    verify: str | Path | Data | None,
    progress: NamedProgress = Callbacks.progress,
) -> QuantizationImages:
    """Images to calibrate int8 with, and labelled ones for control and held out: those to verify, else the val split.

    The test split is taken only if there is no other: what it decides, it can no longer measure. Of data with one split
    only, half of the images calibrate. No image is in two of the three. Without labels, or with classes that are not
    the model's, the network's own predictions are the labels: what is measured is how often int8 agrees with them.
    """
    data = open_images(calibrate)
    other = data if verify is None or _same_place(calibrate, verify) else open_images(verify)
    calibration = data.splits.get("train") or next(iter(data.splits.values()))
    split, judged = choose_split(other, "val" if verify is None and "val" in other.splits else None)
    rng = np.random.default_rng(SEED)
    if judged is calibration:
        order = rng.permutation(len(calibration))
        half = min(CALIBRATION_IMAGES, (len(order) + 1) // 2)
        calibration, judged = calibration.subset(order[:half]), judged.subset(order[half:])
    if len(judged) < 2:
        raise UserError("calibrate: too few images to calibrate with some and judge by others; give more.")
    order = rng.permutation(len(judged))
    third = min(CONTROL_IMAGES, math.ceil(len(order) / 3))
    labels, labelled = bundle.labels, _has_labels(judged, bundle.labels)
    if not labelled:
        log.info("int8: the images have no labels of the model's classes, so its agreement with float32 is measured.")
        labels = ()
    control = sample_views(judged.subset(order[:third]), bundle.preprocess, CONTROL_IMAGES, labels, progress)
    held_out = held_out_views(bundle, judged.subset(order[third:]), labels, split, progress)
    if not labelled:
        control, held_out = (_with_predictions(bundle, views, progress) for views in (control, held_out))
    calibrating = sample_views(calibration, bundle.preprocess, CALIBRATION_IMAGES, progress=progress).views
    return QuantizationImages(calibrating, control, held_out, labelled)


def _has_labels(source: Source, labels: tuple[str, ...]) -> bool:
    try:
        return bool((match_classes(source, labels, "all").source.labels >= 0).any())
    except UserError:  # classes that are not the model's
        return False


def _with_predictions(bundle: Bundle, images: LabelledViews, progress: NamedProgress) -> LabelledViews:
    engine = open_in_torch(bundle, "cpu").engine
    predict = partial(progress, "predicting in float32")
    return images._replace(labels=predicted_class(in_batches(engine.logits, images.views, engine.batch_size, predict)))


def held_out_views(
    model: Bundle | InferenceModel,
    source: Source,
    labels: tuple[str, ...],
    split: str,
    progress: NamedProgress = Callbacks.progress,
) -> LabelledViews:
    preprocess = model.preprocess if isinstance(model, Bundle) else model.engine.preprocess
    count = min(HELD_OUT_IMAGES, max(1, HELD_OUT_BYTES // (preprocess.channels * math.prod(preprocess.size))))
    note = None if model.seen_images is None else model.seen_images.overlap(source).sentence
    return sample_views(source, preprocess, count, labels, progress)._replace(split=split, note=note)


def _same_place(one: str | Path | Data, other: str | Path | Data) -> bool:
    if isinstance(one, Data) or isinstance(other, Data):
        return one is other
    return real_path(Path(one)) == real_path(Path(other))
