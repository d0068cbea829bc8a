"""BiT and EfficientNet in folders of Hugging Face `transformers`, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.arguments import shown
from vitreous.config.bit import BiTConfig
from vitreous.config.data import Preprocess
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.errors import UserError
from vitreous.weights.checkpoint import (
    ParsedCheckpoint,
    RawCheckpoint,
    augreg_preprocess,
    bit_config,
    check_agreement,
    first_true,
    height_and_width,
    imagenet_preprocess,
)
from vitreous.weights.huggingface_folder import with_description, write_folder
from vitreous.weights.mapping import Rule, export_state, rename

if TYPE_CHECKING:
    from vitreous.model.efficientnet import EfficientNet
    from vitreous.model.resnet import BiT

_BIT_ROOT = "embedder.convolution.weight"
_EFFICIENTNET_STEM = "embeddings.convolution.weight"
_BIT_FIXED = {"layer_type": "preactivation", "hidden_act": "relu", "global_padding": None, "num_groups": 32}


def _parsed(raw: RawCheckpoint, config: BiTConfig | EfficientNetConfig, rules: list[Rule]) -> ParsedCheckpoint:
    usual = augreg_preprocess(config) if isinstance(config, BiTConfig) else imagenet_preprocess(config)
    found = with_description(raw, ParsedCheckpoint("Hugging Face", config, rules, usual))
    return replace(found, config=replace(config, image_size=raw.image_size or found.preprocess.size))


def read_huggingface_bit(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    root = next((name for name in raw.tensors if name.endswith(_BIT_ROOT)), None)
    prefix, described = "" if root is None else root.removesuffix(_BIT_ROOT), raw.config or {}
    if root is None or f"{prefix}encoder.stages.0.layers.0.norm1.weight" not in raw.tensors:
        return None
    for name, usual in (_BIT_FIXED | {"embedding_dynamic_padding": False, "output_stride": 32}).items():
        if (value := described.get(name, usual)) != usual:
            asked = f"{name} {shown(value)}"
            raise UserError(
                f"{raw.where}: config.json beside it asks for {asked}, which no BiT here has; give another model."
            )
    depths = raw.depths(f"{prefix}encoder.stages.", "layers.")
    config = bit_config(raw, raw.shape(root, 4), depths, raw.outputs("classifier.1.bias"), raw.image_size)
    sizes = _bit_sizes(config)
    check_agreement(raw.where, {name: (described[name], size) for name, size in sizes.items() if name in described})
    return _parsed(raw, config, _bit_rules(prefix))


def _bit_sizes(c: BiTConfig) -> dict[str, Any]:
    """The fields of their config.json that the tensors show too."""
    return {"num_channels": c.channels, "embedding_size": c.root_width, "depths": list(c.depths)}


def _bit_rules(prefix: str) -> list[Rule]:
    modules = ["downsample.conv", *(f"{kind}{layer}" for kind in ("conv", "norm") for layer in (1, 2, 3))]
    names = {f"stages.*.blocks.*.{module}": f"encoder.stages.{{0}}.layers.{{1}}.{module}" for module in modules}
    names |= {"stem.conv.weight": _BIT_ROOT, "norm": "norm"}
    return [*rename(names, prefix), *rename({"head.fc": "classifier.1"})]


def write_huggingface_bit(
    out: str | Path, model: BiT, preprocess: Preprocess, labels: Sequence[str], info: Any
) -> Path:
    """A folder that `from_pretrained` opens, model and image processor."""
    c = model.config
    if c.root != "7x7":
        raise UserError(f"{out}: Hugging Face's BiT has no word for a 3x3 root block; export to google.")
    config = {
        "architectures": ["BitForImageClassification" if c.classes else "BitModel"],
        "model_type": "bit",
        **_bit_sizes(c),
        "hidden_sizes": list(c.stage_widths),
        **_BIT_FIXED,
        "width_factor": 1,
        "dtype": "float32",
    }
    tensors = export_state(model.state_dict(), _bit_rules("bit." if c.classes else ""))
    return write_folder(Path(out), config, labels, preprocess, tensors)


def read_huggingface_efficientnet(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    stem = next((name for name in raw.tensors if name.endswith(_EFFICIENTNET_STEM)), None)
    prefix, described = "" if stem is None else stem.removesuffix(_EFFICIENTNET_STEM), raw.config or {}
    if stem is None or f"{prefix}encoder.blocks.0.depthwise_conv.depthwise_conv.weight" not in raw.tensors:
        return None
    if not {"width_coefficient", "depth_coefficient"} <= set(described):
        raise UserError(f"{raw.where}: the config.json that tells an EfficientNet's width and depth is not beside it.")
    size = height_and_width(described.get("image_size"))
    config = EfficientNetConfig(
        width=described["width_coefficient"],
        depth=described["depth_coefficient"],
        image_size=raw.image_size or size or (224, 224),
        channels=raw.shape(stem, 4)[1],
        classes=raw.outputs("classifier.bias"),
        norm_eps=described.get("batch_norm_eps", 1e-3),
        dropout=described.get("dropout_rate", 0.5),
        drop_path=described.get("drop_connect_rate", 0.2),
    )
    if "num_channels" in described:
        check_agreement(raw.where, {"num_channels": (described["num_channels"], config.channels)})
    usual = efficientnet_config(replace(config, image_size=size or config.image_size))
    for name in _FIXED:
        value = described.get(name, usual[name])
        if value != usual[name]:
            raise UserError(f"{raw.where}: config.json beside it asks for {name} {value}, which is not known here.")
    return _parsed(raw, config, _efficientnet_rules(config, prefix))


_FIXED = (
    *("hidden_dim", "hidden_act", "strides", "kernel_sizes", "expand_ratios", "out_channels", "num_block_repeats"),
    "depthwise_padding",
)
"""Fields of their config.json that every EfficientNet shares, or that follow from its width and image size."""
_SQUEEZE = {"se.conv_reduce": "squeeze_excite.reduce", "se.conv_expand": "squeeze_excite.expand"}
_PLAIN_BLOCK = {
    "conv_dw": "depthwise_conv.depthwise_conv",
    "bn1": "depthwise_conv.depthwise_norm",
    **_SQUEEZE,
    "conv_pw": "projection.project_conv",
    "bn2": "projection.project_bn",
}
_EXPANDING_BLOCK = {
    "conv_pw": "expansion.expand_conv",
    "bn1": "expansion.expand_bn",
    "conv_dw": "depthwise_conv.depthwise_conv",
    "bn2": "depthwise_conv.depthwise_norm",
    **_SQUEEZE,
    "conv_pwl": "projection.project_conv",
    "bn3": "projection.project_bn",
}


def _efficientnet_rules(c: EfficientNetConfig, prefix: str) -> list[Rule]:
    names = {"conv_stem.weight": _EFFICIENTNET_STEM, "bn1": "embeddings.batchnorm"}
    names |= {"conv_head": "encoder.top_conv", "bn2": "encoder.top_bn"}
    blocks = [(stage, number) for stage, made in enumerate(c.stages) for number in range(made.blocks)]
    for block, (stage, number) in enumerate(blocks):
        modules = _PLAIN_BLOCK if c.stages[stage].expansion == 1 else _EXPANDING_BLOCK
        names |= {f"blocks.{stage}.{number}.{one}": f"encoder.blocks.{block}.{other}" for one, other in modules.items()}
    return [*rename(names, prefix), *rename({"classifier": "classifier"})]


def efficientnet_config(c: EfficientNetConfig) -> dict[str, Any]:
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
    """The blocks that halve a map of an odd side: transformers pads these on both sides, and must be told."""
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
    c = replace(model.config, image_size=preprocess.size)
    height, width = c.image_size
    missing = first_true(
        {
            "padding alike on both sides": c.padding != "same",
            f"images of {height}x{width}, of an odd side": height % 2 == 1 or width % 2 == 1,
            f"images of {height}x{width}, whose sides are odd at different layers": _odd_inputs(c, height)
            != _odd_inputs(c, width),
        }
    )
    if missing:
        raise UserError(
            f"{out}: Hugging Face's EfficientNet has no word for {missing}; "
            "export to timm, or import it at another size first."
        )
    tensors = export_state(model.state_dict(), _efficientnet_rules(c, "efficientnet." if c.classes else ""))
    return write_folder(Path(out), efficientnet_config(c), labels, preprocess, tensors)
