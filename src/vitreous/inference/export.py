"""An export for another runtime: which images verify, calibrate and measure it, and what is cached of it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineName
from vitreous.data.opening import choose_split, open_dataset, open_images
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.inference.conversion import (
    SEED,
    ConvertedModel,
    QuantizationImages,
    builtin_views,
    convert_model,
    quantize_model,
    sample_views,
)
from vitreous.inference.engine import open_in_torch
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.opening import MAX_INT8_DROP, check_classifier
from vitreous.storage.overwrite import real_path
from vitreous.weights.bundle import Bundle

VERIFICATION_IMAGES = 200
"""At most: on which a conversion is compared with the network."""
CALIBRATION_IMAGES = 300
"""At most: NNCF's own default."""
CONTROL_IMAGES = 1000
"""At most, and a third of the labelled images that calibrate nothing."""
HELD_OUT_IMAGES = 2000
"""At most: with fewer, the interval of a small loss would be too wide for int8 to be chosen."""
HELD_OUT_BYTES = 300 * 10**6
"""That held-out images may take when they are preprocessed: 2,000 of 224x224 pixels."""


def prepare_export(
    bundle: Bundle,
    to: EngineName,
    *,
    calibrate: str | Path | Data | None = None,
    verify: str | Path | Data | None = None,
    max_drop: float | None = None,
) -> ConvertedModel:
    """The model in another runtime, verified; in int8 if there are images to calibrate with.

    It is also cached on this machine, with its speed, so that `auto` may take it.
    """
    images, views = None, None
    if calibrate is not None:
        check_classifier(bundle)
        images = split_images(bundle, calibrate, verify)
        views = images.control.views[:VERIFICATION_IMAGES]
    elif verify is not None:
        views = sample_views(choose_split(open_images(verify), None)[1], bundle.preprocess, VERIFICATION_IMAGES).views
    cache = EngineCache(bundle)
    found = convert_model(bundle, to, builtin_views(bundle.preprocess) if views is None else views)
    cache.put(found)
    if images is not None:
        found = quantize_model(bundle, found, images, MAX_INT8_DROP if max_drop is None else max_drop)
        cache.put(found)
    cache.measure(open_in_torch(bundle, "cpu").engine)
    return found


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
        sample_views(
            labelled.subset(order[third:]), bundle.preprocess, held_out_count(bundle.preprocess), bundle.labels
        ),
    )


def held_out_count(preprocess: Preprocess) -> int:
    """How many images are held out at most."""
    return min(HELD_OUT_IMAGES, max(1, HELD_OUT_BYTES // (preprocess.channels * math.prod(preprocess.size))))


def _same_place(one: str | Path | Data, other: str | Path | Data) -> bool:
    if isinstance(one, Data) or isinstance(other, Data):
        return one is other
    return real_path(Path(one)) == real_path(Path(other))
