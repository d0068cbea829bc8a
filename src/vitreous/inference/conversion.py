"""A model converted for another runtime and verified to compute the same; in int8, verified to lose little accuracy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineName
from vitreous.config.model import ViTConfig, model_to_json
from vitreous.data.builtin import builtin_data
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.data.view import Sample, make_view
from vitreous.errors import UserError
from vitreous.inference.engine import Engine, open_in_torch
from vitreous.inference.engine_folder import EngineMetadata, Int8Accuracy
from vitreous.inference.graph import output_names, trace_graph
from vitreous.inference.matching import match_classes
from vitreous.inference.runtime import find_runtime
from vitreous.inference.speed import describe_processor, describe_software, measure_speeds
from vitreous.inference.verify import TOLERANCE, Agreement, compare_engines, first_difference, in_batches
from vitreous.weights.bundle import Bundle, bundle_digest

NEAR_TIES = 0.05
"""The fraction of images for which a network that merges tokens may differ: of two pairs of tokens that are equally
similar to the last digits, another runtime may merge the other."""
BUILTIN_IMAGES = 16
SEED = 0


class LabelledViews(NamedTuple):
    """Preprocessed images (n, C, H, W) uint8 and their classes (n,) int64, -1 if not known."""

    views: Tensor
    labels: Tensor


class QuantizationImages(NamedTuple):
    """Disjoint images, each for one purpose."""

    calibration: Tensor
    """(n, C, H, W) uint8, from which the ranges of activations are read."""
    control: LabelledViews
    """Decide whether int8 is refused, and which operations stay in float32."""
    held_out: LabelledViews
    """Decide nothing in the conversion, so that they measure its accuracy."""


@dataclass(frozen=True)
class ConvertedModel:
    """A model of another runtime, and its metadata."""

    model: Any
    metadata: EngineMetadata

    @cached_property
    def engine(self) -> Engine:
        """What computes it."""
        runtime = find_runtime(self.metadata.runtime, "engine")
        return runtime.engine(self.model, self.metadata.preprocess, self.metadata.precision)


def convert_model(bundle: Bundle, to: EngineName, views: Tensor) -> ConvertedModel:
    """The model in another runtime, in float32; refused if it does not compute the same for the views.

    views: (n, C, H, W) uint8.
    """
    runtime = find_runtime(to, "to")
    metadata = EngineMetadata(
        runtime=to,
        precision="fp32",
        model=model_to_json(bundle.model.config),
        preprocess=bundle.preprocess,
        labels=bundle.labels,
        source=bundle_digest(bundle),
        verified=Agreement(0, 0, 0, 0.0, 0.0, 0.0),
        versions=describe_software(),
        processor=describe_processor(),
    )
    network, called = bundle.model.cpu(), bundle.path or "the model"
    try:
        program = trace_graph(network, bundle.preprocess)
        converted = ConvertedModel(runtime.convert(program, output_names(network), metadata.in_graph), metadata)
        found = compare_engines(
            open_in_torch(bundle, "cpu").engine, converted.engine, views, classifier=bool(network.config.classes)
        )
    except (RuntimeError, ValueError, NotImplementedError, torch.onnx.errors.OnnxExporterError) as error:
        if isinstance(error, UserError):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"{called}: {runtime.title} cannot take this network ({reason}); use another runtime."
        ) from error
    merges = isinstance(network.config, ViTConfig) and network.config.merge
    if found.within(NEAR_TIES if merges else 0.0):
        return replace(converted, metadata=replace(metadata, verified=found))
    try:
        layer = first_difference(program, runtime.intermediate, converted.model, views[found.worst : found.worst + 1])
    except RuntimeError:  # a graph that is wrong may also be one that cannot be run
        layer = None
    where = f"; the first layer that differs is {layer}" if layer else ""
    raise UserError(
        f"{called}: {runtime.title} does not compute what the network does (of {found.images} images {found.equal} "
        f"have the same outputs, logits differ by up to {found.max_logit_difference:.2g} of the largest, allowed is "
        f"{TOLERANCE:g}){where}. Nothing was written; use another runtime, or report it."
    )


def quantize_model(
    bundle: Bundle,
    converted: ConvertedModel,
    images: QuantizationImages,
    max_drop: float,
    *,
    if_faster: bool = False,
) -> ConvertedModel:
    """The model in int8; if that costs more than `max_drop` points, the costliest operations stay in float32.

    Refused if even so more is lost on the control images.
    if_faster: refuse at once what loses too much and is not even faster than fp32 on this machine: the search for the
        costliest operations takes minutes.
    """
    runtime = find_runtime(converted.metadata.runtime, "to")
    if runtime.quantize is None or runtime.quantize_with_accuracy_control is None:
        raise UserError(f"int8: {runtime.title} has none here; export to openvino.")
    plain, control, called = open_in_torch(bundle, "cpu").engine, images.control, bundle.path or "the model"
    transformer = isinstance(bundle.model.config, ViTConfig)
    found = ConvertedModel(
        runtime.quantize(converted.model, images.calibration, transformer=transformer),
        replace(converted.metadata, precision="int8"),
    )
    accuracy = measure_int8(plain, found.engine, control)
    if accuracy.drop > max_drop:
        if if_faster:
            speeds = measure_speeds({"fp32": converted.engine, "int8": found.engine})
            if speeds["int8"] <= speeds["fp32"]:
                raise UserError(
                    f"{called}: int8 loses {accuracy.drop:.2f} points of accuracy and is no faster here "
                    f"({speeds['int8']:.1f} images/s, {speeds['fp32']:.1f} in fp32); stay with fp32."
                )
        model = runtime.quantize_with_accuracy_control(
            converted.model,
            images.calibration,
            transformer=transformer,
            control=control.views,
            labels=control.labels,
            max_drop=max_drop,
        )
        found = ConvertedModel(model, replace(found.metadata, accuracy_control=True))
        accuracy = measure_int8(plain, found.engine, control)
    if accuracy.drop > max_drop:
        raise UserError(
            f"{called}: int8 loses {accuracy.drop:.2f} points of accuracy on {accuracy.images:,} images "
            f"({accuracy.fp32:.2%} before, {accuracy.int8:.2%} after), and max_drop allows {max_drop:g}. Nothing was "
            "written; allow more, or stay with fp32."
        )
    verified = compare_engines(plain, found.engine, images.held_out.views, classifier=True)
    accuracy = measure_int8(plain, found.engine, images.held_out)
    return replace(found, metadata=replace(found.metadata, accuracy=accuracy, verified=verified))


def measure_int8(fp32: Engine, int8: Engine, images: LabelledViews) -> Int8Accuracy:
    """The accuracy of both on the same images."""
    before, after = correct_predictions(fp32, images), correct_predictions(int8, images)
    return Int8Accuracy(len(before), int(before.sum()), int((before & ~after).sum()), int((~before & after).sum()))


def correct_predictions(engine: Engine, images: LabelledViews) -> NDArray[np.bool_]:
    """(n,) whether the likeliest class of each image is its label."""
    logits = in_batches(engine.logits, images.views, engine.batch_size)
    correct: NDArray[np.bool_] = (logits.argmax(dim=1) == images.labels).numpy()
    return correct


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
