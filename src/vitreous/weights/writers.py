"""Formats of others that a model can be written in, by format and by the family of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitreous.weights.bit import write_google_bit, write_huggingface_bit
from vitreous.weights.efficientnet import write_huggingface_efficientnet
from vitreous.weights.google import write_google
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.timm import write_timm

FOLDERS: dict[str, frozenset[str]] = {
    "huggingface": frozenset({"config.json", "model.safetensors", "preprocessor_config.json"}),
    "timm": frozenset({"config.json", "model.safetensors"}),
}
"""What a folder of each format holds, besides its manifest; google is one file."""

WRITERS: dict[str, dict[str, Callable[..., Path]]] = {
    "huggingface": {
        "vit": write_huggingface,
        "bit": write_huggingface_bit,
        "efficientnet": write_huggingface_efficientnet,
    },
    "timm": {"vit": write_timm, "bit": write_timm, "efficientnet": write_timm},
    "google": {"vit": write_google, "bit": write_google_bit},
}
"""By format, and by the family of the model."""
