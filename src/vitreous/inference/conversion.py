"""A model converted for another runtime and verified to compute the same; in int8, verified to lose little accuracy."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.callbacks import Callbacks, NamedProgress
from vitreous.config.model import ViTConfig, model_to_json
from vitreous.errors import UserError
from vitreous.inference.engine import Engine, GraphEngine, InferenceModel, in_batches, open_in_torch
from vitreous.inference.engine_folder import EngineMetadata, Int8Accuracy
from vitreous.inference.engines import find_engine
from vitreous.inference.graph import output_names, trace_graph
from vitreous.inference.samples import LabelledViews, QuantizationImages
from vitreous.inference.speed import core_wait, describe_processor, describe_software, measure_speeds
from vitreous.inference.verify import TOLERANCE, compare_engines, first_difference
from vitreous.model.network import Network
from vitreous.model.predictions import is_right
from vitreous.storage.overwrite import GENERATOR
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

log = logging.getLogger("vitreous")


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
        max_drop = MAX_INT8_DROP if images.labelled else MAX_INT8_DISAGREEMENT
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
