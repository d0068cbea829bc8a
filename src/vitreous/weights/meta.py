"""The files that Meta's repositories publish: DeiT, DINO, DINOv2 and MAE.

They use timm's names with small changes. Tensors beside the model, such as self-supervised heads and decoders, are
ignored by name, and a note lists them.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vitreous.weights.checkpoint import ParsedCheckpoint, RawCheckpoint, fold_class_position, imagenet_preprocess
from vitreous.weights.infer import VIT_TENSORS, has_backbone, infer_vit_config
from vitreous.weights.mapping import rename
from vitreous.weights.timm import is_timm

_BACKBONE = "backbone."
_ENTRIES = ("model", "model_ema", "teacher", "student")  # of their files, which hold the model
_IGNORED = {
    "the decoder": re.compile(r"decoder_"),
    "the self-supervised head": re.compile(r"(head|dino_head|ibot_head)\."),
    "the mask token": re.compile(r"mask_token$"),
}
# One of these is in each .safetensors file that is not timm's.
_MARKS = re.compile(r"backbone\.|decoder_|mask_token|register_tokens|\.w12\.|\.gamma_|blocks\.\d+\.\d")
_EVA = re.compile(r"\.(q_bias|q_proj\.weight|mlp\.fc1_g\.weight)$", re.MULTILINE)
# Their names, and ours. DINOv2 trains with blocks in chunks: blocks.CHUNK.BLOCK.
_RENAMED = (
    (re.compile(r"^blocks\.\d+\.(\d+)\."), r"blocks.\1."),
    (re.compile(r"^register_tokens$"), "reg_token"),
    (re.compile(r"\.mlp\.w12\."), ".mlp.fc1."),
    (re.compile(r"\.mlp\.w3\."), ".mlp.fc2."),
    (re.compile(r"\.gamma_([12])$"), r".ls\1.gamma"),
)


def read_meta(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    if has_backbone(raw) or (raw.kind == "safetensors" and not _MARKS.search("\n".join(raw.tensors))):
        return None
    if _EVA.search("\n".join(raw.tensors)) or (is_timm(raw.config) and "blocks.0.gamma_1" in raw.tensors):
        return None  # timm's Eva or Beit, or BEiT itself
    prefix = _BACKBONE if any(name.startswith(_BACKBONE) for name in raw.tensors) else ""
    ignored: dict[str, list[str]] = {}
    theirs: dict[str, str] = {}  # our name: their name
    for name in raw.tensors:
        bare = name.removeprefix(prefix)
        belongs = bare != name or not prefix
        kind = next((kind for kind, pattern in _IGNORED.items() if pattern.match(bare)), None)
        if kind == "the self-supervised head" and belongs:
            kind = None  # in a file without a backbone's prefix, that is the classifier
        if kind is not None:
            ignored.setdefault(kind, []).append(name)
            continue
        for pattern, own_name in _RENAMED:
            bare = pattern.sub(own_name, bare)
        theirs[bare if belongs else name] = name
    if not {*VIT_TENSORS, "pos_embed"} <= set(theirs):
        return None
    renamed = any(old != prefix + name for name, old in theirs.items())
    if is_timm(raw.config) and not (prefix or ignored or renamed):
        return None  # what config.json says comes before what names suggest
    flat_backbone = raw.kind == "torch" and "head.weight" not in theirs
    if not (prefix or ignored or renamed or flat_backbone or raw.entry in _ENTRIES):
        return None
    config, heads_assumed = infer_vit_config(
        replace(raw, tensors={name: raw.tensors[old] for name, old in theirs.items()})
    )
    family = _family(set(theirs), "the decoder" in ignored, raw, prefix)
    if family.startswith("DINO"):
        config = replace(config, position_resampling="bicubic" if config.registers else "bicubic-plain")
    folded = {}
    if config.position_scope == "class" and config.registers:
        config, folded = (
            replace(config, position_scope="patches"),
            fold_class_position(raw, theirs["cls_token"], theirs["pos_embed"]),
        )
    rules = rename({name: old for name, old in theirs.items() if "*" not in name})
    usual = imagenet_preprocess(config, family)
    return ParsedCheckpoint(
        family, config, rules, usual, ignored_keys=ignored, heads_assumed=heads_assumed, tensors=folded
    )


def _family(names: set[str], decoder: bool, raw: RawCheckpoint, prefix: str) -> str:
    if decoder or {"head.weight", "fc_norm.weight"} <= names:
        return "MAE"
    scaled = "blocks.0.ls1.gamma" in names
    if "head.weight" in names:
        return "DeiT III" if scaled else "DeiT"
    if scaled:
        return "DINOv2"
    return "DINO" if prefix or raw.entry in (None, "teacher", "student") else "MAE"
