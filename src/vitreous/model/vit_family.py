"""The Vision Transformer's row in the table of families."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from vitreous.config.model import ViTConfig, check_image_size
from vitreous.config.stem import ConvStem, Stem
from vitreous.model import cost
from vitreous.model.presets import NAMES, hybrid_name, preset
from vitreous.model.table import Family, Size, classes_text, input_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitreous.model.network import Role
    from vitreous.model.vit import ViT

POOLS = {
    "class": "the class token",
    "mean": "the mean of the patches",
    "class+mean": "the class token and the mean of the patches",
    "attention": "a learned query that attends to the patches",
}
_BLOCK = re.compile(r"blocks\.(\d+)\.")
_EMBEDDING = ("patch_embed", "cls_token", "dist_token", "reg_token", "pos_embed")
_UNDECAYED = re.compile(r"(?:cls_token|dist_token|reg_token|pos_embed\w*|latent|relative_position_bias_table)$")


def _build(config: ViTConfig, seed: int | None) -> ViT:
    from vitreous.model.vit import ViT

    return ViT(config, seed=seed)


def _roles(network: ViT) -> dict[str, Role]:
    """As the modules tell, but for tokens and positions: they are tables, yet no weight decay acts on them."""
    from vitreous.model.roles import module_roles

    depth = network.config.depth

    def layer_of(name: str) -> int:
        if match := _BLOCK.match(name):
            return int(match[1])
        return -1 if name.startswith(_EMBEDDING) else depth

    found = module_roles(network, layer_of, [*classifiers(network), network.pre_logits])
    return {name: role._replace(decayed=False) if _UNDECAYED.search(name) else role for name, role in found.items()}


def classifiers(network: ViT) -> list[nn.Linear]:
    """The last layer; of a distilled model both, whose mean is the score."""
    from torch import nn

    return [layer for layer in (network.head, network.head_dist) if isinstance(layer, nn.Linear)]


def _lora_targets(network: ViT) -> list[nn.Linear]:
    """q, k and v of each block, one above the other."""
    from vitreous.model.vit import Block

    return [block.attn.qkv for block in network.blocks if isinstance(block, Block)]


def _for_size(config: ViTConfig, size: Size) -> ViTConfig:
    return config.resized(size)


def _resize(state: dict[str, Tensor], config: ViTConfig, size: Size) -> dict[str, Tensor]:
    from vitreous.model.position import resample_state

    return resample_state(state, config, size)[0]


def _for_classes(config: ViTConfig, classes: int) -> ViTConfig:
    return replace(config, classes=classes, classifier="linear")


def _check_size(config: ViTConfig, size: Size) -> None:
    check_image_size(size, config.patch, config.pad)


def _describe(c: ViTConfig) -> str:
    """ "ViT of width 192, ..."; "hybrid R26+S/32 (ResNet-26 stem, ViT of width 384, ...)", named if it has a name."""
    near = {"neighbourhood": f", attention to {c.window}×{c.window} patches", "axial": ", axial attention"}
    size, odd = f"width {c.width}, depth {c.depth}", near.get(c.attention, "")
    odd += f", merging {c.merge} tokens per block" if c.merge else ""
    if c.stem is None:
        return f"ViT of {size}, patch {c.patch}{odd}"
    return f"{_title(c)} ({_stem_text(c.stem)}, ViT of {size}, a token for {c.patch}×{c.patch} pixels{odd})"


def _title(c: ViTConfig) -> str:
    """As a person says it: "hybrid R26+S/32"."""
    return "Vision Transformer" if c.stem is None else " ".join(["hybrid", *filter(None, [hybrid_name(c)])])


def _stem_text(stem: Stem) -> str:
    if isinstance(stem, ConvStem):
        return f"stem of {len(stem.widths)} convolution{'s' * (len(stem.widths) > 1)}"
    if not stem.depths:
        return "stem of a ResNet's root"
    return f"ResNet-{3 * sum(stem.depths) + 2} stem"


def _reach_text(c: ViTConfig) -> str:
    return {
        "neighbourhood": f"to the {c.window}×{c.window} patches around each; the class token and its like to all",
        "axial": "along rows and columns in turn; the class token and its like to all",
    }[c.attention]


def _merge_text(c: ViTConfig) -> str:
    counts = c.merges(c.patches)
    return f"{2 * c.merge} in every second block: {c.patches} patch tokens become {c.patches - sum(counts)}"


def _stem_facts(stem: Stem) -> str:
    if isinstance(stem, ConvStem):
        return f"3×3 convolutions of {', '.join(map(str, stem.widths))} channels, each pooled to half the side"
    stages = f", then stages of {', '.join(map(str, stem.depths))} blocks" if stem.depths else ""
    return f"7×7 convolution and pooling{stages}: {stem.features:,} channels, 1/{stem.stride} of the side"


def _facts(c: ViTConfig) -> dict[str, str]:
    rows, columns = c.grid
    return {
        "Input": input_text(c),
        **({} if c.stem is None else {"Stem": _stem_facts(c.stem)}),
        "Patches": f"{rows}×{columns} of {c.patch}×{c.patch} pixels",
        "Tokens": f"{c.prefix + c.patches}: {c.patches} patches"
        + (", the class token" if c.class_token else "")
        + (", the distillation token" if c.distilled else "")
        + (f", {c.registers} registers" if c.registers else ""),
        "Width, depth, heads": f"{c.width}, {c.depth}, {c.heads}",
        **({} if c.attention == "full" else {"Attention": _reach_text(c)}),
        **({} if not c.merge else {"Token merging": _merge_text(c)}),
        "MLP": f"{c.mlp_width} units, {c.mlp}",
        "Positions": c.position,
        "Answer is read from": POOLS[c.pool],
        "Classes": classes_text(c),
    }


VIT = Family(
    name="Vision Transformer",
    config=ViTConfig,
    build=_build,
    classifiers=classifiers,
    roles=_roles,
    preset=preset,
    names=NAMES,
    parameters=cost.count_parameters,
    flops=cost.count_flops,
    activation_bytes=cost.count_activation_bytes,
    forward_bytes=cost.count_forward_bytes,
    inference_batch=cost.inference_batch,
    for_size=_for_size,
    resize=_resize,
    for_classes=_for_classes,
    check_size=_check_size,
    lora_targets=_lora_targets,
    title=_title,
    describe=_describe,
    facts=_facts,
)
