"""Which engine answers for a model: the one that was asked for, or the fastest that was verified for it here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.distributed.world import find_device
from vitreous.errors import UserError
from vitreous.inference.conversion import builtin_views, convert_model
from vitreous.inference.engine import Deployed, Engine, TorchEngine
from vitreous.inference.folder import About, is_engine, load_engine
from vitreous.inference.needs import check_inference_memory
from vitreous.inference.opening import check_classifier, open_model
from vitreous.inference.prepared import TORCH, PreparedEngines, Variant
from vitreous.inference.runtime import RUNTIMES, find_runtime
from vitreous.inference.speed import measure_speeds
from vitreous.weights.bundle import Bundle

log = logging.getLogger("vitreous")

FEW = 16
"""Images for which it is not worth looking what else there is."""
MANY = 1000
"""Images for which somebody without OpenVINO wants to know that there is such a thing."""
OPENING_SECONDS = 1.0
"""What it takes to open and compile a small converted model, about; of a larger one each image takes longer, too."""
MAX_DROP = 0.5
"""Points of accuracy that int8 may lose, where nobody says otherwise."""
ENOUGH = 200
"""Judged images below which int8 is not chosen of itself: `MAX_DROP` is then less than one image."""
OPENVINO = Variant("openvino", "fp32")
WORTH_SECONDS = 60.0
"""Of PyTorch's time, above which converting a model, some ten seconds, is expected to pay."""


def deploy(
    model: str | Path | Bundle,
    *,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    preprocess: Preprocess | str | None = None,
    merge: int | None = None,
    device: str = "auto",
    images: int = 1,
    classifier: bool = True,
) -> Deployed:
    """The model, ready to be asked about so many images.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    engine: "auto" takes the fastest that was verified for this model on this machine. Where none was yet, that is
        PyTorch, unless there are so many images that converting the model first pays.
    merge: how many tokens the model merges per block; None for as many as it does of itself.
    precision: None for the fastest that "auto" knows, and for fp32 of an engine that is named.
    classifier: refuse a model that has none.
    """
    if not isinstance(model, Bundle) and is_engine(Path(model)):
        if merge is not None:
            raise UserError(f"merge: how many tokens {model} merges is part of its graph; leave it out.")
        return _open_exported(Path(model), engine, precision, preprocess, classifier)
    bundle = open_model(model, preprocess, merge)
    if classifier:
        check_classifier(bundle)
    if engine == "torch":
        if precision == "int8":
            raise UserError("precision='int8': PyTorch computes in fp32 here; choose the engine openvino.")
        return in_torch(bundle, device)
    if engine == "auto" and precision == "int8":
        engine = "openvino"  # nobody else has it, so its speed decides nothing
    if engine == "auto":
        on_processor = find_device(device).type == "cpu"
        return _fastest(bundle, precision, images) if on_processor else in_torch(bundle, device)
    runtime, variant = find_runtime(engine, "engine"), Variant(engine, precision or "fp32")
    if precision == "int8" and runtime.quantise is None:
        raise UserError(f"precision='int8': there is none for {runtime.title} here; choose the engine openvino.")
    prepared = PreparedEngines(bundle)
    if (found := prepared.get(variant)) is not None:
        return found[0]
    if precision == "int8":
        raise _no_int8(bundle)
    return prepared.put(convert_model(bundle, engine, builtin_views(bundle.preprocess)))


def in_torch(bundle: Bundle, device: str = "auto") -> Deployed:
    """The model as it is, in PyTorch."""
    engine = TorchEngine(bundle.model.to(find_device(device)), bundle.preprocess, path=bundle.path)
    return Deployed(engine, bundle.model.config, bundle.labels, bundle.path, bundle.model)


def _open_exported(
    folder: Path,
    engine: EngineChoice,
    precision: Precision | None,
    preprocess: Preprocess | str | None,
    classifier: bool,
) -> Deployed:
    if preprocess is not None:
        raise UserError(f"preprocess: {folder} has its own, which is part of its graph; export the model with another.")
    found, about = load_engine(folder)
    if engine not in ("auto", about.runtime):
        raise UserError(f"engine={engine!r}: {folder} was exported for {about.runtime}; leave the engine out.")
    if precision not in (None, about.precision):
        raise UserError(f"precision={precision!r}: {folder} was exported in {about.precision}; leave it out.")
    if classifier and not found.labels:
        raise UserError(f"{folder}: it has no classifier and so no labels to give.")
    return found


