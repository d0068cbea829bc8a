"""A model converted for another runtime, with the proof that its answers stayed what they were."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineName
from vitreous.config.model import ViTConfig, model_to_json
from vitreous.data.builtin import builtin_data
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.data.view import Sample, make_view
from vitreous.errors import UserError
from vitreous.inference.engine import Engine, TorchEngine
from vitreous.inference.folder import About, Accuracy
from vitreous.inference.graph import output_names, trace_graph
from vitreous.inference.matching import match_classes
from vitreous.inference.runtime import Backend, find_runtime
from vitreous.inference.speed import describe_machine, describe_software, measure_speeds
from vitreous.inference.verify import TOLERANCE, Agreement, agreement, batched, first_difference
from vitreous.model.family import called, described
from vitreous.weights.bundle import Bundle, bundle_digest
from vitreous.weights.markdown import code

CALIBRATED = 300
"""Images from which int8 learns the ranges of activations: NNCF's own default."""
JUDGED = 1000
"""Labelled images, at most, on which int8 must be as good."""
NEAR_TIES = 0.05
"""The share of images for which a network that merges tokens may differ: of two pairs of tokens that are alike to the
last digits, another runtime may merge the other."""
BUILTIN = 16
"""Images of the package's own, where none were given to verify with."""
SEED = 0


class LabelledViews(NamedTuple):
    """What a model sees of some images, (n, C, H, W) uint8, and their classes (n,) int64, -1 where not known."""

    views: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Converted:
    """A model of another runtime, and what is to be written about it."""

    model: Any
    about: About

    @cached_property
    def engine(self) -> Engine:
        """What answers for it."""
        runtime = find_runtime(self.about.runtime, "engine")
        return runtime.engine(self.model, self.about.preprocess, self.about.precision)

    @property
    def accuracy(self) -> Accuracy:
        """What int8 costs."""
        assert self.about.accuracy is not None
        return self.about.accuracy


def convert_model(bundle: Bundle, to: EngineName, views: Tensor) -> Converted:
    """The model in another runtime, in float32; refused if it does not say the same of all the views.

    views: (n, C, H, W) uint8.
    """
    runtime = find_runtime(to, "to")
    about = About(
        runtime=to,
        precision="fp32",
        model=model_to_json(bundle.model.config),
        preprocess=bundle.preprocess,
        labels=bundle.labels,
        source=bundle_digest(bundle),
        verified=Agreement(0, 0, 0, 0.0, 0.0, 0.0),
        versions=describe_software(),
        machine=describe_machine(),
    )
    network = bundle.model.cpu()
    try:
        program = trace_graph(network, bundle.preprocess)
        converted = Converted(runtime.convert(program, output_names(network), about.facts), about)
        found = agreement(_in_torch(bundle), converted.engine, views, classifier=bool(network.config.classes))
    except (RuntimeError, ValueError, NotImplementedError, torch.onnx.errors.OnnxExporterError) as error:
        if isinstance(error, UserError):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"{bundle.path or 'the model'}: {runtime.title} cannot take this network ({reason}); use another runtime."
        ) from error
    merges = isinstance(network.config, ViTConfig) and network.config.merge
    if not found.close(but=NEAR_TIES if merges else 0.0):
        worst = views[found.worst : found.worst + 1]
        raise _refused(bundle, runtime, found, _first_difference(program, runtime, converted.model, worst))
    return replace(converted, about=replace(about, verified=found))


def _in_torch(bundle: Bundle) -> TorchEngine:
    return TorchEngine(bundle.model, bundle.preprocess, path=bundle.path)


def _first_difference(program: ExportedProgram, runtime: Backend, model: Any, views: Tensor) -> str | None:
    """The layer that differs first, where it can be found: a graph that is wrong may also be one that cannot be run."""
    try:
        return first_difference(program, runtime.intermediate, model, views)
    except RuntimeError:
        return None


def _refused(bundle: Bundle, runtime: Backend, found: Agreement, layer: str | None) -> UserError:
    where = f"; the first layer that differs is {layer}" if layer else ""
    return UserError(
        f"{bundle.path or 'the model'}: {runtime.title} does not compute what the network does (of {found.images} "
        f"images {found.equal} have the same answer, scores differ by up to {found.worst_score:.2g} of the "
        f"largest, allowed is {TOLERANCE:g}){where}. Nothing was written; use another runtime, or report it."
    )


