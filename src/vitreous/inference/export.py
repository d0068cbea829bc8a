"""An export for another runtime: which images it is calibrated with and which judge it, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from vitreous.config.engine import EngineName
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.inference.choice import MAX_DROP, in_torch
from vitreous.inference.conversion import (
    CALIBRATED,
    JUDGED,
    SEED,
    Converted,
    LabelledViews,
    builtin_views,
    convert_model,
    quantise_model,
    sample_views,
)
from vitreous.inference.opening import check_classifier, choose_split, open_dataset, open_images
from vitreous.inference.prepared import PreparedEngines
from vitreous.storage.overwrite import real_path
from vitreous.weights.bundle import Bundle

VERIFIED = 200
"""Images, at most, on which a conversion is compared with the network."""


def prepare_export(
    bundle: Bundle,
    to: EngineName,
    *,
    calibrate: str | Path | Data | None = None,
    verify: str | Path | Data | None = None,
    max_drop: float | None = None,
) -> Converted:
    """The model in another runtime, verified; in int8 where there are images to calibrate with.

    It is also kept on this machine, with its speed, so that `auto` may take it.
    """
    calibration, judged = None, None
    if calibrate is not None:
        check_classifier(bundle)
        calibration, judged = split_images(bundle, calibrate, verify)
    elif verify is not None:
        judged = sample_views(choose_split(open_images(verify), None)[1], bundle.preprocess, VERIFIED)
    views = builtin_views(bundle.preprocess) if judged is None else judged.views[:VERIFIED]
    prepared, found = PreparedEngines(bundle), convert_model(bundle, to, views)
    prepared.put(found)
    if calibration is not None and judged is not None:
        found = quantise_model(bundle, found, calibration, judged, MAX_DROP if max_drop is None else max_drop)
        prepared.put(found)
    prepared.measure(in_torch(bundle, "cpu").engine)
    return found


def split_images(
    bundle: Bundle, calibrate: str | Path | Data, verify: str | Path | Data | None
) -> tuple[Tensor, LabelledViews]:
    """Views to calibrate int8 with, and labelled ones that judge it: those given to verify, else the val split.

    The test split judges only where there is no other: what it decides, it can no longer measure. Of data with one
    split only, which are to serve for both, they are never the same images.
    """
    data = open_dataset(calibrate)
    other = data if verify is None or _same_place(calibrate, verify) else open_dataset(verify)
    learned = data.splits.get("train") or next(iter(data.splits.values()))
    judged = choose_split(other, "val" if verify is None and "val" in other.splits else None)[1]
    if judged is learned:
        if len(learned) < 2:
            raise UserError("calibrate: one image cannot calibrate and judge; give more.")
        order = np.random.default_rng(SEED).permutation(len(learned))
        half = min(CALIBRATED, (len(order) + 1) // 2)
        learned, judged = learned.subset(order[:half]), judged.subset(order[half:])
    calibration = sample_views(learned, bundle.preprocess, CALIBRATED).views
    return calibration, sample_views(judged, bundle.preprocess, JUDGED, bundle.labels)


def _same_place(one: str | Path | Data, other: str | Path | Data) -> bool:
    if isinstance(one, Data) or isinstance(other, Data):
        return one is other
    return real_path(Path(one)) == real_path(Path(other))
