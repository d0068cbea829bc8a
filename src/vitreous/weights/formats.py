"""The checkpoint formats of other projects: how each is recognised and read, and how a bundle is written in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from vitreous.arguments import shown
from vitreous.errors import UserError
from vitreous.weights.bundle import Bundle
from vitreous.weights.checkpoint import MALFORMED_ERRORS, ParsedCheckpoint, RawCheckpoint
from vitreous.weights.encoders import read_encoder
from vitreous.weights.google import read_google, read_google_bit, write_google, write_google_bit
from vitreous.weights.huggingface import VIT_TYPES, read_huggingface, write_huggingface
from vitreous.weights.huggingface_cnn import (
    read_huggingface_bit,
    read_huggingface_efficientnet,
    write_huggingface_bit,
    write_huggingface_efficientnet,
)
from vitreous.weights.meta import read_meta
from vitreous.weights.timm import architecture_of, read_timm, read_timm_bit, read_timm_efficientnet, write_timm
from vitreous.weights.timm_config import SUPPORTED, unsupported_reason


@dataclass(frozen=True)
class Format:
    """A checkpoint format of another project."""

    read: tuple[Callable[[RawCheckpoint], ParsedCheckpoint | None], ...]  # each returns None if it is not its format
    write: Mapping[str, Callable[..., Path]] = field(default_factory=dict)  # by the model's family
    files: frozenset[str] = frozenset()  # in the folder, besides the manifest; none for a format that is one file
    open_with: str = "vitreous predict {out} image.jpg"  # how the export is opened


FORMATS: dict[str, Format] = {
    "google": Format(
        (read_google, read_google_bit),
        {"vit": write_google, "bit": write_google_bit},
        open_with='numpy.load("{out}")',
    ),
    "huggingface": Format(
        (read_encoder, read_huggingface, read_huggingface_bit, read_huggingface_efficientnet),
        {"vit": write_huggingface, "bit": write_huggingface_bit, "efficientnet": write_huggingface_efficientnet},
        frozenset({"config.json", "model.safetensors", "preprocessor_config.json"}),
        open_with='transformers.{auto}.from_pretrained("{out}")',
    ),
    "meta": Format((read_meta,)),
    "timm": Format(
        (read_timm, read_timm_bit, read_timm_efficientnet),
        dict.fromkeys(("vit", "bit", "efficientnet"), write_timm),
        frozenset({"config.json", "model.safetensors"}),
        open_with='timm.create_model("local-dir:{out}", pretrained=True)',
    ),
}
"""Tried in this order: the first that recognises a checkpoint reads it."""


def write_weights(out: Path, bundle: Bundle, to: str) -> Path:
    """Write a bundle in the format of another project."""
    family = bundle.model.config.family
    if family not in FORMATS[to].write:
        others = " or ".join(repr(name) for name, format in FORMATS.items() if family in format.write)
        instead = f"choose {others}" if others else "use its bundle as it is"
        raise UserError(f"to={to!r}: there are no networks of the family {family!r} in this format; {instead}.")
    return FORMATS[to].write[family](out, bundle.model, bundle.preprocess, bundle.labels, bundle.info)


def parse_checkpoint(raw: RawCheckpoint) -> ParsedCheckpoint:
    """The checkpoint as the first format that recognises it reads it."""
    name = architecture_of(raw.config)
    if reason := unsupported_reason(name):  # whatever its tensors look like
        raise UserError(f"{raw.where}: a model of timm's type {shown(name)} {reason}; give another model.")
    try:
        for format in FORMATS.values():
            for read in format.read:
                if (found := read(raw)) is not None:
                    return found
    except UserError as error:  # an invalid configuration: its message does not name the file
        raise error if str(error).startswith(raw.where) else UserError(f"{raw.where}: {error}") from None
    except MALFORMED_ERRORS as error:
        if raw.config is None:
            raise
        why = f"{type(error).__name__}: {shown(str(error))}"
        raise UserError(f"{raw.where}: config.json beside it is malformed ({why}); get it again.") from None
    raise _unknown(raw)


_KNOWN_NAMES = {
    "a text model": ("word_embeddings", "embed_tokens", "wte.weight", "tok_embeddings", "shared.weight"),
    "a convolutional network or a hybrid of another kind": (
        *("conv1.", "conv_root", "conv_stem", "bn1.", "patch_embed.backbone."),
    ),
    "the text tower of CLIP or SigLIP, without that for images": ("text_model.", "ln_final."),
    "a Swin Transformer, which cannot be opened": ("relative_position_index", "layers.0.blocks.0.attn"),
    "one with rotary positions whose frequencies are learned, which cannot be opened": ("rope.freqs",),
}
"""Models that cannot be opened, by parts of their tensors' names."""


def _known_kind(names: Iterable[str]) -> str | None:
    return next((kind for kind, marks in _KNOWN_NAMES.items() if any(mark in n for n in names for mark in marks)), None)


def misfit_advice(raw: RawCheckpoint) -> str:
    """What to say where the tensors do not make the model that they look like."""
    if kind := _known_kind(raw.tensors):
        return f"by its tensors it is {kind}: give another model."
    if raw.config is not None:
        return "the file is damaged, config.json beside it belongs to another, or this variant cannot be opened here."
    return "the file is damaged, or it is of a variant that cannot be opened here: give another model."


def _unknown(raw: RawCheckpoint) -> UserError:
    """The error for a checkpoint of no known format."""
    names = list(raw.tensors)
    for field_name, known in (("model_type", (*VIT_TYPES, "bit", "efficientnet")), ("architecture", SUPPORTED)):
        kind = (raw.config or {}).get(field_name)
        if kind and not any(fnmatch(str(kind), pattern) for pattern in known):
            return UserError(
                f"{raw.where}: config.json beside it says {field_name} {str(kind)[:80]!r}, and a model of this type "
                f"cannot be opened; those that can are {', '.join(known)}."
            )
    what = _known_kind(names)
    return UserError(
        f"{raw.where}: not a Vision Transformer of timm, Hugging Face, Google, DeiT, DINO, DINOv2, DINOv3, MAE, CLIP "
        "or SigLIP, a BiT or an EfficientNet"
        f"{f', but by its tensors {what}' if what else ''} (its first tensors: {', '.join(names[:3]) or 'none'}); "
        "give another file."
    )
