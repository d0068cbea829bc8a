"""Models that a person names, opened: as a network, or in the engine that was asked for or is fastest here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from vitreous.arguments import Precision
from vitreous.callbacks import Callbacks, NamedProgress
from vitreous.config.data import Preprocess
from vitreous.data.opening import choose_split, open_images
from vitreous.data.source import Data
from vitreous.distributed.world import find_device
from vitreous.errors import UserError
from vitreous.inference.conversion import (
    MAX_INT8_DROP,
    VERIFICATION_IMAGES,
    builtin_views,
    conversion_seconds,
    convert_model,
    quantize_model,
    sample_views,
    split_images,
)
from vitreous.inference.engine import InferenceModel, open_in_torch
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.engine_folder import EngineMetadata, is_engine, load_engine
from vitreous.inference.engines import ENGINES, OPENVINO, TORCH, Variant, find_engine
from vitreous.inference.memory_needs import check_inference_memory
from vitreous.inference.speed import measure_speeds
from vitreous.model.network import MergesTokens, require
from vitreous.weights.bundle import Bundle
from vitreous.weights.source import open_weights, with_preprocess

log = logging.getLogger("vitreous")

MIN_IMAGES_FOR_CACHE = 16  # for fewer it is not worth looking whether there is a converted form
MIN_IMAGES_FOR_HINT = 1000  # from here on somebody without a converted form wants to know that there is such a thing
OPENING_SECONDS = 1.0
"""About what it takes to open and compile a small converted model; of a larger one each image takes longer, too."""
SAVED_FRACTION = 1 / 3  # of PyTorch's time, which OpenVINO is expected to save
MEASURING_SECONDS = 5.0  # to measure both engines
CONVERSION_PAYS_SECONDS = 60.0  # PyTorch's time on idle cores above which converting a ViT-Ti/16 is expected to pay
MAX_LIKELY_INT8_DROP = 1.0
"""Points that int8 may lose, for `auto` to choose it, at the end of the 95 % interval of the paired difference."""


def open_model(
    model: str | Path | Bundle, preprocess: Preprocess | str | None = None, merge: int | None = None
) -> Bundle:
    """The model at a path, or one that is open already, with another preprocessing if asked for.

    merge: how many tokens it merges per block; None for as many as the model says.
    """
    if not isinstance(model, Bundle) and is_engine(Path(model)):
        raise UserError(
            f"{model}: an exported model, whose network cannot be looked into or trained; give the model that it was "
            "exported from. predict, evaluate, probe and bench take it as it is."
        )
    bundle = with_preprocess(model, preprocess) if isinstance(model, Bundle) else open_weights(model, preprocess)
    return bundle if merge is None else with_merge(bundle, merge)


def with_merge(bundle: Bundle, merge: int) -> Bundle:
    """The model with this many tokens merged per block; it shares its weights."""
    return replace(bundle, model=require(bundle.model, MergesTokens, f"merge={merge}").with_merge(merge))


def open_classifier(model: str | Path | Bundle, preprocess: Preprocess | str | None = None) -> Bundle:
    """The same, of a model that must have a classifier."""
    bundle = open_model(model, preprocess)
    check_classifier(bundle)
    return bundle


def check_classifier(bundle: Bundle) -> None:
    if not bundle.model.config.classes:
        raise UserError(
            f"{bundle.path or 'the model'}: it has no classifier and so no labels to give; fit one first: "
            "vitreous fit DATA --weights MODEL."
        )


def open_engine(
    model: str | Path | Bundle,
    *,
    engine: str = "auto",
    precision: Precision | None = None,
    preprocess: Preprocess | str | None = None,
    merge: int | None = None,
    device: str = "auto",
    images: int = 1,
    classifier: bool = True,
) -> InferenceModel:
    """The model, ready to be asked about this number of images.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    engine: "auto" takes the fastest that was verified for this model on this machine. If none was yet, that is PyTorch,
        unless there are enough images that converting the model first pays. The device, if it is no processor, is
        PyTorch's.
    merge: how many tokens the model merges per block; None for as many as it says.
    precision: None for the fastest that "auto" knows, and for fp32 of an engine that is named.
    classifier: refuse a model that has none.
    """
    if not isinstance(model, Bundle) and is_engine(Path(model)):
        if merge is not None:
            raise UserError(f"merge: how many tokens {model} merges is part of its graph; leave it out.")
        if preprocess is not None:
            raise UserError(
                f"preprocess: {model} has its own, which is part of its graph; export the model with another."
            )
        exported = load_engine(Path(model))
        runtime, made = exported.metadata.runtime, exported.metadata.precision
        if engine not in ("auto", runtime):
            raise UserError(f"engine={engine!r}: {model} was exported for {runtime}; leave the engine out.")
        if precision not in (None, made):
            raise UserError(f"precision={precision!r}: {model} was exported in {made}; leave it out.")
        if classifier and not exported.labels:
            raise UserError(f"{model}: it has no classifier and so no labels to give.")
        return exported
    bundle = open_model(model, preprocess, merge)
    if classifier:
        check_classifier(bundle)
    if engine == "auto" and precision not in (None, "fp32"):  # one engine has it, so speeds decide nothing
        engine = next(name for name, kind in ENGINES.items() if precision in kind.precisions)
    if engine == "auto":
        on_processor = find_device(device).type == "cpu"
        return _open_fastest(bundle, precision, images) if on_processor else open_in_torch(bundle, device)
    kind, variant = find_engine(engine, "engine"), Variant(engine, precision or "fp32")
    if variant.precision not in kind.precisions:
        have = ", ".join(name for name, other in ENGINES.items() if variant.precision in other.precisions)
        raise UserError(f"precision={precision!r}: there is none for {kind.title} here; choose the engine {have}.")
    if engine == TORCH.engine:
        return open_in_torch(bundle, device, variant.precision)
    cache = EngineCache(bundle)
    if (found := cache.get(variant)) is not None:
        return found
    if precision == "int8":
        raise UserError(
            f"precision='int8': {bundle.path or 'the model'} has not been quantized here; do it with some images: "
            "vitreous export MODEL OUT --to openvino --int8 --calibrate DATA."
        )
    return cache.put(convert_model(bundle, engine, builtin_views(bundle.preprocess)))


def _open_fastest(bundle: Bundle, precision: Precision | None, images: int) -> InferenceModel:
    """The fastest of those whose predictions are as good as the network's; precision: fp32, or None for any."""
    plain = open_in_torch(bundle, "cpu")
    if images < MIN_IMAGES_FOR_CACHE:
        return plain
    cache = EngineCache(bundle)
    speeds = cache.speeds
    if OPENVINO not in speeds and _conversion_pays(cache, plain, images):
        speeds = _convert(cache, plain) or speeds

    def seconds(variant: Variant) -> float:
        return images / speeds[variant] + (0.0 if cache.is_open(variant) else OPENING_SECONDS)

    for variant in sorted((one for one in speeds if precision in (None, one.precision)), key=seconds):
        if variant == TORCH:
            break
        cached = cache.get(variant)
        if cached is not None and is_trusted(cached.metadata):
            log.info(_reason(variant, speeds, cached.metadata))
            return cached
    if speeds:
        log.info(f"engine: PyTorch, the fastest here for {images:,} images.")
    elif images >= MIN_IMAGES_FOR_HINT and ENGINES["openvino"].missing:
        log.info("engine: PyTorch; OpenVINO may be faster here: pip install 'vitreous[openvino]', then vitreous bench.")
    elif images >= MIN_IMAGES_FOR_HINT:
        log.info("engine: PyTorch, as no other was prepared for this model; vitreous bench does that.")
    return plain


