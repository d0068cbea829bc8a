"""A model converted for another runtime and verified to compute the same; in int8, verified to lose little accuracy.

Which images verify, calibrate and judge is chosen here too: always the same of the same data.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.callbacks import Callbacks, NamedProgress
from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig, model_to_json
from vitreous.data.builtin import builtin_data
from vitreous.data.decode import ImageError
from vitreous.data.opening import choose_split, open_images
from vitreous.data.source import Data, Source
from vitreous.data.view import Sample, make_view
from vitreous.errors import UserError
from vitreous.inference.engine import Engine, GraphEngine, InferenceModel, in_batches, open_in_torch
from vitreous.inference.engine_folder import EngineMetadata, Int8Accuracy
from vitreous.inference.engines import find_engine
from vitreous.inference.evaluation import match_classes
from vitreous.inference.graph import output_names, trace_graph
from vitreous.inference.speed import core_wait, describe_processor, describe_software, measure_speeds
from vitreous.inference.verify import TOLERANCE, compare_engines, first_difference
from vitreous.model.network import Network
from vitreous.model.predictions import is_right, predicted_class
from vitreous.storage.overwrite import GENERATOR, real_path
from vitreous.weights.bundle import Bundle, bundle_digest

MAX_NEAR_TIE_FRACTION = 0.05
"""The fraction of images for which a network that merges tokens may differ: of two pairs of tokens that are equally
similar to the last digits, another runtime may merge the other."""
MAX_INT8_DROP = 0.5  # points of accuracy that int8 may lose by default
MAX_INT8_DISAGREEMENT = 2.0
"""Points of images for which int8 may predict another class than float32, where accuracy cannot be measured: some
become wrong, others right."""
SECONDS_PER_MODULE = 0.1
"""To trace, convert and verify a network, in seconds of one core: 14.6 for the 164 modules of a ViT-Ti/16."""

SEED = 0
BUILTIN_IMAGES = 16
VERIFICATION_IMAGES = 200  # at most: on which a conversion is compared with the network
CALIBRATION_IMAGES = 300  # at most: NNCF's own default
CONTROL_IMAGES = 1000  # at most, and a third of the labelled images that calibrate nothing
HELD_OUT_IMAGES = 2000  # at most: with fewer, the interval of a small loss would be too wide for int8 to be chosen
HELD_OUT_BYTES = 300 * 10**6  # that held-out images may take when they are preprocessed: 2,000 of 224x224 pixels

log = logging.getLogger("vitreous")


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
    return _draw_views(source, preprocess, count, labels, progress)[0]


def _draw_views(
    source: Source, preprocess: Preprocess, count: int, labels: tuple[str, ...], progress: NamedProgress
) -> tuple[LabelledViews, list[int]]:
    """`sample_views`, and which images of the source they are."""
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
    return LabelledViews(torch.stack(views), torch.from_numpy(source.labels)[kept]), kept


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
    found, kept = _draw_views(source, preprocess, count, labels, progress)
    note = None if model.seen_images is None else model.seen_images.overlap(source.subset(kept)).sentence
    return found._replace(split=split, note=note)


def _same_place(one: str | Path | Data, other: str | Path | Data) -> bool:
    if isinstance(one, Data) or isinstance(other, Data):
        return one is other
    return real_path(Path(one)) == real_path(Path(other))


def conversion_seconds(network: Network) -> float:
    """About how long converting and verifying takes, with the cores as busy as they are just now."""
    return SECONDS_PER_MODULE * sum(1 for _ in network.modules()) * core_wait()


def convert_model(
    bundle: Bundle, to: str, views: torch.Tensor, progress: NamedProgress = Callbacks.progress
) -> InferenceModel:
    """The model in another runtime, in float32; refused if it does not compute the same for the views.

    views: (n, C, H, W) uint8.
    """
    kind = find_engine(to, "to")
    network, called = bundle.model.cpu(), bundle.path or "the model"
    config = network.config
    log.info(f"engine: converting the model for {kind.title}, about {conversion_seconds(network):.0f} s.")
    about = {  # for programs that know nothing of engine.json
        "labels": json.dumps(list(bundle.labels)),
        "preprocess": json.dumps(asdict(bundle.preprocess)),
        "generator": GENERATOR,
    }
    try:
        program = trace_graph(network, bundle.preprocess)
        graph = kind.convert(program, output_names(network), about)
        engine = kind.engine(graph, bundle.preprocess, "fp32")
        plain = open_in_torch(bundle, "cpu").engine
        found = compare_engines(plain, engine, views, classifier=bool(config.classes), progress=progress)
    except (RuntimeError, ValueError, NotImplementedError, torch.onnx.errors.OnnxExporterError) as error:
        if isinstance(error, UserError):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"{called}: {kind.title} cannot take this network ({reason}); use another runtime.") from error
    if found.within(MAX_NEAR_TIE_FRACTION if isinstance(config, ViTConfig) and config.merge else 0.0):
        metadata = EngineMetadata(
            runtime=to,
            precision="fp32",
            model=model_to_json(config),
            preprocess=bundle.preprocess,
            labels=bundle.labels,
            source=bundle_digest(bundle),
            verified=found,
            versions=describe_software(),
            processor=describe_processor(),
        )
        identity, seen = f"{metadata.source}-{to}-fp32", bundle.seen_images
        return InferenceModel(engine, config, bundle.labels, bundle.path, identity, metadata, seen)
    try:
        layer = first_difference(program, kind.intermediate, graph, views[found.worst : found.worst + 1])
    except RuntimeError:  # a graph that is wrong may also be one that cannot be run
        layer = None
    where = f"; the first layer that differs is {layer}" if layer else ""
    raise UserError(
        f"{called}: {kind.title} does not compute what the network does (of {found.images} images {found.equal} "
        f"have the same outputs, logits differ by up to {found.max_logit_difference:.2g} of the largest, allowed is "
        f"{TOLERANCE:g}){where}. Nothing was written; use another runtime, or report it."
    )


def default_max_drop(labelled: bool) -> float:
    """Points that int8 may lose where nobody says: of accuracy, or without labels of agreement with float32."""
    return MAX_INT8_DROP if labelled else MAX_INT8_DISAGREEMENT


def quantize_model(
    bundle: Bundle,
    converted: InferenceModel,
    images: QuantizationImages,
    max_drop: float | None = None,
    *,
    if_faster: bool = False,
    progress: NamedProgress = Callbacks.progress,
) -> InferenceModel:
    """The converted model in int8; if that costs more than `max_drop` points, the costliest operations stay in float32.

    Refused if even so more is lost on the control images.
    if_faster: refuse at once what loses too much and is not even faster than fp32 on this machine: the search for the
        costliest operations takes minutes.
    """
    if max_drop is None:
        max_drop = default_max_drop(images.labelled)
    kind = find_engine(converted.engine.name, "to")
    if "int8" not in kind.precisions:
        raise UserError(f"int8: {kind.title} has none here; export to openvino.")
    assert isinstance(converted.engine, GraphEngine)
    plain, control, called = open_in_torch(bundle, "cpu").engine, images.control, bundle.path or "the model"
    graph, transformer = converted.engine.graph, isinstance(bundle.model.config, ViTConfig)
    quantized = kind.quantize(graph, images.calibration, transformer=transformer, progress=progress)
    engine = kind.engine(quantized, bundle.preprocess, "int8")

    def measure(engine: Engine, views: LabelledViews) -> Int8Accuracy:
        before, after = (correct_predictions(one, views, progress) for one in (plain, engine))
        lost, gained = int((before & ~after).sum()), int((~before & after).sum())
        return Int8Accuracy(len(before), int(before.sum()), lost, gained, images.labelled)

    accuracy = measure(engine, control)
    if searched := accuracy.drop > max_drop:
        if if_faster:
            speeds = measure_speeds({"fp32": converted.engine, "int8": engine})
            if speeds["int8"] <= speeds["fp32"]:
                raise UserError(
                    f"{called}: int8 loses {accuracy.drop:.2f} points and is no faster here "
                    f"({speeds['int8']:.1f} images/s, {speeds['fp32']:.1f} in fp32); stay with fp32."
                )
        quantized = kind.quantize_with_accuracy_control(
            graph,
            images.calibration,
            transformer=transformer,
            control=control.views,
            labels=control.labels,
            max_drop=max_drop,
            progress=progress,
        )
        engine = kind.engine(quantized, bundle.preprocess, "int8")
        accuracy = measure(engine, control)
    if accuracy.drop > max_drop:
        raise UserError(
            f"{called}: int8 loses {accuracy.drop:.2f} points ({accuracy}), and max_drop allows {max_drop:g}. Nothing "
            "was written; allow more, or stay with fp32."
        )
    metadata = replace(
        converted.metadata,
        precision="int8",
        verified=compare_engines(plain, engine, images.held_out.views, classifier=True, progress=progress),
        accuracy=measure(engine, images.held_out),
        accuracy_control=searched,
    )
    identity = f"{metadata.source}-{engine.name}-int8"
    return replace(converted, engine=engine, identity=identity, conversion=metadata)


def correct_predictions(
    engine: Engine, images: LabelledViews, progress: NamedProgress = Callbacks.progress
) -> NDArray[np.bool_]:
    """(n,) whether the likeliest class of each image is its label."""
    counted = partial(progress, f"measuring accuracy, {engine.name}-{engine.precision}")
    return is_right(in_batches(engine.logits, images.views, engine.batch_size, counted), images.labels).numpy()
