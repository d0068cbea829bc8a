"""`vitreous export`: a model as others read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from vitreous.arguments import checked
from vitreous.errors import UserError
from vitreous.run.opening import open_model
from vitreous.weights.bit import write_google_bit, write_huggingface_bit
from vitreous.weights.bundle import Bundle
from vitreous.weights.efficientnet import write_huggingface_efficientnet
from vitreous.weights.google import write_google
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.ours import check_apart, check_elsewhere, check_file, check_folder
from vitreous.weights.timm import write_timm

Format = Literal["huggingface", "timm", "google"]

FOLDERS: dict[str, frozenset[str]] = {
    "huggingface": frozenset({"config.json", "model.safetensors", "preprocessor_config.json"}),
    "timm": frozenset({"config.json", "model.safetensors"}),
}
"""What a folder of each format holds, besides its manifest; google is one file."""

WRITERS: dict[Format, dict[str, Callable[..., Path]]] = {
    "huggingface": {
        "vit": write_huggingface,
        "bit": write_huggingface_bit,
        "efficientnet": write_huggingface_efficientnet,
    },
    "timm": {"vit": write_timm, "bit": write_timm, "efficientnet": write_timm},
    "google": {"vit": write_google, "bit": write_google_bit},
}
"""By format, and by the family of the model."""


@checked
def export_weights(source: str | Path | Bundle, out: str | Path, to: Format) -> Path:
    """Write a model as others read it, and return where.

    source: a bundle, a run, or anything that can be imported.
    to: huggingface (a folder for `from_pretrained`), timm (a folder for "local-dir:"), google (an .npz).
    """
    out = _check_place(out, to)
    bundle = open_model(source)
    check_apart(out, bundle.path)
    family = bundle.model.config.family
    if family not in WRITERS[to]:
        others = " or ".join(repr(name) for name, writers in WRITERS.items() if family in writers)
        instead = f"choose {others}" if others else "use its bundle as it is"
        raise UserError(f"to={to!r}: there are no networks of the family {family!r} in this format; {instead}.")
    return WRITERS[to][family](out, bundle.model, bundle.preprocess, bundle.labels, bundle.info)


def _check_place(out: str | Path, to: Format) -> Path:
    """The place to write to, before anything is computed: new, empty, or an earlier export to the same format."""
    if to not in FOLDERS:
        return check_file(out)
    check_elsewhere(Path(out))
    check_folder(Path(out), FOLDERS[to])
    return Path(out)
