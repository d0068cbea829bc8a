"""Hugging Face's preprocessor_config.json and our `Preprocess`, both ways."""

from __future__ import annotations

import math
from typing import Any

from vitreous.config.data import Interpolation, Preprocess
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.errors import UserError
from vitreous.weights.checkpoint import IMAGENET_MEAN, IMAGENET_STD, first_true

_RESAMPLE: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_SHORT_SIDE = ("BitImageProcessor", "CLIPImageProcessor")  # for them a single number as size is the short side


def from_processor(processor: dict[str, Any], config: ModelConfig, where: str) -> Preprocess:
    size, crop = processor.get("size") or {}, processor.get("crop_size")
    kind = str(processor.get("image_processor_type", processor.get("feature_extractor_type", "")))
    kind = kind.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor")  # as it was called before
    if isinstance(size, int):
        size = {"shortest_edge": size} if kind in _SHORT_SIDE else {"height": size, "width": size}
    if processor.get("do_center_crop") and crop is not None:
        seen = (crop, crop) if isinstance(crop, int) else (crop["height"], crop["width"])
    elif "height" in size:
        seen = (size["height"], size["width"])
    else:
        seen = (size.get("shortest_edge", config.image_size[0]),) * 2
    resized = (size["height"], size["width"]) if "height" in size else (size.get("shortest_edge", seen[0]),) * 2
    factor = processor.get("rescale_factor", 1 / 255)
    resample = processor.get("resample", 2 if kind.startswith("ViT") else 3)
    fraction = _crop_fraction(seen, resized)
    normalised = processor.get("do_normalize", True)
    unsupported = {
        f"size {size} with crop {crop}": fraction is None,
        "its own rule for small sizes": kind == "ConvNextImageProcessor",
        f"crop_pct {processor.get('crop_pct')}": processor.get("crop_pct") is not None,
        f"rescale_factor {factor}": abs(factor * 255 - 1) > 1e-6,
        "do_rescale false": processor.get("do_rescale") is False,
        "rescale_offset": bool(processor.get("rescale_offset")),
        "do_resize false": processor.get("do_resize") is False,
        f"resample {resample}": resample not in _RESAMPLE,
        "do_normalize without image_mean and image_std": normalised
        and not {"image_mean", "image_std"} <= set(processor),
    }
    if unknown := first_true(unsupported):
        raise UserError(f"{where}: preprocessor_config.json beside it asks for what cannot be done here ({unknown})")
    assert fraction is not None
    mean, std = (0.0,) * config.channels, (1.0,) * config.channels
    if normalised:
        mean, std = (_per_channel(processor[name], config.channels) for name in ("image_mean", "image_std"))
    if kind == "EfficientNetImageProcessor" and processor.get("include_top", True):  # it divides twice
        std = tuple(value * value for value in std)
    uneven = any((whole - part) % 2 for whole, part in zip(resized, seen, strict=True))
    return Preprocess(
        size=seen,
        mean=mean,
        std=std,
        crop=fraction,
        interpolation=_RESAMPLE[resample],
        resize=("stretch-floor" if uneven else "stretch") if "height" in size else "cover-floor",
    )


def _crop_fraction(seen: tuple[int, int], resized: tuple[int, int]) -> float | None:
    """The fraction for which seen / fraction, rounded down, is `resized` on both sides; None if there is none."""
    pairs = list(zip(seen, resized, strict=True))
    crop = min(size / side for size, side in pairs)
    for tried in (crop, math.nextafter(crop, 0)):
        if tried <= 1 and all(math.floor(size / tried) == side for size, side in pairs):
            return tried
    return None


def to_processor(preprocess: Preprocess, where: str) -> dict[str, Any]:
    """The processor that does the same, but for its crop, which may lie a pixel further to the upper left."""
    height, width = preprocess.size
    rows, columns = preprocess.resized
    cropped = preprocess.crop < 1
    if preprocess.resize.startswith("stretch"):
        kind = "DeiTImageProcessor" if cropped else "ViTImageProcessor"
        size = {"height": rows, "width": columns}
    elif rows != columns:
        raise UserError(
            f"{where}: Hugging Face's processors cannot resize to cover {rows}x{columns}; import the model with "
            "preprocess='resize=stretch', or at a square size."
        )
    else:
        kind, size, cropped = "BitImageProcessor", {"shortest_edge": rows}, True
    processor: dict[str, Any] = {
        "image_processor_type": kind,
        "do_resize": True,
        "size": size,
        "resample": next(number for number, name in _RESAMPLE.items() if name == preprocess.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
    if cropped:
        processor |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    if preprocess.channels == 3:
        processor["do_convert_rgb"] = True
    return processor


def default_processor(kind: str, config: ViTConfig) -> dict[str, Any]:
    """The usual processor of a family, for a folder without one."""
    height, width = config.image_size
    half = [0.5] * config.channels
    mean, std = (list(IMAGENET_MEAN), list(IMAGENET_STD)) if config.channels == 3 else (half, half)
    whole = {"height": height, "width": width}
    if kind == "vit":
        return {"size": whole, "resample": 2, "image_mean": half, "image_std": half}
    if kind == "vit_mae":
        return {"size": whole, "resample": 3, "image_mean": mean, "image_std": std}
    seen = {"height": 224, "width": 224} if config.image_size == (518, 518) else whole
    resized = {"height": round(seen["height"] / 0.875), "width": round(seen["width"] / 0.875)}
    if kind.startswith("dinov2") and seen["height"] == seen["width"]:
        resized = {"shortest_edge": resized["height"]}
    cropped = {"size": resized, "do_center_crop": True, "crop_size": seen, "resample": 3}
    return {**cropped, "image_mean": mean, "image_std": std}


def _per_channel(value: Any, channels: int) -> tuple[float, ...]:
    """One number per channel, from a list or from one number for all."""
    numbers = tuple(float(number) for number in value) if isinstance(value, list) else (float(value),)
    return numbers * channels if len(numbers) == 1 else numbers
