"""The sizes of the family, in one table, and their names as the papers write them: "B/16", "L/16@384", "R50+B/16"."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from vitreous.config.stem import ConvStem, ResNetStem
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.config.model import ViTConfig

# name: (width, depth, heads, MLP width). B, L, H from the paper's table 1; Ti and S from DeiT; g from "Scaling Vision
# Transformers". F, P and N (femto, pico, nano) are ours, for small images on few cores.
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

# Hybrids' stems by the first part of the name and its last number, and the pixels that one token really stands for. As
# published; the 16 of R+Ti/16 does not count that its patches are 8 places of the root's map.
STEMS: dict[tuple[str, int], tuple[ResNetStem, int]] = {
    ("R", 16): (ResNetStem(()), 32),
    ("R26", 32): (ResNetStem((2, 2, 2, 2)), 32),
    ("R50", 16): (ResNetStem((3, 4, 9)), 16),
    ("R50", 32): (ResNetStem((3, 4, 6, 3)), 32),
}
HYBRIDS = ("C+P/4@32", "C+Ti/4@32", "R+Ti/16", "R26+S/32", "R50+B/16", "R50+L/32")

# What `vitreous models` lists. Any other "SIZE/PATCH@RESOLUTION" works too.
NAMES: tuple[str, ...] = (
    *("F/7@28", "P/4@32", "N/4@28", "N/4@32", "Ti/4@28", "Ti/4@32", "S/2@28", "S/4@32"),
    *(f"{size}/{patch}" for size in SIZES if size not in ("F", "P", "N") for patch in PATCHES),
    *HYBRIDS,
)

_NAME = re.compile(r"((?P<stem>[RC]\d*)\+)?(?P<size>[A-Za-z]+)/(?P<patch>\d+)(@(?P<height>\d+)(x(?P<width>\d+))?)?")


def preset_fields(name: str) -> dict[str, Any]:
    """The fields that a name fixes: size/patch, and @side or @heightxwidth unless 224."""
    match = _NAME.fullmatch(name)
    if match is None or match["size"] not in SIZES:
        near = get_close_matches(name.removeprefix("ViT-"), NAMES, n=1, cutoff=0.3)
        like = f"did you mean {near[0]!r}?" if near else "for example 'B/16' or 'L/16@384'."
        raise UserError(
            f"model {name!r}: write SIZE/PATCH or SIZE/PATCH@PIXELS with a SIZE of {', '.join(SIZES)}; {like}"
        )
    shape = dict(zip(("width", "depth", "heads", "mlp_width"), SIZES[match["size"]], strict=True))
    height = int(match["height"] or 224)
    patch = {"patch": int(match["patch"])} if match["stem"] is None else _stem(name, match["stem"], int(match["patch"]))
    return {**shape, **patch, "image_size": (height, int(match["width"] or height))}


def _stem(name: str, stem: str, patch: int) -> dict[str, Any]:
    if (stem, patch) in STEMS:
        resnet, pixels = STEMS[stem, patch]
        return {"stem": resnet, "patch": pixels}
    halvings = patch.bit_length() - 1
    if stem != "C" or patch != 2**halvings or not halvings:
        raise UserError(
            f"model {name!r}: there is no such hybrid; those with a ResNet are "
            f"{', '.join(f'{one}+SIZE/{side}' for one, side in STEMS)}, and C+SIZE/PATCH takes 2, 4, 8 or 16."
        )
    return {"patch": patch, "stem": _usual_stem(patch)}


def hybrid_name(c: ViTConfig) -> str | None:
    """ "R26+S/32", or None if it is no hybrid with a name."""
    size = next((name for name, size in SIZES.items() if size == (c.width, c.depth, c.heads, c.mlp_width)), None)
    if size is None or c.stem is None:
        return None
    for (stem, side), (resnet, pixels) in STEMS.items():
        if (c.stem, c.patch) == (resnet, pixels):
            return f"{stem}+{size}/{side}"
    return f"C+{size}/{c.patch}" if c.stem == _usual_stem(c.patch) else None


def _usual_stem(patch: int) -> ConvStem:
    return ConvStem(tuple(64 * 2**step for step in range(patch.bit_length() - 1)))


PRESETS = {name: preset_fields(name) for name in NAMES}
