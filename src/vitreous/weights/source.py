"""Open weights from any source: a bundle, a run, another project's file or folder, or a name on the hub."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.errors import UserError
from vitreous.inputs import reason
from vitreous.storage.manifest import has_manifest, restore_folder
from vitreous.weights import hub
from vitreous.weights.bundle import WEIGHTS, Bundle, check_consistent, check_files, is_bundle, load_bundle
from vitreous.weights.checkpoint import describe
from vitreous.weights.formats import misfit_advice, parse_checkpoint
from vitreous.weights.labels import IMAGENET, duplicate_names_note, imagenet_names
from vitreous.weights.mapping import build_model
from vitreous.weights.published import hub_name, similar_name
from vitreous.weights.reading import read_raw, unknown_entry

PREPROCESS_EXAMPLE = "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic"
PREPROCESS_FIELDS = ("mean", "std", "crop", "interpolation", "size", "resize")
REQUIRED_FIELDS = frozenset({"mean", "std", "crop", "interpolation"})
"""What must be given if the source's own preprocessing cannot be followed."""

log = logging.getLogger("vitreous")


def open_weights(
    source: str | Path,
    preprocess: Preprocess | str | None = None,
    *,
    heads: int | None = None,
    entry: str | None = None,
) -> Bundle:
    """The model at `source` with all that belongs to it.

    source: a bundle or run folder; a .safetensors, .pth or .npz file, or a Hugging Face or timm folder, whose
        architecture is recognised; the name of published weights, "s16"; or one on the hub, "hf:org/name". What was
        recognised, ignored or assumed is logged under "vitreous" and is in the result's `notes`.
    preprocess: whole, or as text ("mean=0.5,std=0.5") the fields that should differ from the source's own, or from the
        family's usual ones where the source has none.
    heads: how many heads each block has, where neither tensors nor a description tell.
    entry: which model of a training file that holds several, by its name there; None for the averaged one.
    """
    name = hub_name(source)
    path = Path(source) if name is None else hub.fetch(name)
    _check_path(path)
    if path.name == WEIGHTS and path.is_file() and (is_bundle(path.parent) or has_manifest(path.parent)):
        path = path.parent
    if _is_bundle_or_run(path):
        if not path.exists():
            near = similar_name(str(source))
            meant = "" if near is None else f" (did you mean {near!r}?)"
            raise UserError(
                f"{source}: no file or folder of this name, and no published weights{meant}; give a bundle, a run "
                "folder, or a name that `vitreous models --weights` lists."
            )
        if entry is not None:
            raise unknown_entry(path, entry)
        bundle, assumed = load_bundle(path), None
        _check_heads(bundle.model.config, heads, path)
        bundle = with_preprocess(bundle, preprocess)
    else:
        bundle, assumed = _open_checkpoint(path, preprocess, heads, entry)
    for note in bundle.notes:
        log.info(note)
    if assumed is None:
        return bundle
    log.warning(assumed)
    return replace(bundle, notes=(*bundle.notes, assumed))


def _check_path(path: Path) -> None:
    """Refuse an invalid name or a circle of links; whether something exists is checked later."""
    try:
        path.stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); check its name, mode and owner.") from None


def with_preprocess(bundle: Bundle, preprocess: Preprocess | str | None) -> Bundle:
    """The bundle with another preprocessing; a text overrides only the fields that it names."""
    if preprocess is None:
        return bundle
    channels = bundle.model.config.channels
    if isinstance(preprocess, str):
        preprocess = parse_preprocess(preprocess, bundle.preprocess, channels)
    bundle = replace(bundle, preprocess=preprocess)
    _check_channels(bundle, bundle.path or "the model")
    return bundle


def _check_channels(bundle: Bundle, where: object) -> None:
    if bundle.preprocess.channels != (channels := bundle.model.config.channels):
        raise UserError(
            f"{where}: takes images of {channels} channel{'s' * (channels > 1)}; give as many "
            "numbers in mean and in std, or one: preprocess='mean=0.5,std=0.5'."
        )


def _check_heads(config: ModelConfig, heads: int | None, where: object) -> None:
    if heads is None:
        return
    if not isinstance(config, ViTConfig):
        raise UserError(f"{where}: a model of the family {config.family!r} has no heads; leave heads out.")
    if heads != config.heads:
        raise UserError(f"{where}: says itself that it has {config.heads} heads, not {heads}; leave heads out.")


def _is_bundle_or_run(path: Path) -> bool:
    """Whether this is a bundle or a run folder; `load_bundle` refuses a path where nothing exists."""
    restore_folder(path)
    restore_folder(path / "bundle")
    if path.is_dir():
        return (path / "bundle").is_dir() or is_bundle(path)
    return not path.exists() and not path.suffix


