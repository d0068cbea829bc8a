"""EfficientNet in others' formats, both ways: timm's `tf_efficientnet_*` and `efficientnet_*`, and Hugging Face's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitreous.config.data import Preprocess
from vitreous.config.efficientnet import EfficientNetConfig, Padding
from vitreous.errors import UserError
from vitreous.model.efficientnet_family import SIZES, size_of
from vitreous.weights.foreign import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Foreign,
    Raw,
    Shapes,
    blocks_of,
    check_agreement,
    shape_of,
    sides,
)
from vitreous.weights.huggingface import label_maps, stated_by_huggingface, write_folder
from vitreous.weights.mapping import Rule, same, to_theirs
from vitreous.weights.processor import to_processor
from vitreous.weights.timm_layout import (
    UNKNOWN_TO_TIMM,
    TimmModel,
    architecture_of,
    arguments_of,
    check_stated,
    size_of_input,
    stated_by_timm,
)

if TYPE_CHECKING:
    from vitreous.model.efficientnet import EfficientNet

_TIMM = "conv_stem.weight"
_HUGGINGFACE = "embeddings.convolution.weight"
_PADDINGS: dict[str, tuple[Padding, float]] = {"tf_efficientnet_": ("same", 1e-3), "efficientnet_": ("symmetric", 1e-5)}
"""What the start of timm's name says: how images are padded, and batch norm's epsilon."""
_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("in_chans", "num_classes"), int),
    **dict.fromkeys(("drop_rate", "drop_path_rate", "bn_eps", "bn_momentum"), float),
    "pad_type": Literal["same", ""],
    "global_pool": Literal["avg"],
}
"""Of timm's, that are read here, or that the tensors tell, or that matter in training alone; and their types."""


def read_efficientnet(raw: Raw) -> Foreign | None:
    """An EfficientNet by its tensors; None if it is not one."""
    if _TIMM in raw.tensors:
        return _read_timm(raw)
    stem = next((name for name in raw.tensors if name.endswith(_HUGGINGFACE)), None)
    return None if stem is None else _read_huggingface(raw, stem.removesuffix(_HUGGINGFACE))


def usual_preprocess(c: EfficientNetConfig) -> Preprocess:
    """ImageNet's mean and standard deviation, and a crop that grows with the size, as in Google's code."""
    mean, std = (IMAGENET_MEAN, IMAGENET_STD) if c.channels == 3 else ((0.45,) * c.channels, (0.225,) * c.channels)
    side = min(c.image_size)
    return Preprocess(size=c.image_size, mean=mean, std=std, crop=round(side / (side + 32), 3))


# timm


def _read_timm(raw: Raw) -> Foreign | None:
    shapes = raw.shapes
    size = next((name for name, (width, depth, *_) in SIZES.items() if _is_size(shapes, width, depth)), None)
    if size is None:
        return None
    architecture, arguments = architecture_of(raw.config), arguments_of(raw, _ARGUMENTS)
    start = next((start for start in _PADDINGS if architecture.startswith(start)), None)
    padding, epsilon = _PADDINGS[start or "tf_efficientnet_"]
    if "pad_type" in arguments:
        padding = "same" if arguments["pad_type"] == "same" else "symmetric"
    width, depth, side, dropout = SIZES[size]
    config = EfficientNetConfig(
        width=width,
        depth=depth,
        image_size=raw.size or size_of_input(raw) or (side, side),
        channels=shape_of(shapes, _TIMM, 4, raw.where)[1],
        classes=shape_of(shapes, "classifier.bias", 1, raw.where)[0] if "classifier.bias" in shapes else 0,
        padding=padding,
        norm_eps=arguments.get("bn_eps", epsilon),
        dropout=dropout,
    )
    check_stated(raw, arguments, config, config.features)
    assumed = () if start else (f"taken for tf_efficientnet_{size.lower()}, for its tensors do not tell how it pads",)
    return stated_by_timm(raw, Foreign("timm", config, (), usual_preprocess(config), assumed=True, notes=assumed))


