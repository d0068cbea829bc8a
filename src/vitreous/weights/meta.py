"""The files that Meta's repositories publish: DeiT, DINO, DINOv2 and MAE.

All of them follow timm's names, with small changes and with much beside the model: heads of self-supervision, decoders,
the student of a teacher. What is not the model is left aside by name, and said.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vitreous.weights.foreign import Foreign, Raw, imagenet_default
from vitreous.weights.hybrid import has_backbone
from vitreous.weights.mapping import same
from vitreous.weights.timm import CORE, recognise
from vitreous.weights.timm_layout import is_timm

_BACKBONE = "backbone."
_ENTRIES = ("model", "model_ema", "teacher", "student")
"""Under which their files keep the model."""

_ASIDE = {
    "the decoder": re.compile(r"decoder_"),
    "the self-supervised head": re.compile(r"(head|dino_head|ibot_head)\."),
    "the mask token": re.compile(r"mask_token$"),
}

# One of these is in a .safetensors file that is not just timm's.
_MARKS = re.compile(r"backbone\.|decoder_|mask_token|register_tokens|\.w12\.|\.gamma_|blocks\.\d+\.\d")

# Their names, and ours. DINOv2 trains with blocks in chunks, in which a block keeps its own number.
_RENAMED = (
    (re.compile(r"^blocks\.\d+\.(\d+)\."), r"blocks.\1."),
    (re.compile(r"^register_tokens$"), "reg_token"),
    (re.compile(r"\.mlp\.w12\."), ".mlp.fc1."),
    (re.compile(r"\.mlp\.w3\."), ".mlp.fc2."),
    (re.compile(r"\.gamma_([12])$"), r".ls\1.gamma"),
)


def read_meta(raw: Raw) -> Foreign | None:
    """One of the four by its names, and by where in the file it is."""
    if has_backbone(raw.shapes) or (raw.kind == "safetensors" and not _MARKS.search("\n".join(raw.tensors))):
        return None
    prefix = _BACKBONE if any(name.startswith(_BACKBONE) for name in raw.tensors) else ""
    aside: dict[str, list[str]] = {}
    theirs: dict[str, str] = {}  # our name: their name
    for name in raw.tensors:
        bare = name.removeprefix(prefix)
        belongs = bare != name or not prefix
        kind = next((kind for kind, pattern in _ASIDE.items() if pattern.match(bare)), None)
        if kind == "the self-supervised head" and belongs:
            kind = None  # in a file without a backbone's prefix, that is the classifier
        if kind is not None:
            aside.setdefault(kind, []).append(name)
            continue
        for pattern, ours in _RENAMED:
            bare = pattern.sub(ours, bare)
        theirs[bare if belongs else name] = name
    if not set(CORE) <= set(theirs):
        return None
    renamed = any(name != prefix + ours for ours, name in theirs.items())
    if is_timm(raw.config) and not (prefix or aside or renamed):
        return None  # what config.json says comes before what names suggest
    flat_backbone = raw.kind == "torch" and "head.weight" not in theirs
    if not (prefix or aside or renamed or flat_backbone or raw.entry in _ENTRIES):
        return None

    shapes = {ours: tuple(raw.tensors[name].shape) for ours, name in theirs.items()}
    config, heads_assumed = recognise(shapes, raw.where, raw.size, heads=raw.heads)
    family = _family(set(theirs), set(aside), raw, prefix)
    if family.startswith("DINO"):
        config = replace(config, position_resampling="bicubic" if config.registers else "bicubic-plain")
    rules = [same(ours, name) for ours, name in theirs.items()]
    return Foreign(
        family,
        config,
        rules,
        imagenet_default(config, family),
        assumed=True,
        aside=aside,
        heads_assumed=heads_assumed,
    )


def _family(ours: set[str], aside: set[str], raw: Raw, prefix: str) -> str:
    if "the decoder" in aside:
        return "MAE"
    if "head.weight" in ours:
        if "fc_norm.weight" in ours:
            return "MAE"
        return "DeiT III" if "blocks.0.ls1.gamma" in ours else "DeiT"
    if "blocks.0.ls1.gamma" in ours:
        return "DINOv2"
    return "DINO" if prefix or raw.entry in (None, "teacher", "student") else "MAE"
