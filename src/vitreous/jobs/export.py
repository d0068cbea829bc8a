"""`vitreous export`: a model as others read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from vitreous.arguments import Merge, checked
from vitreous.config.data import Preprocess
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.inference.conversion import engine_card
from vitreous.inference.export import prepare_export
from vitreous.inference.folder import ABOUT, CARD, save_engine
from vitreous.inference.opening import open_model
from vitreous.inference.runtime import RUNTIMES
from vitreous.storage.overwrite import check_apart, check_elsewhere, check_file, check_folder
from vitreous.weights.bit import write_google_bit, write_huggingface_bit
from vitreous.weights.bundle import Bundle
from vitreous.weights.efficientnet import write_huggingface_efficientnet
from vitreous.weights.google import write_google
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.timm import write_timm
from vitreous.wording import Range

MaxDrop = Annotated[float, Range(0, 100)]
Format = Literal["huggingface", "timm", "google", "openvino", "onnx"]

FOLDERS: dict[str, frozenset[str]] = {
    "huggingface": frozenset({"config.json", "model.safetensors", "preprocessor_config.json"}),
    "timm": frozenset({"config.json", "model.safetensors"}),
    **{name: frozenset({ABOUT, CARD, *runtime.files}) for name, runtime in RUNTIMES.items()},
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
def export_weights(
    source: str | Path | Bundle,
    out: str | Path,
    to: Format,
    *,
    int8: bool = False,
    calibrate: str | Path | Data | None = None,
    verify: str | Path | Data | None = None,
    max_drop: MaxDrop | None = None,
    merge: Merge | None = None,
    preprocess: Preprocess | str | None = None,
) -> Path:
    """Write a model as others read it, and return where.

    source: a bundle, a run, or anything that can be imported.
    to: huggingface (a folder for `from_pretrained`), timm (a folder for "local-dir:"), google (an .npz); openvino or
        onnx (a folder with the graph that the runtime computes, verified beside the network; a model for `predict`).
    int8: openvino: the large products in 8-bit integers; `calibrate` is then needed.
    calibrate: labelled images, from which the ranges of activations are read.
    verify: images to compare answers on; for int8 labelled ones, on which accuracy is measured. If None, the val
        split of those to calibrate with, or their test split, or some images of the package's own.
    max_drop: points of accuracy that int8 may lose, 0.5 if None.
    merge, preprocess: openvino and onnx: how many tokens the graph merges per block, and how it wants its images
        ("size=384"); as the model says if None.
    """
    out = _check_place(out, to)
    _check_options(to, int8, {"calibrate": calibrate, "max_drop": max_drop})
    if to not in RUNTIMES:
        for name, given in (("verify", verify), ("merge", merge), ("preprocess", preprocess)):
            if given is not None:
                raise UserError(f"{name}: only for an export to {' or '.join(RUNTIMES)}, not to {to}; leave it out.")
    bundle = open_model(source, preprocess, merge)
    check_apart(out, bundle.path)
    if to == "openvino" or to == "onnx":
        found = prepare_export(bundle, to, calibrate=calibrate, verify=verify, max_drop=max_drop)
        return save_engine(out, found.model, found.about, engine_card(bundle, found.about))
    family = bundle.model.config.family
    if family not in WRITERS[to]:
        others = " or ".join(repr(name) for name, writers in WRITERS.items() if family in writers)
        instead = f"choose {others}" if others else "use its bundle as it is"
        raise UserError(f"to={to!r}: there are no networks of the family {family!r} in this format; {instead}.")
    return WRITERS[to][family](out, bundle.model, bundle.preprocess, bundle.labels, bundle.info)


def _check_options(to: Format, int8: bool, of_int8: Mapping[str, object]) -> None:
    """Refuse int8 where there is none, int8 without images, and what only int8 would use."""
    if int8 and (to not in RUNTIMES or RUNTIMES[to].quantise is None):
        raise UserError(f"int8: there is none for {to}; export to openvino, or leave it out.")
    if int8 and of_int8["calibrate"] is None:
        raise UserError("int8: needs labelled images to calibrate with; give calibrate.")
    for name, given in of_int8.items():
        if given is not None and not int8:
            raise UserError(f"{name}: only int8 needs it; ask for int8, or leave it out.")


def _check_place(out: str | Path, to: Format) -> Path:
    """The place to write to, before anything is computed: new, empty, or an earlier export to the same format."""
    if to not in FOLDERS:
        return check_file(out)
    check_elsewhere(Path(out))
    check_folder(Path(out), FOLDERS[to])
    return Path(out)