def _no_int8(bundle: Bundle) -> UserError:
    return UserError(
        f"precision='int8': {bundle.path or 'the model'} has not been quantised here; do it with labelled images: "
        "vitreous export MODEL OUT --to openvino --int8 --calibrate DATA."
    )


def _fastest(bundle: Bundle, precision: Precision | None, images: int) -> Deployed:
    """The fastest of those whose answers are as good as the network's; precision: fp32, or None for any."""
    plain = in_torch(bundle, "cpu")
    if images < FEW:
        return plain
    prepared = PreparedEngines(bundle)
    speeds = prepared.speeds
    if OPENVINO not in speeds and _worth_converting(plain, images):
        speeds = _prepare(prepared, plain.engine) or speeds
    fitting = {variant: speed for variant, speed in speeds.items() if precision in (None, variant.precision)}
    for variant in sorted(fitting, key=lambda variant: _seconds(prepared, variant, fitting[variant], images)):
        if variant == TORCH:
            break
        kept = prepared.get(variant)
        if kept is not None and _is_trusted(kept[1]):
            log.info(_why(variant, speeds, kept[1]))
            return kept[0]
    _say_torch(speeds, images)
    return plain


def _is_trusted(about: About) -> bool:
    """Whether its answers are as good as the network's: of int8 enough images must have shown it."""
    judged = about.accuracy
    return judged is None or (judged.images >= ENOUGH and judged.drop <= MAX_DROP)


def _seconds(prepared: PreparedEngines, variant: Variant, speed: float, images: int) -> float:
    """How long it would take, opening included where that was not done yet."""
    ready = variant == TORCH or prepared.is_open(variant)
    return images / speed + (0.0 if ready else OPENING_SECONDS)


def _prepare(prepared: PreparedEngines, plain: Engine) -> dict[Variant, float] | None:
    """The speeds, after the model was converted for OpenVINO; None where that is impossible, for PyTorch can do it."""
    log.info("engine: there are many images, so the model is converted for OpenVINO once; it is kept.")
    try:
        if prepared.get(OPENVINO) is None:
            prepared.put(convert_model(prepared.bundle, "openvino", builtin_views(prepared.bundle.preprocess)))
    except UserError as error:
        log.info(f"engine: it cannot be converted, so PyTorch answers ({str(error).rstrip('.')}).")
        return None
    return prepared.measure(plain)


def _why(variant: Variant, speeds: Mapping[Variant, float], about: About) -> str:
    """One line: which engine was taken, and why."""
    faster = (
        f"{speeds[variant] / speeds[TORCH]:.1f} times as fast as PyTorch here" if TORCH in speeds else "the fastest"
    )
    proof = ""
    if (a := about.accuracy) is not None:
        proof = f"; of {a.images:,} images {a.int8:.1%} are right, {a.fp32:.1%} in float32"
    return f"engine: {RUNTIMES[variant.engine].title} {variant.precision}, {faster}{proof}."


def _say_torch(speeds: Mapping[Variant, float], images: int) -> None:
    """One line: why it is PyTorch, where somebody may wonder."""
    if speeds:
        log.info(f"engine: PyTorch, the fastest here for {images:,} images.")
    elif images >= MANY and RUNTIMES["openvino"].installed:
        log.info("engine: PyTorch, as no other was prepared for this model; vitreous bench does that.")
    elif images >= MANY:
        log.info("engine: PyTorch; OpenVINO may be faster here: pip install 'vitreous[openvino]', then vitreous bench.")


def _worth_converting(plain: Deployed, images: int) -> bool:
    engine = plain.engine
    if not RUNTIMES["openvino"].installed or images < 10 * engine.batch_size:
        return False
    try:
        check_inference_memory(plain.config, engine.preprocess, engine.batch_size)
    except UserError:  # it cannot be tried; asked about fewer at once, it may answer all the same
        return False
    return images / measure_speeds({TORCH: engine}, rounds=1, seconds=0.2)[TORCH] > WORTH_SECONDS
