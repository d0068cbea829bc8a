"""The sizes of the family, in one table, and their names as the paper writes them: "B/16", "L/16@384"."""

from __future__ import annotations

import re
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from vitreous.arguments import checked
from vitreous.config.model import ViTConfig
from vitreous.errors import UserError

# name: (width, depth, heads, MLP width). B, L, H from the paper's table 1; Ti and S from DeiT; g from "Scaling Vision
# Transformers". F, P and N (femto, pico, nano) are ours, for small pictures on few cores.
SIZES: dict[str, tuple[int, int, int, int]] = {
    "F": (96, 4, 3, 384),
    "P": (96, 6, 3, 384),
    "N": (192, 6, 3, 768),
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
}

PATCHES = (32, 16, 14, 8)

# What `vitreous models` lists. Any other "SIZE/PATCH@RESOLUTION" works too.
NAMES: tuple[str, ...] = (
    *("F/7@28", "P/4@32", "N/4@28", "N/4@32", "Ti/4@28", "Ti/4@32", "S/2@28", "S/4@32"),
    *(f"{size}/{patch}" for size in SIZES if size not in ("F", "P", "N") for patch in PATCHES),
)

_NAME = re.compile(r"(?P<size>[A-Za-z]+)/(?P<patch>\d+)(@(?P<height>\d+)(x(?P<width>\d+))?)?")


@checked
def preset(name: str, **changes: Any) -> ViTConfig:
    """The configuration called `name`: size/patch, and @side or @heightxwidth unless 224; `changes` set fields."""
    match = _NAME.fullmatch(name)
    if match is None or match["size"] not in SIZES:
        near = get_close_matches(name.removeprefix("ViT-"), NAMES, n=1, cutoff=0.3)
        like = f"did you mean {near[0]!r}?" if near else "for example 'B/16' or 'L/16@384'."
        raise UserError(
            f"model {name!r}: write SIZE/PATCH or SIZE/PATCH@PIXELS with a SIZE of {', '.join(SIZES)}; {like}"
        )
    known = {field.name for field in fields(ViTConfig)}
    if unknown := sorted(set(changes) - known):
        near = get_close_matches(unknown[0], known, n=1)
        like = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(sorted(known))}."
        raise UserError(f"model {name!r} has no field {unknown[0]!r}; {like}")
    width, depth, heads, mlp_width = SIZES[match["size"]]
    height = int(match["height"] or 224)
    sizes = {"width": width, "depth": depth, "heads": heads, "mlp_width": mlp_width, "patch": int(match["patch"])}
    return ViTConfig(**{**sizes, "image_size": (height, int(match["width"] or height)), **changes})
