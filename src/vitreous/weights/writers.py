"""The formats of other projects that a bundle can be written in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from vitreous.errors import UserError
from vitreous.weights.bit import write_google_bit, write_huggingface_bit
from vitreous.weights.bundle import Bundle
from vitreous.weights.efficientnet import write_huggingface_efficientnet
from vitreous.weights.google import write_google
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.timm import write_timm

WeightFormat = Literal["huggingface", "timm", "google"]

WRITERS: dict[WeightFormat, dict[str, Callable[..., Path]]] = {
    "huggingface": {
        "vit": write_huggingface,
        "bit": write_huggingface_bit,
        "efficientnet": write_huggingface_efficientnet,
    },
    "timm": {"vit": write_timm, "bit": write_timm, "efficientnet": write_timm},
    "google": {"vit": write_google, "bit": write_google_bit},
}
"""By format, and by the family of the model."""
FOLDERS: dict[str, frozenset[str]] = {
    "huggingface": frozenset({"config.json", "model.safetensors", "preprocessor_config.json"}),
    "timm": frozenset({"config.json", "model.safetensors"}),
}
"""The files of a format that is a folder, besides the manifest; google is one file."""


def write_weights(out: Path, bundle: Bundle, to: WeightFormat) -> Path:
    """Write a bundle in the format of another project."""
    family = bundle.model.config.family
    if family not in WRITERS[to]:
        others = " or ".join(repr(name) for name, writers in WRITERS.items() if family in writers)
        instead = f"choose {others}" if others else "use its bundle as it is"
        raise UserError(f"to={to!r}: there are no networks of the family {family!r} in this format; {instead}.")
    return WRITERS[to][family](out, bundle.model, bundle.preprocess, bundle.labels, bundle.info)
