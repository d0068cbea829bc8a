"""BiT in others' formats, both ways: Google's .npz, timm's `resnetv2_*_bit`, and Hugging Face's folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitreous.config.bit import BiTConfig, Root
from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.model.bit_family import PRESETS
from vitreous.weights.foreign import (
    Foreign,
    Raw,
    Shapes,
    blocks_of,
    check_agreement,
    shape_of,
    stages_of,
)
from vitreous.weights.google import kernels, write_npz
from vitreous.weights.huggingface import label_maps, stated_by_huggingface, write_folder
from vitreous.weights.mapping import Rule, pointwise, same, to_theirs
from vitreous.weights.processor import to_processor
from vitreous.weights.timm_layout import (
    UNKNOWN_TO_TIMM,
    TimmModel,
    arguments_of,
    check_stated,
    size_of_input,
    stated_by_timm,
)

if TYPE_CHECKING:
    from vitreous.model.resnet import BiT

_GOOGLE = "resnet/root_block/standardized_conv2d/kernel"
_TIMM = "stem.conv.weight"
_HUGGINGFACE = "embedder.convolution.weight"
_BLOCK_TENSORS = ("norm1", "norm2", "norm3", "conv1", "conv2", "conv3")
"""What a block has, which tells BiT from timm's other ResNets: those with two convolutions have no third norm."""


def read_bit(raw: Raw) -> Foreign | None:
    """A BiT by its tensors; None if it is not one."""
    if _GOOGLE in raw.tensors:
        return _read_google(raw)
    if _TIMM in raw.tensors:
        return _read_timm(raw)
    root = next((name for name in raw.tensors if name.endswith(_HUGGINGFACE)), None)
    return None if root is None else _read_huggingface(raw, root.removesuffix(_HUGGINGFACE))


def usual_preprocess(c: BiTConfig) -> Preprocess:
    """Values from -1 to 1, bilinear; a crop of 0.875 up to 224 pixels, else all, as timm measures Google's weights."""
    flat = (0.5,) * c.channels
    crop = 0.875 if max(c.image_size) <= 224 else 1.0
    return Preprocess(size=c.image_size, mean=flat, std=flat, crop=crop, interpolation="bilinear")


def _config(
    root: Sequence[int], depths: Sequence[int], classes: int, size: tuple[int, int] | None, where: str
) -> BiTConfig:
    """root: its kernels' shape (D, C, k, k)."""
    width, channels, kernel, _ = root
    roots: dict[int, Root] = {7: "7x7", 3: "3x3"}
    if kernel not in roots:
        raise UserError(
            f"{where}: its first kernels are of {kernel} pixels, and a BiT's are of 7 or 3; give another file."
        )
    small = (32, 32) if kernel == 3 else (224, 224)
    return BiTConfig(tuple(depths), width / 64, roots[kernel], size or small, channels, classes)


def _depths(shapes: Shapes, before: str, after: str, where: str) -> list[int]:
    """Blocks of each stage. before, after: what stands around a stage's number, and around a block's."""
    stages = range(stages_of(shapes, before, ".", where))
    return [blocks_of(shapes, f"{before}{stage}.{after}", ".") for stage in stages]


# Google


def _read_google(raw: Raw) -> Foreign:
    shapes = raw.shapes
    height, width, inputs, outputs = shape_of(shapes, _GOOGLE, 4, raw.where)
    stages = range(1, stages_of(shapes, "resnet/block", "/", raw.where))  # they count from 1
    depths = [blocks_of(shapes, f"resnet/block{stage}/unit", "/") - 1 for stage in stages]
    head = "resnet/head/conv2d/bias"
    classes = shape_of(shapes, head, 1, raw.where)[0] if head in shapes else 0
    config = _config((outputs, inputs, height, width), depths, classes, raw.size, raw.where)
    return Foreign("Google", config, _google_rules(config), usual_preprocess(config), assumed=True)


def write_google_bit(out: str | Path, model: BiT, preprocess: Preprocess, labels: Sequence[str], info: Any) -> Path:
    """An .npz as Google publishes them. It holds tensors alone: labels and preprocessing are not in it."""
    return write_npz(Path(out), to_theirs(model.state_dict(), _google_rules(model.config)))


def _google_rules(c: BiTConfig) -> list[Rule]:
    def norm(ours: str, theirs: str) -> list[Rule]:
        return [same(f"{ours}.weight", f"{theirs}/gamma"), same(f"{ours}.bias", f"{theirs}/beta")]

    head = Rule(
        "head.fc.weight",
        ("resnet/head/conv2d/kernel",),  # (1, 1, D, K)
        lambda w: (w.T[None, None],),
        lambda parts: parts[0][0, 0].T,
    )
    rules = [kernels("stem.conv.weight", _GOOGLE), *norm("norm", "resnet/group_norm")]
    rules += [head, same("head.fc.bias", "resnet/head/conv2d/bias")]
    for stage, depth in enumerate(c.depths):
        for number in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{number}", f"resnet/block{stage + 1}/unit{number + 1:02d}"
            for layer, letter in enumerate("abc", start=1):
                rules += norm(f"{ours}.norm{layer}", f"{theirs}/{letter}/group_norm")
                rules.append(kernels(f"{ours}.conv{layer}.weight", f"{theirs}/{letter}/standardized_conv2d/kernel"))
            projection = f"{theirs}/a/proj/standardized_conv2d/kernel"
            rules.append(kernels(f"{ours}.downsample.conv.weight", projection))
    return rules


# timm