def quantise_model(
    bundle: Bundle,
    converted: Converted,
    calibration: Tensor,
    judged: LabelledViews,
    max_drop: float,
    *,
    to_be_faster: bool = False,
) -> Converted:
    """The same in int8; where plain quantisation costs more than `max_drop` points, the costliest parts stay in fp32.

    calibration: (n, C, H, W) uint8, from which ranges are read; judged: labelled images, on which accuracy before and
    after is measured. Refused if even so more is lost.
    to_be_faster: refuse at once what loses too much and is not even faster than fp32 on this machine: to find the
    costliest parts takes minutes.
    """
    runtime = find_runtime(converted.about.runtime, "to")
    if runtime.quantise is None or runtime.quantise_within is None:
        raise UserError(f"int8: {runtime.title} has none here; export to openvino.")
    transformer = isinstance(bundle.model.config, ViTConfig)
    model = runtime.quantise(converted.model, calibration, transformer=transformer)
    found = _judged(bundle, converted, model, judged, accuracy_aware=False)
    if found.accuracy.drop > max_drop:
        if to_be_faster:
            _check_faster(bundle, converted, found)
        model = runtime.quantise_within(
            converted.model,
            calibration,
            transformer=transformer,
            judged=judged.views,
            labels=judged.labels,
            max_drop=max_drop,
        )
        found = _judged(bundle, converted, model, judged, accuracy_aware=True)
    if (a := found.accuracy).drop > max_drop:
        raise UserError(
            f"{bundle.path or 'the model'}: int8 loses {a.drop:.2f} points of accuracy on {a.images:,} images "
            f"({a.fp32:.2%} before, {a.int8:.2%} after), and max_drop allows {max_drop:g}. Nothing was written; allow "
            "more, or stay with fp32."
        )
    return found


def _check_faster(bundle: Bundle, converted: Converted, quantised: Converted) -> None:
    speeds = measure_speeds({one.about.precision: one.engine for one in (converted, quantised)})
    if speeds["int8"] <= speeds["fp32"]:
        raise UserError(
            f"{bundle.path or 'the model'}: int8 loses {quantised.accuracy.drop:.2f} points of accuracy and is no "
            f"faster here ({speeds['int8']:.1f} images a second, {speeds['fp32']:.1f} in fp32); stay with fp32."
        )


def _judged(
    bundle: Bundle, converted: Converted, model: Any, judged: LabelledViews, *, accuracy_aware: bool
) -> Converted:
    """A quantised model with its accuracy, and that of the network, written down."""
    found = Converted(model, replace(converted.about, precision="int8", accuracy_aware=accuracy_aware))
    plain, count = _in_torch(bundle), len(judged.labels)
    right = [count_right(engine, judged) for engine in (plain, found.engine)]
    accuracy = Accuracy(count, right[0] / count, right[1] / count)
    verified = agreement(plain, found.engine, judged.views, classifier=True)
    return replace(found, about=replace(found.about, accuracy=accuracy, verified=verified))


def count_right(engine: Engine, judged: LabelledViews) -> int:
    """How many of the labelled images an engine names rightly."""
    scores = batched(engine.scores, judged.views, engine.batch_size)
    return int((scores.argmax(dim=1) == judged.labels).sum())


def sample_views(source: Source, preprocess: Preprocess, count: int, labels: tuple[str, ...] = ()) -> LabelledViews:
    """Views of so many images of the source, chosen at random but always the same; all, where it has no more.

    labels: the model's, to which classes are matched by name. What cannot be read is left out.
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
    """(n, C, H, W) uint8: what a model sees of some of the images that come with the package.

    These are grey. So that channels that were exchanged would be noticed, each channel shows another image.
    """
    views = sample_views(builtin_data().train, preprocess, BUILTIN).views
    return torch.stack([views[:, channel].roll(channel, dims=0) for channel in range(views.shape[1])], dim=1)


def engine_card(bundle: Bundle, about: About) -> str:
    """README.md of an exported model, in Markdown."""
    runtime = find_runtime(about.runtime, "to")
    height, width = about.preprocess.size
    checked, precision = about.verified, "float32" if about.precision == "fp32" else "int8"
    proof = (
        f"Beside the network in PyTorch, on {checked.images:,} images: {checked.same_label:,} have the same label, "
        f"{checked.equal:,} the same numbers up to rounding. Probabilities differ by at most "
        f"{checked.worst_probability:.2g}, representations by {checked.worst_representation:.2g} of the largest number."
    )
    gives = (
        "probabilities, scores and a representation" if about.labels else "a representation, for it has no classifier,"
    )
    lines = [
        f"# {called(bundle.model.config)} for {runtime.title}, {precision}",
        "",
        f"{described(bundle.model.config)}. In: uint8 (count, {about.preprocess.channels}, {height}, {width}), "
        f"not normalised. Out: {gives}.",
        "",
        proof,
    ]
    if about.accuracy is not None:
        a = about.accuracy
        lines += [
            "",
            f"Accuracy on {a.images:,} images: {a.fp32:.2%} in float32, {a.int8:.2%} in int8"
            + (", with the costliest operations left in float32." if about.accuracy_aware else "."),
        ]
    if about.labels:
        some = ", ".join(map(code, about.labels[:20])) + (", ..." if len(about.labels) > 20 else "")
        lines += ["", f"{len(about.labels)} classes: {some}."]
    lines += [
        "",
        "    vitreous predict FOLDER_OF_THIS_FILE image.jpg",
        "",
        "Class names and preprocessing are in `engine.json` and in the model file's own metadata. `manifest.json` has "
        "the SHA-256 of every file; loading checks it.",
        "",
    ]
    return "\n".join(lines)