def _open_checkpoint(
    path: Path, preprocess: Preprocess | str | None, heads: int | None, entry: str | None
) -> tuple[Bundle, str | None]:
    """The model of another project's file, and a warning if its preprocessing had to be assumed."""
    optional = ("config.json", "preprocessor_config.json")
    exported = check_files(path, (WEIGHTS,), optional) if has_manifest(path) else ()
    given = set() if preprocess is None else set(PREPROCESS_FIELDS)
    size = preprocess.size if isinstance(preprocess, Preprocess) else None
    if isinstance(preprocess, str):
        given = {part.partition("=")[0].strip() for part in preprocess.split(",")}
        size = parse_preprocess(preprocess, Preprocess()).size if "size" in given else None
    raw = read_raw(path, size, heads, entry)
    found = parse_checkpoint(raw)
    _check_heads(found.config, heads, raw.where)
    ignored = {*found.replaced, *(name for names in found.ignored_keys.values() for name in names)}
    tensors = {name: tensor for name, tensor in raw.tensors.items() if name not in ignored} if ignored else raw.tensors
    tensors = {**tensors, **found.tensors}
    model = build_model(found.config, tensors, raw.where, rules=found.rules, copy=False, advice=misfit_advice(raw))
    notes = [describe(found.family, found.config, heads_assumed=found.heads_assumed)]
    if raw.ignored or found.ignored_keys:
        others = [f"{what} ({_tensors(len(names))})" for what, names in found.ignored_keys.items()]
        others += [f"{name} ({_tensors(count)})" if count else name for name, count in raw.ignored.items()]
        other = f" (vitreous import --entry {'|'.join(raw.other_models)} takes another)" if raw.other_models else ""
        taken = f"the model is its entry {raw.entry!r}{other}; " if raw.entry else ""
        notes.append(f"{taken}ignored: {', '.join(others)}")
    notes = [*(f"{raw.where}: {note}" for note in (*notes, *found.notes)), *exported]
    if found.preprocess_error is not None and not given >= REQUIRED_FIELDS:
        raise UserError(f"{found.preprocess_error}; say the preprocessing whole: preprocess='{PREPROCESS_EXAMPLE}'.")
    classes = found.config.classes
    labels = found.labels or (imagenet_names() if classes == IMAGENET else tuple(map(str, range(classes))))
    if not found.labels and classes == IMAGENET:
        notes.append(
            f"{raw.where}: names no classes; its {IMAGENET:,} outputs are taken to be ImageNet's, from {labels[0]} to "
            f"{labels[-1]} (vitreous import --labels FILE gives others)"
        )
    if repeated := duplicate_names_note(labels):
        notes.append(f"{raw.where}: {repeated}")
    numbered = not found.labels and classes != IMAGENET
    prepared, side = found.preprocess, found.config.image_size
    patch = found.config.patch if isinstance(found.config, ViTConfig) else 1
    if prepared.size != side and side == tuple(pixels // patch * patch for pixels in prepared.size):
        rest = f"{prepared.size[0]}x{prepared.size[1]} pixels, which patches of {patch} do not divide"
        notes.append(f"{raw.where}: images are resized to {side[0]}x{side[1]} pixels; its own code takes {rest}")
        prepared = replace(prepared, size=side)
    info = {"imported": str(path), "family": found.family, "notes": notes, "numbered": numbered}
    bundle = with_preprocess(Bundle(model, prepared, labels, info, path, tuple(notes)), preprocess)
    _check_channels(bundle, raw.where)
    check_consistent(found.config, bundle.preprocess, labels, raw.where)
    if not found.preprocess_assumed or {"mean", "std"} <= given:
        return bundle, None
    return bundle, (
        f"{raw.where}: does not say how its images were prepared; taken is what is usual for {found.family}: "
        f"{preprocess_text(bundle.preprocess)}. If that is wrong, say it: preprocess='mean=...,std=...'."
    )


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' * (count > 1)}"


def preprocess_text(preprocess: Preprocess) -> str:
    """A preprocessing as `parse_preprocess` reads it: numbers with all their digits, one where all are the same."""

    def text(values: Sequence[float]) -> str:
        numbers = [repr(float(value)).removesuffix(".0") for value in values]
        return numbers[0] if len(set(numbers)) == 1 else ",".join(numbers)

    height, width = preprocess.size
    return (
        f"mean={text(preprocess.mean)},std={text(preprocess.std)},crop={text([preprocess.crop])},interpolation={preprocess.interpolation},"
        f"size={height}x{width},resize={preprocess.resize}"
    )


def parse_preprocess(text: str, base: Preprocess, channels: int | None = None) -> Preprocess:
    """`base` with the fields that the text names: "mean=0.485,0.456,0.406,std=0.229,0.224,0.225,size=224x160".

    One number for mean or std stands for all channels: `channels`, or as many as `base` has.
    """
    fields: dict[str, list[str]] = {}
    name = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part:
            name, _, part = (side.strip() for side in part.partition("="))
            fields[name] = []
        if name not in PREPROCESS_FIELDS:
            raise UserError(
                f"preprocess {text!r}: {name or part!r} is not one of {', '.join(PREPROCESS_FIELDS)}; "
                f"write for example '{PREPROCESS_EXAMPLE}'."
            )
        fields[name].append(part)
    overrides: dict[str, object] = {}
    try:
        for name, values in fields.items():
            if name in ("mean", "std"):
                numbers = tuple(float(value) for value in values)
                overrides[name] = numbers * (channels or base.channels) if len(numbers) == 1 else numbers
            elif len(values) != 1:
                raise ValueError
            elif name == "crop":
                overrides[name] = float(values[0])
            elif name == "size":
                height, _, width = values[0].partition("x")
                overrides[name] = (int(height), int(width or height))
            else:
                overrides[name] = values[0]
    except ValueError:
        given = f"{name}={','.join(fields[name])}"
        raise UserError(
            f"preprocess {text!r}: {given} cannot be read; write for example '{PREPROCESS_EXAMPLE}'."
        ) from None
    try:
        return replace(base, **overrides)  # type: ignore[arg-type]
    except UserError as error:
        raise UserError(f"preprocess {text!r}: {error}") from None
