"""The stems of hybrids in others' words, both ways: timm's names, which are ours too, and Google's.

The Transformer behind a stem is an ordinary one, and `timm.py` and `google.py` know it.
"""

from __future__ import annotations

from collections.abc import Iterator

from vitreous.config.model import ViTConfig
from vitreous.config.stem import ConvStem, ResNetStem, Stem
from vitreous.weights.foreign import Shapes, blocks_of, shape_of, stages_of
from vitreous.weights.mapping import Rule, same

BACKBONE = "patch_embed.backbone."
_ARCHITECTURES: dict[tuple[int, tuple[int, ...]], tuple[str, tuple[int, ...]]] = {
    (192, ()): ("vit_tiny_r_s16_p8", (224, 384)),
    (384, (2, 2, 2, 2)): ("vit_small_r26_s32", (224, 384)),
    (768, (2, 2, 2, 2)): ("vit_base_r26_s32", (224,)),
    (768, (3, 4, 9)): ("vit_base_r50_s16", (224, 384)),
    (1024, (3, 4, 6, 3)): ("vit_large_r50_s32", (224, 384)),
}
"""timm's hybrids, by width and the blocks of the stem's stages, and the sides of images that each is named for."""


def has_backbone(shapes: Shapes) -> bool:
    """Whether tensors by timm's names have something before the patches."""
    return any(name.startswith(BACKBONE) for name in shapes)


def read_stem(shapes: Shapes, where: str) -> tuple[Stem, int] | None:
    """The stem by timm's names, and the channels of its images; None if it is one of timm's many others."""
    if f"{BACKBONE}convs.0.weight" in shapes:
        count = blocks_of(shapes, f"{BACKBONE}convs.", ".")
        kernels = [shape_of(shapes, f"{BACKBONE}convs.{layer}.weight", 4, where) for layer in range(count)]
        return ConvStem(tuple(kernel[0] for kernel in kernels)), kernels[0][1]
    for root in ("conv", "stem.conv"):
        if not {f"{BACKBONE}{root}.weight", f"{BACKBONE}{root.replace('conv', 'norm')}.weight"} <= set(shapes):
            continue
        width, channels, *_ = shape_of(shapes, f"{BACKBONE}{root}.weight", 4, where)
        stages = range(stages_of(shapes, f"{BACKBONE}stages.", ".", where))
        depths = tuple(blocks_of(shapes, f"{BACKBONE}stages.{stage}.blocks.", ".") for stage in stages)
        return ResNetStem(depths, width / 64), channels
    return None


def timm_architecture(c: ViTConfig) -> tuple[str, int] | None:
    """timm's name of the hybrid with this stem and width, and the side of its images; None if it has none."""
    if not isinstance(c.stem, ResNetStem) or c.stem.width != 1:
        return None
    name, sides = _ARCHITECTURES.get((c.width, c.stem.depths), ("", ()))
    if not name:
        return None
    side = c.image_size[0] if c.image_size[0] in sides else sides[0]
    return f"{name}_{side}", side


def first_convolution_name(c: ViTConfig) -> str:
    """Of the layer that looks at the pixels, by timm's names."""
    if not isinstance(c.stem, ResNetStem):
        return "patch_embed.proj" if c.stem is None else f"{BACKBONE}convs.0"
    return f"{BACKBONE}stem.conv" if c.stem.depths else f"{BACKBONE}conv"


def read_google_stem(shapes: Shapes, prefix: str, where: str) -> tuple[ResNetStem, int]:
    """The stem by Google's names, and the channels of its images."""
    *_, channels, width = shape_of(shapes, f"{prefix}conv_root/kernel", 4, where)
    stages = range(1, stages_of(shapes, f"{prefix}block", "/", where))  # they count from 1
    depths = tuple(blocks_of(shapes, f"{prefix}block{stage}/unit", "/") - 1 for stage in stages)
    return ResNetStem(depths, width / 64), channels


def google_stem_rules(stem: ResNetStem, prefix: str, shapes: Shapes | None = None) -> Iterator[Rule]:
    """Each tensor of a stem with theirs. shapes: of the file, if there is one; some keep norms as (1, 1, 1, C)."""

    def convolution(ours: str, theirs: str) -> Rule:
        turned, back = (2, 3, 1, 0), (3, 2, 0, 1)
        return Rule(ours, (theirs,), lambda w: (w.permute(*turned),), lambda parts: parts[0].permute(*back))

    def norm(ours: str, theirs: str) -> Iterator[Rule]:
        for part, name in (("weight", f"{theirs}/scale"), ("bias", f"{theirs}/bias")):
            if shapes is not None and len(shapes.get(name, ())) == 4:
                yield Rule(
                    f"{ours}.{part}", (name,), lambda w: (w[None, None, None],), lambda parts: parts[0].flatten()
                )
            else:
                yield same(f"{ours}.{part}", name)

    root = f"{BACKBONE}stem." if stem.depths else BACKBONE
    yield convolution(f"{root}conv.weight", f"{prefix}conv_root/kernel")
    yield from norm(f"{root}norm", f"{prefix}gn_root")
    for stage, depth in enumerate(stem.depths):
        for block in range(depth):
            ours, theirs = f"{BACKBONE}stages.{stage}.blocks.{block}", f"{prefix}block{stage + 1}/unit{block + 1}"
            for layer in (1, 2, 3):
                yield convolution(f"{ours}.conv{layer}.weight", f"{theirs}/conv{layer}/kernel")
                yield from norm(f"{ours}.norm{layer}", f"{theirs}/gn{layer}")
            if block == 0:
                yield convolution(f"{ours}.downsample.conv.weight", f"{theirs}/conv_proj/kernel")
                yield from norm(f"{ours}.downsample.norm", f"{theirs}/gn_proj")
