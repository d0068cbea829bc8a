"""Which fields of a Vision Transformer's configuration go together, and which sizes of images fit its patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.config.model import ViTConfig


def check_vit(c: ViTConfig) -> None:
    """Refuse fields that do not go together."""
    if c.width % c.heads:
        nearby = range(max(1, c.heads - 1000), min(c.heads + 1000, c.width) + 1)
        fitting = [heads for heads in nearby if c.width % heads == 0] or [1]
        best = min(fitting, key=lambda heads: abs(heads - c.heads))
        raise UserError(f"heads={c.heads}: does not divide width={c.width}; {best} does.")
    if c.pool.startswith("class") and not c.class_token:
        raise UserError(
            f"pool={c.pool!r}: there is no class token to read; set class_token=True, or pool to 'mean' or 'attention'."
        )
    if c.position == "sincos-2d" and c.width % 4:
        raise UserError(f"position='sincos-2d': needs a width divisible by 4, not {c.width}; {nearest(c.width, 4)}.")
    if c.position == "learned-2d" and c.width % 2:
        raise UserError(f"position='learned-2d': needs an even width, not {c.width}; {nearest(c.width, 2)}.")
    if not c.final_norm and c.norm_after_pool:
        raise UserError("norm_after_pool=True: final_norm=False leaves no norm to move; set one of them back.")
    if c.norm == "after" and c.norm_after_pool:
        raise UserError("norm_after_pool=True: norm='after' has no final norm to move; set one of them back.")
    if c.pool == "class+mean" and c.norm_after_pool:
        raise UserError("norm_after_pool=True: pool='class+mean' has two vectors, not one; set one of them back.")
    if c.rope is not None and c.width // c.heads % 4:
        raise UserError(
            f"rope: needs heads of a width divisible by 4, not {c.width // c.heads}; change width or heads."
        )
    if c.projection and (c.classes or c.distilled):
        raise UserError(f"projection={c.projection}: takes the place of a classifier; set classes=0, or projection=0.")
    pooling = [name for name in ("pool_prefix", "pool_heads", "pool_mlp_width") if getattr(c, name)]
    if pooling and c.pool != "attention":
        raise UserError(f"{pooling[0]}: pool={c.pool!r} has no attention of its own; leave it out.")
    if c.pool_heads and c.width % c.pool_heads:
        raise UserError(f"pool_heads={c.pool_heads}: does not divide width={c.width}; give one that does.")
    if c.distilled and (c.pool != "class" or c.norm_after_pool or c.classifier != "linear"):
        raise UserError(
            "distilled=True: both classifiers read a token each; it needs pool='class', classifier='linear' and "
            "norm_after_pool=False."
        )
    if c.classifier == "mlp" and not c.classes:
        raise UserError(
            "classifier='mlp': there is none with classes=0; give the number of classes, or classifier='linear'."
        )
    _check_window(c)
    _check_merge(c)
    _check_stem(c)
    check_image_size(c.image_size, c.patch, c.pad)


def _check_window(c: ViTConfig) -> None:
    if c.attention != "neighbourhood":
        if c.window is not None:
            raise UserError(
                f"window={c.window}: only attention='neighbourhood' has one; set it, or leave the window out."
            )
    elif c.window is None or c.window % 2 == 0:
        raise UserError(
            f"window={c.window}: attention='neighbourhood' needs the side of the square around each patch, an "
            "odd number of patches; give 3, 5, 7 or another."
        )


def _check_merge(c: ViTConfig) -> None:
    if c.merge and c.attention != "full":
        raise UserError(
            f"merge={c.merge}: a merged token has no single place, and attention={c.attention!r} needs one; "
            "set merge=0, or attention='full'."
        )
    if c.merge and c.position == "relative":
        raise UserError(
            f"merge={c.merge}: a merged token has no single place, and position='relative' compares places in "
            "every block; set merge=0, or another position."
        )


def _check_stem(c: ViTConfig) -> None:
    if c.stem is None:
        return
    if c.patch % c.stem.stride:
        raise UserError(
            f"patch={c.patch}: the stem halves the image down to 1/{c.stem.stride} of its side, so a patch "
            f"has a multiple of {c.stem.stride} pixels; {nearest(c.patch, c.stem.stride)}."
        )
    if c.patch_dropout:
        raise UserError(
            f"patch_dropout={c.patch_dropout}: the stem looks at all patches at once, so none can be left out; "
            "set it to 0, or use a model without a stem."
        )


def check_image_size(size: tuple[int, int], patch: int, pad: bool) -> None:
    """Refuse a (height, width) that the patch does not divide, unless images are padded."""
    if min(size) < 1:
        raise UserError(f"image_size {size[0]}x{size[1]}: an image has at least one pixel; the patch is {patch}.")
    if pad:
        return
    for name, side in zip(("height", "width"), size, strict=True):
        if side % patch:
            raise UserError(
                f"image_size {size[0]}x{size[1]}: the {name} {side} is not a multiple of the patch {patch}; "
                f"{nearest(side, patch)}, or set pad=True."
            )


def nearest(value: int, step: int) -> str:
    below, above = value // step * step, (value // step + 1) * step
    return f"the nearest that work are {below} and {above}" if below else f"the smallest that works is {above}"