def _read_timm(raw: Raw) -> Foreign | None:
    shapes = raw.shapes
    block = {f"stages.0.blocks.0.{part}.weight" for part in _BLOCK_TENSORS}
    if not block | {"norm.weight"} <= set(shapes) or any(name.endswith(".running_mean") for name in shapes):
        return None  # another ResNet: of two convolutions, with batch norm, or a hybrid's
    root = shape_of(shapes, _TIMM, 4, raw.where)
    classes = shape_of(shapes, "head.fc.bias", 1, raw.where)[0] if "head.fc.bias" in shapes else 0
    size = raw.size or size_of_input(raw)
    config = _config(root, _depths(shapes, "stages.", "blocks.", raw.where), classes, size, raw.where)
    check_stated(raw, arguments_of(raw, _ARGUMENTS), config, config.features)
    return stated_by_timm(raw, Foreign("timm", config, _TIMM_RULES, usual_preprocess(config), assumed=True))


_ARGUMENTS = {
    **dict.fromkeys(("in_chans", "num_classes"), int),
    **dict.fromkeys(("drop_rate", "drop_path_rate"), float),
    "global_pool": Literal["avg"],
}
_TIMM_RULES = (pointwise("head.fc.weight", "head.fc.weight"),)


def bit_in_timm(c: BiTConfig) -> TimmModel:
    """A BiT in timm's words: its names fix depth and width."""
    name = f"resnetv2_{c.depth}x{c.width:g}_bit"
    odd = {
        "a 3x3 root block without pooling": c.root != "7x7",
        f"a BiT ResNet with stages of {', '.join(map(str, c.depths))} blocks at {c.width:g} times the width": not any(
            (size["depths"], size["width"]) == (c.depths, c.width) for size in PRESETS.values()
        ),
    }
    missing = next((what for what, holds in odd.items() if holds), None)
    return TimmModel(
        features=c.features,
        architecture=UNKNOWN_TO_TIMM if missing else name,
        arguments={"in_chans": c.channels} if c.channels != 3 and not missing else {},
        missing=missing,
        global_pool="avg",
        first_conv="stem.conv",
        classifier="head.fc",
        rules=_TIMM_RULES,
    )


# Hugging Face


def _read_huggingface(raw: Raw, prefix: str) -> Foreign | None:
    shapes, said = raw.shapes, raw.config or {}
    if f"{prefix}encoder.stages.0.layers.0.norm1.weight" not in shapes:
        return None
    odd = {
        f"layer_type {said.get('layer_type')!r}": said.get("layer_type", "preactivation") != "preactivation",
        f"hidden_act {said.get('hidden_act')!r}": said.get("hidden_act", "relu") != "relu",
        f"global_padding {said.get('global_padding')!r}": said.get("global_padding") is not None,
        "embedding_dynamic_padding": bool(said.get("embedding_dynamic_padding")),
        f"num_groups {said.get('num_groups')}": said.get("num_groups", 32) != 32,
        f"output_stride {said.get('output_stride')}": said.get("output_stride", 32) < 32,
    }
    if reason := next((what for what, holds in odd.items() if holds), None):
        raise UserError(
            f"{raw.where}: config.json beside it asks for {reason}, which no BiT here has; give another model."
        )
    root = shape_of(shapes, prefix + _HUGGINGFACE, 4, raw.where)
    head = "classifier.1.bias"
    classes = shape_of(shapes, head, 1, raw.where)[0] if head in shapes else 0
    depths = _depths(shapes, f"{prefix}encoder.stages.", "layers.", raw.where)
    config = _config(root, depths, classes, raw.size, raw.where)
    check_agreement(raw.where, {name: (said[name], fact) for name, fact in _facts(config).items() if name in said})
    rules = _huggingface_rules(config, prefix)
    found = Foreign("Hugging Face", config, rules, usual_preprocess(config), assumed=True)
    found = stated_by_huggingface(raw, found)
    return replace(found, config=replace(config, image_size=raw.size or found.preprocess.size))


def _facts(c: BiTConfig) -> dict[str, Any]:
    """What their config.json says and the tensors show too."""
    return {"num_channels": c.channels, "embedding_size": c.root_width, "depths": list(c.depths)}


def _huggingface_rules(c: BiTConfig, prefix: str) -> list[Rule]:
    names = {"stem.conv.weight": prefix + _HUGGINGFACE}
    for part in ("weight", "bias"):
        names |= {f"norm.{part}": f"{prefix}norm.{part}", f"head.fc.{part}": f"classifier.1.{part}"}
    for stage, depth in enumerate(c.depths):
        for number in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{number}", f"{prefix}encoder.stages.{stage}.layers.{number}"
            tensors = ["downsample.conv.weight", *(f"conv{layer}.weight" for layer in (1, 2, 3))]
            tensors += [f"norm{layer}.{part}" for layer in (1, 2, 3) for part in ("weight", "bias")]
            names |= {f"{ours}.{tensor}": f"{theirs}.{tensor}" for tensor in tensors}
    return [same(ours, theirs) for ours, theirs in names.items()]


def write_huggingface_bit(
    out: str | Path, model: BiT, preprocess: Preprocess, labels: Sequence[str], info: Any
) -> Path:
    """A folder that `from_pretrained` opens, model and image processor."""
    out, c = Path(out), model.config
    if c.root != "7x7":
        raise UserError(f"{out}: Hugging Face's BiT has no word for a 3x3 root block; export to google.")
    described = {
        "architectures": ["BitForImageClassification" if c.classes else "BitModel"],
        "model_type": "bit",
        **_facts(c),
        "hidden_sizes": list(c.stage_widths),
        "layer_type": "preactivation",
        "hidden_act": "relu",
        "global_padding": None,
        "num_groups": 32,
        "width_factor": 1,
        "dtype": "float32",
    }
    tensors = to_theirs(model.state_dict(), _huggingface_rules(c, "bit." if c.classes else ""))
    return write_folder(out, described | label_maps(labels), to_processor(preprocess, str(out)), tensors)
