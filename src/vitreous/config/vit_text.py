"""What a Vision Transformer's configuration is called and shown as."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitreous.config.model import ViTConfig


def describe_vit(c: ViTConfig) -> str:
    """The title and the numbers that fix the size."""
    near = {"neighbourhood": f", attention to {c.window}×{c.window} patches", "axial": ", axial attention"}
    size, odd = f"width {c.width}, depth {c.depth}", near.get(c.attention, "")
    odd += f", merging {2 * c.merge} tokens in every second block" if c.merge else ""
    if c.stem is None:
        return f"ViT of {size}, patch {c.patch}{odd}"
    token = f"a token for {c.patch}×{c.patch} pixels"
    return f"{c.title()} ({c.stem.describe()}, ViT of {size}, {token}{odd})"


def vit_architecture(c: ViTConfig) -> dict[str, str]:
    """What it is made of, for reports, without its ends."""
    (rows, columns), rest = c.grid, "the class token and its like to all"
    tokens = ", the class token" * c.class_token + ", the distillation token" * c.distilled
    tokens += f", {c.registers} registers" if c.registers else ""
    found = {} if c.stem is None else {"Stem": c.stem.architecture()}
    found |= {
        "Patches": f"{rows}×{columns} of {c.patch}×{c.patch} pixels",
        "Tokens": f"{c.prefix + c.patches}: {c.patches} patches{tokens}",
        "Width, depth, heads": f"{c.width}, {c.depth}, {c.heads}",
    }
    if c.attention == "neighbourhood":
        found["Attention"] = f"to the {c.window}×{c.window} patches around each; {rest}"
    elif c.attention == "axial":
        found["Attention"] = f"along rows and columns in turn; {rest}"
    if c.merge:
        left = c.patches - sum(c.merges(c.patches))
        found["Token merging"] = f"{2 * c.merge} in every second block: {c.patches} patch tokens become {left}"
    found["MLP"] = f"{c.mlp_width} units, {c.mlp}"
    found["Positions"] = c.position if c.rope is None else f"rotary and {c.position}".removesuffix(" and none")
    found["Answer is read from"] = {
        "class": "the class token",
        "mean": "the mean of the patches",
        "class+mean": "the class token and the mean of the patches",
        "attention": "a learned query that attends to the patches",
    }[c.pool]
    return found