def _is_size(shapes: Shapes, width: float, depth: float) -> bool:
    """Whether stages, blocks and squeeze-and-excitation are those of this size."""
    c = EfficientNetConfig(width=width, depth=depth)
    for number, stage in enumerate(c.stages):
        last = f"blocks.{number}.{stage.blocks - 1}."
        joined = f"{last}conv_pw.weight" if stage.expansion == 1 else f"{last}conv_pwl.weight"
        squeezed = shapes.get(f"blocks.{number}.0.se.conv_reduce.weight")
        if blocks_of(shapes, f"blocks.{number}.", ".") != stage.blocks or shapes.get(joined, ())[:1] != (
            stage.outputs,
        ):
            return False
        if squeezed != (stage.inputs // 4, stage.inputs * stage.expansion, 1, 1):
            return False
    return blocks_of(shapes, "blocks.", ".") == len(c.stages)


def efficientnet_in_timm(c: EfficientNetConfig) -> TimmModel:
    """An EfficientNet in timm's words: its names fix width and depth, and how images are padded."""
    size = size_of(c)
    start = next(start for start, (padding, _) in _PADDINGS.items() if padding == c.padding)
    usual = {"in_chans": (3, c.channels), "bn_eps": (_PADDINGS[start][1], c.norm_eps)}
    missing = None if size else f"an EfficientNet {c.width:g} times as wide and {c.depth:g} times as deep as B0"
    return TimmModel(
        features=c.features,
        architecture=f"{start}{size.lower()}" if size else UNKNOWN_TO_TIMM,
        arguments={name: value for name, (default, value) in usual.items() if value != default} if size else {},
        missing=missing,
        global_pool="avg",
        first_conv="conv_stem",
        classifier="classifier",
    )


# Hugging Face


def _read_huggingface(raw: Raw, prefix: str) -> Foreign | None:
    shapes, said = raw.shapes, raw.config or {}
    if f"{prefix}encoder.blocks.0.depthwise_conv.depthwise_conv.weight" not in shapes:
        return None
    if not {"width_coefficient", "depth_coefficient"} <= set(said):
        raise UserError(f"{raw.where}: the config.json that tells an EfficientNet's width and depth is not beside it.")
    classes = shape_of(shapes, "classifier.bias", 1, raw.where)[0] if "classifier.bias" in shapes else 0
    config = EfficientNetConfig(
        width=said["width_coefficient"],
        depth=said["depth_coefficient"],
        image_size=raw.size or sides(said.get("image_size")) or (224, 224),
        channels=shape_of(shapes, prefix + _HUGGINGFACE, 4, raw.where)[1],
        classes=classes,
        norm_eps=said.get("batch_norm_eps", 1e-3),
        dropout=said.get("dropout_rate", 0.5),
        drop_path=said.get("drop_connect_rate", 0.2),
    )
    if "num_channels" in said:
        check_agreement(raw.where, {"num_channels": (said["num_channels"], config.channels)})
    usual = _described(replace(config, image_size=sides(said.get("image_size")) or config.image_size))
    odd = {name: said[name] for name in _FIXED if name in said and _plain(said[name]) != _plain(usual[name])}
    if odd:
        name, value = next(iter(odd.items()))
        raise UserError(f"{raw.where}: config.json beside it asks for {name} {value}, which is not known here.")
    rules = _rules(config, prefix)
    found = Foreign("Hugging Face", config, rules, usual_preprocess(config), assumed=True)
    found = stated_by_huggingface(raw, found)
    return replace(found, config=replace(config, image_size=raw.size or found.preprocess.size))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _rules(c: EfficientNetConfig, prefix: str) -> list[Rule]:
    """Each of our tensors with theirs."""

    def norm(ours: str, theirs: str) -> dict[str, str]:
        return {f"{ours}.{part}": f"{theirs}.{part}" for part in _NORM}

    names = {"conv_stem.weight": prefix + _HUGGINGFACE, **norm("bn1", f"{prefix}embeddings.batchnorm")}
    names |= {"conv_head.weight": f"{prefix}encoder.top_conv.weight", **norm("bn2", f"{prefix}encoder.top_bn")}
    names |= {f"classifier.{part}": f"classifier.{part}" for part in ("weight", "bias")}
    block = 0
    for stage, made in enumerate(c.stages):
        expands = made.expansion != 1
        bn, last = (("bn2", "bn3"), "conv_pwl") if expands else (("bn1", "bn2"), "conv_pw")
        for number in range(made.blocks):
            ours, theirs = f"blocks.{stage}.{number}", f"{prefix}encoder.blocks.{block}"
            if expands:
                names[f"{ours}.conv_pw.weight"] = f"{theirs}.expansion.expand_conv.weight"
                names |= norm(f"{ours}.bn1", f"{theirs}.expansion.expand_bn")
            names[f"{ours}.conv_dw.weight"] = f"{theirs}.depthwise_conv.depthwise_conv.weight"
            names |= norm(f"{ours}.{bn[0]}", f"{theirs}.depthwise_conv.depthwise_norm")
            for one, other in (("conv_reduce", "reduce"), ("conv_expand", "expand")):
                names |= {f"{ours}.se.{one}.{part}": f"{theirs}.squeeze_excite.{other}.{part}" for part in _NORM[:2]}
            names[f"{ours}.{last}.weight"] = f"{theirs}.projection.project_conv.weight"
            names |= norm(f"{ours}.{bn[1]}", f"{theirs}.projection.project_bn")
            block += 1
    return [same(ours, theirs) for ours, theirs in names.items()]


_FIXED = (
    *("hidden_dim", "hidden_act", "strides", "kernel_sizes", "expand_ratios", "out_channels", "num_block_repeats"),
    "depthwise_padding",
)
"""Fields of theirs that are alike in every EfficientNet, or follow from its width and its images' size."""


def _described(c: EfficientNetConfig) -> dict[str, Any]:
    """Their config.json."""
    base, (height, width) = EfficientNetConfig().stages, c.image_size
    return {
        "architectures": ["EfficientNetForImageClassification" if c.classes else "EfficientNetModel"],
        "model_type": "efficientnet",
        "num_channels": c.channels,
        "image_size": height if height == width else [height, width],
        "width_coefficient": c.width,
        "depth_coefficient": c.depth,
        "hidden_dim": c.features,
        "hidden_act": "swish",
        "strides": [stage.stride for stage in base],
        "kernel_sizes": [stage.kernel for stage in base],
        "expand_ratios": [stage.expansion for stage in base],
        "out_channels": [stage.outputs for stage in base],
        "num_block_repeats": [stage.blocks for stage in base],
        "depthwise_padding": _odd_inputs(c, height),
        "batch_norm_eps": c.norm_eps,
        "batch_norm_momentum": 0.01,  # as torch counts, which theirs hands it to
        "dropout_rate": c.dropout,
        "drop_connect_rate": c.drop_path,
        "dtype": "float32",
    }


def _odd_inputs(c: EfficientNetConfig, side: int) -> list[int]:
    """The blocks that halve a map of an odd side, which theirs pads on both sides and must be told."""
    found, block, side = [], 0, -(-side // 2)
    for stage in c.stages:
        if stage.stride == 2:
            found += [block] if side % 2 else []
            side = -(-side // 2)
        block += stage.blocks
    return found


def write_huggingface_efficientnet(
    out: str | Path, model: EfficientNet, preprocess: Preprocess, labels: Sequence[str], info: Any
) -> Path:
    """A folder that `from_pretrained` opens, model and image processor. Theirs is right at this image size alone."""
    out, c = Path(out), replace(model.config, image_size=preprocess.size)
    height, width = c.image_size
    odd = {
        "padding alike on both sides": c.padding != "same",
        f"images of {height}x{width}, of an odd side": height % 2 == 1 or width % 2 == 1,
        f"images of {height}x{width}, whose sides are odd at different layers": _odd_inputs(c, height)
        != _odd_inputs(c, width),
    }
    if reason := next((what for what, holds in odd.items() if holds), None):
        raise UserError(
            f"{out}: Hugging Face's EfficientNet has no word for {reason}; "
            "export to timm, or import it at another size first."
        )
    tensors = to_theirs(model.state_dict(), _rules(c, "efficientnet." if c.classes else ""))
    return write_folder(out, _described(c) | label_maps(labels), to_processor(preprocess, str(out)), tensors)