def is_trusted(metadata: EngineMetadata) -> bool:
    """Whether `auto` may choose it: of int8, whether held-out images show that it loses little accuracy.

    What they show is the paired difference: small by itself, and by the end of its 95 % interval still acceptable.
    """
    accuracy = metadata.accuracy
    return metadata.precision != "int8" or (
        accuracy is not None and accuracy.drop <= MAX_INT8_DROP and accuracy.max_likely_drop <= MAX_LIKELY_INT8_DROP
    )


def _convert(cache: EngineCache, plain: InferenceModel) -> dict[Variant, float] | None:
    """The speeds, after the model was converted for OpenVINO; None if that is impossible, for PyTorch can do it."""
    log.info("engine: there are many images, so OpenVINO is prepared once; it is cached.")
    try:
        if cache.get(OPENVINO) is None:
            cache.put(convert_model(cache.bundle, "openvino", builtin_views(cache.bundle.preprocess)))
    except UserError as error:
        log.info(f"engine: PyTorch, as the model cannot be converted ({str(error).rstrip('.')}).")
        return None
    return cache.measure(plain.engine)


def _reason(variant: Variant, speeds: Mapping[Variant, float], metadata: EngineMetadata) -> str:
    faster = (
        f"{speeds[variant] / speeds[TORCH]:.1f} times as fast as PyTorch here" if TORCH in speeds else "the fastest"
    )
    proof = "" if metadata.accuracy is None else f"; {metadata.accuracy}"
    return f"engine: {ENGINES[variant.engine].title} {variant.precision}, {faster}{proof}."


def _conversion_pays(cache: EngineCache, plain: InferenceModel, images: int) -> bool:
    """Whether OpenVINO is expected to save more time than converting, verifying and measuring take."""
    engine = plain.engine
    if ENGINES["openvino"].missing or images < 10 * engine.batch_size:
        return False
    try:
        check_inference_memory(plain.config, engine.preprocess, engine.batch_size)
    except UserError:  # it cannot be tried; with a smaller batch, PyTorch may work all the same
        return False
    saved = SAVED_FRACTION * images / measure_speeds({TORCH: engine}, rounds=1, seconds=0.2)[TORCH]
    if saved < MEASURING_SECONDS or cache.get(OPENVINO) is not None:
        return saved >= MEASURING_SECONDS
    return saved > MEASURING_SECONDS + conversion_seconds(cache.bundle.model)


def prepare_export(
    bundle: Bundle,
    to: str,
    *,
    calibrate: str | Path | Data | None = None,
    verify: str | Path | Data | None = None,
    max_drop: float | None = None,
    progress: NamedProgress = Callbacks.progress,
) -> InferenceModel:
    """The model in another runtime, verified; in int8 if there are images to calibrate with.

    It is also cached on this machine, with its speed, so that `auto` may take it.
    """
    images = views = None
    if calibrate is not None:
        check_classifier(bundle)
        images = split_images(bundle, calibrate, verify, progress)
        views = images.control.views[:VERIFICATION_IMAGES]
    elif verify is not None:
        source = choose_split(open_images(verify), None)[1]
        views = sample_views(source, bundle.preprocess, VERIFICATION_IMAGES, progress=progress).views
    cache = EngineCache(bundle)
    found = convert_model(bundle, to, builtin_views(bundle.preprocess) if views is None else views, progress)
    cache.put(found)
    if images is not None:
        found = quantize_model(bundle, found, images, max_drop, progress=progress)
        cache.put(found)
    cache.measure(open_in_torch(bundle, "cpu").engine, partial(progress, "measuring speeds"))
    return found
