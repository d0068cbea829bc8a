"""Weights from wherever a person has them: a bundle, a run, or a bare .safetensors file with its preprocessing said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.weights.bundle import Bundle, build_model, load_bundle, read_tensors
from vitreous.weights.timm import recognise

EXAMPLE = "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic"


def open_weights(source: str | Path, preprocess: Preprocess | str | None = None) -> Bundle:
    """The model at `source` with all that belongs to it.

    source: a bundle folder, a run folder, or a .safetensors file in timm's naming, whose architecture is recognised.
    preprocess: for a bare file, which says nothing about it, as a `Preprocess` or as text ("mean=0.5,std=0.5");
        for a bundle, fields that should differ from its own.
    """
    path = Path(source)
    if path.suffix == ".safetensors" and not path.is_dir():
        return _open_file(path, preprocess)
    bundle = load_bundle(path)
    if preprocess is None:
        return bundle
    if isinstance(preprocess, str):
        preprocess = parse_preprocess(preprocess, bundle.preprocess)
    return replace(bundle, preprocess=preprocess)


def parse_preprocess(text: str, base: Preprocess) -> Preprocess:
    """`base` with the fields that the text names: "mean=0.485,0.456,0.406,std=0.229,0.224,0.225,size=224x160".

    One number for mean or std stands for all channels of `base`.
    """
    said: dict[str, list[str]] = {}
    name = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part:
            name, _, part = (side.strip() for side in part.partition("="))
            said[name] = []
        if name not in ("mean", "std", "crop", "interpolation", "size"):
            raise UserError(
                f"preprocess {text!r}: {name or part!r} is not one of mean, std, crop, interpolation, size; "
                f"write for example '{EXAMPLE}'."
            )
        said[name].append(part)
    changes: dict[str, object] = {}
    try:
        for name, values in said.items():
            if name in ("mean", "std"):
                numbers = tuple(float(value) for value in values)
                changes[name] = numbers * base.channels if len(numbers) == 1 else numbers
            elif len(values) != 1:
                raise ValueError
            elif name == "crop":
                changes[name] = float(values[0])
            elif name == "size":
                height, _, width = values[0].partition("x")
                changes[name] = (int(height), int(width or height))
            else:
                changes[name] = values[0]
    except ValueError:
        raise UserError(
            f"preprocess {text!r}: {name}={','.join(said[name])} cannot be read; write for example '{EXAMPLE}'."
        ) from None
    try:
        return replace(base, **changes)  # type: ignore[arg-type]
    except UserError as error:
        raise UserError(f"preprocess {text!r}: {error}") from None


def _open_file(path: Path, preprocess: Preprocess | str | None) -> Bundle:
    state = read_tensors(path)
    if preprocess is None or (isinstance(preprocess, str) and not {"mean", "std"} <= _names(preprocess)):
        raise UserError(
            f"{path}: a bare file does not say how its pictures were prepared, at least mean and std; "
            f"say it, for example --preprocess '{EXAMPLE}'."
        )
    said = preprocess.size if isinstance(preprocess, Preprocess) else parse_preprocess(preprocess, Preprocess()).size
    config = recognise({name: tuple(tensor.shape) for name, tensor in state.items()}, str(path), said)
    if isinstance(preprocess, str):
        flat = (0.5,) * config.channels
        base = Preprocess(size=config.image_size, mean=flat, std=flat)
        preprocess = parse_preprocess(preprocess, base)
    if preprocess.channels != config.channels:
        raise UserError(
            f"{path}: takes pictures of {config.channels} channels; give as many numbers in mean and in std, or one."
        )
    labels = tuple(str(number) for number in range(config.classes))
    return Bundle(build_model(config, state, path), preprocess, labels, {}, path)


def _names(text: str) -> set[str]:
    return {part.partition("=")[0].strip() for part in text.split(",") if "=" in part}
