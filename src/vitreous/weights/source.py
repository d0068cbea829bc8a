"""Weights from wherever a person has them: a bundle, a run, another project's file or folder, or a name on the hub."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.errors import UserError
from vitreous.inputs import reason
from vitreous.storage.manifest import has_manifest, restore_folder
from vitreous.weights import hub
from vitreous.weights.bit import read_bit
from vitreous.weights.bundle import WEIGHTS, Bundle, check_parts, check_whole, is_bundle, load_bundle
from vitreous.weights.efficientnet import read_efficientnet
from vitreous.weights.foreign import MALFORMED, Foreign, Raw, describe
from vitreous.weights.google import read_google
from vitreous.weights.huggingface import FAMILIES, read_huggingface
from vitreous.weights.labels import IMAGENET, imagenet_names, repeated_names
from vitreous.weights.mapping import build_model
from vitreous.weights.meta import read_meta
from vitreous.weights.reading import no_entry, read_raw
from vitreous.weights.timm import read_timm
from vitreous.weights.timm_architectures import OPENED
from vitreous.weights.timm_layout import check_architecture
from vitreous.wording import shown

EXAMPLE = "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic"
FIELDS = ("mean", "std", "crop", "interpolation", "size", "resize")
WHOLE = ("mean", "std", "crop", "interpolation")
"""What must be stated where the source's own preprocessing cannot be followed."""

ADAPTERS: dict[str, Callable[[Raw], Foreign | None]] = {
    "google": read_google,
    "huggingface": read_huggingface,
    "meta": read_meta,
    "timm": read_timm,
    "bit": read_bit,
    "efficientnet": read_efficientnet,
}
"""Who may know what was read, asked in this order; the first that does not answer None has it."""

MODEL_TYPES = (*FAMILIES, "bit", "efficientnet")
"""Of Hugging Face's folders, that can be opened."""

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
        architecture is recognised; or a name on the hub, "hf:org/name". What was recognised, left aside or assumed is
        logged under "vitreous" and is in the result's `notes`.
    preprocess: whole, or as text ("mean=0.5,std=0.5") the fields that should differ from the source's own, or from the
        family's usual ones where the source has none.
    heads: how many heads each block has, where neither tensors nor a description tell.
    entry: which model of a training file that holds several, by its name there; None for the averaged one.
    """
    path = hub.fetch(str(source)) if str(source).startswith(hub.PREFIX) else Path(source)
    _check_name(path)
    if path.name == WEIGHTS and path.is_file() and (is_bundle(path.parent) or has_manifest(path.parent)):
        path = path.parent
    if _is_bundle(path):
        if entry is not None:
            raise no_entry(path, entry)
        bundle = load_bundle(path)
        _check_heads(bundle.model.config, heads, path)
        for note in bundle.notes:
            log.info(note)
        return with_preprocess(bundle, preprocess)
    bundle, assumed = _open_foreign(path, preprocess, heads, entry)
    for note in bundle.notes:
        log.info(note)
    if assumed:
        log.warning(assumed)
        bundle = replace(bundle, notes=(*bundle.notes, assumed))
    return bundle


def _check_name(path: Path) -> None:
    """Refuse a name that no file can have, or that leads round in circles; whether something is there comes later."""
    try:
        path.stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); check its name, mode and owner.") from None


def with_preprocess(bundle: Bundle, preprocess: Preprocess | str | None) -> Bundle:
    """The bundle with another preprocessing, or with the fields that a text names changed."""
    if preprocess is None:
        return bundle
    channels, where = bundle.model.config.channels, bundle.path or "the model"
    if isinstance(preprocess, str):
        preprocess = parse_preprocess(preprocess, bundle.preprocess, channels)
    if preprocess.channels != channels:
        raise _other_channels(where, channels)
    return replace(bundle, preprocess=preprocess)


def _other_channels(where: object, channels: int) -> UserError:
    return UserError(
        f"{where}: takes images of {channels} channel{'s' * (channels > 1)}; give as many numbers in mean and in "
        "std, or one: preprocess='mean=0.5,std=0.5'."
    )


def _check_heads(config: ModelConfig, said: int | None, where: object) -> None:
    if said is None:
        return
    if not isinstance(config, ViTConfig):
        raise UserError(f"{where}: a model of the family {config.family!r} has no heads; leave heads out.")
    if said != config.heads:
        raise UserError(f"{where}: says itself that it has {config.heads} heads, not {said}; leave heads out.")


def _is_bundle(path: Path) -> bool:
    """Whether this is ours: a bundle, or a run with one; of a path with nothing there, `load_bundle` says so."""
    restore_folder(path)
    restore_folder(path / "bundle")
    if path.suffix and not path.exists():
        return False
    if not path.is_dir():
        return not path.exists()
    if (path / "bundle").is_dir():
        return True
    return is_bundle(path)


def _open_foreign(
    path: Path, preprocess: Preprocess | str | None, heads: int | None, entry: str | None
) -> tuple[Bundle, str | None]:
    """The model of another project's file, and a warning if its preprocessing had to be assumed."""
    exported = check_whole(path, ("preprocessor_config.json",)) if has_manifest(path) else ()
    raw = read_raw(path, _size(preprocess), heads, entry)
    found = _recognise(raw)
    _check_heads(found.config, heads, raw.where)
    aside = {name for names in found.aside.values() for name in names}
    tensors = {name: tensor for name, tensor in raw.tensors.items() if name not in aside} if aside else raw.tensors
    model = build_model(found.config, tensors, raw.where, rules=found.rules, copy=False)
    notes = [f"{raw.where}: {describe(found.family, found.config, heads_assumed=found.heads_assumed)}"]
    if raw.aside or found.aside:
        others = [f"{what} ({_tensors(len(names))})" for what, names in found.aside.items()]
        others += [f"{name} ({_tensors(count)})" if count else name for name, count in raw.aside.items()]
        other = f" (vitreous import --entry {'|'.join(raw.models)} takes another)" if raw.models else ""
        taken = f"the model is its entry {raw.entry!r}{other}; " if raw.entry else ""
        notes.append(f"{raw.where}: {taken}left aside: {', '.join(others)}")
    notes += [*(f"{raw.where}: {note}" for note in found.notes), *exported]
    if found.problem is not None and not _said(preprocess) >= set(WHOLE):
        raise UserError(f"{found.problem}; say the preprocessing whole: preprocess='{EXAMPLE}'.")
    labels = found.labels or _usual_labels(found.config.classes)
    if not found.labels and found.config.classes == IMAGENET:
        notes.append(
            f"{raw.where}: names no classes; its {IMAGENET:,} outputs are taken to be ImageNet's, from {labels[0]} to "
            f"{labels[-1]} (vitreous import --labels FILE gives others)"
        )
    if repeated := repeated_names(labels):
        notes.append(f"{raw.where}: {repeated}")
    numbered = not found.labels and found.config.classes != IMAGENET
    info = {"imported": str(path), "family": found.family, "notes": notes, "numbered": numbered}
    bundle = with_preprocess(Bundle(model, found.preprocess, labels, info, path, tuple(notes)), preprocess)
    if bundle.preprocess.channels != found.config.channels:
        raise _other_channels(raw.where, found.config.channels)
    check_parts(found.config, bundle.preprocess, labels, raw.where)
    return bundle, _warning(raw, found, preprocess, bundle.preprocess)


def _usual_labels(classes: int) -> tuple[str, ...]:
    """The names of classes that nobody named: ImageNet's for so many outputs, else numbers."""
    return imagenet_names() if classes == IMAGENET else tuple(str(number) for number in range(classes))


def _recognise(raw: Raw) -> Foreign:
    """What the first adapter that knows it makes of it."""
    check_architecture(raw)
    try:
        found = next((foreign for read in ADAPTERS.values() if (foreign := read(raw)) is not None), None)
    except UserError as error:  # of a configuration that cannot be: it does not know the file
        raise error if str(error).startswith(raw.where) else UserError(f"{raw.where}: {error}") from None
    except MALFORMED as error:
        if raw.config is None:
            raise
        why = f"{type(error).__name__}: {shown(str(error))}"
        raise UserError(f"{raw.where}: config.json beside it is malformed ({why}); get it again.") from None
    if found is None:
        raise unknown(raw)
    return found


def _said(preprocess: Preprocess | str | None) -> set[str]:
    """The fields of a preprocessing that a person stated."""
    if isinstance(preprocess, str):
        return {part.partition("=")[0].strip() for part in preprocess.split(",")}
    return set() if preprocess is None else set(FIELDS)


def _warning(raw: Raw, found: Foreign, said: Preprocess | str | None, prepared: Preprocess) -> str | None:
    """What is said of a preprocessing that nobody stated."""
    if not found.assumed or {"mean", "std"} <= _said(said):
        return None
    return (
        f"{raw.where}: does not say how its images were prepared; taken is what is usual for {found.family}: "
        f"{preprocess_text(prepared)}. If that is wrong, say it: preprocess='mean=...,std=...'."
    )


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' * (count > 1)}"


def unknown(raw: Raw) -> UserError:
    """The error for tensors that no adapter knows; by the name of the type, if a config.json says it."""
    names = list(raw.tensors)
    said = raw.config or {}
    for field, known in (("model_type", MODEL_TYPES), ("architecture", OPENED)):
        if (kind := said.get(field)) and not any(fnmatch(str(kind), pattern) for pattern in known):
            return UserError(
                f"{raw.where}: config.json beside it says {field} {str(kind)[:80]!r}, and a model of this type cannot "
                f"be opened; those that can are {', '.join(known)}."
            )
    kinds = {
        "a text model": ("word_embeddings", "embed_tokens", "wte.weight", "tok_embeddings", "shared.weight"),
        "a convolutional network or a hybrid of another kind": (
            *("conv1.", "conv_root", "conv_stem", "bn1.", "patch_embed.backbone."),
        ),
        "CLIP or SigLIP, which cannot be opened": ("vision_model.embeddings.", "visual.transformer.", "text_model."),
        "a Swin Transformer, which cannot be opened": ("relative_position_index", "layers.0.blocks.0.attn"),
        "one with rotary positions such as EVA-02 or DINOv3, which cannot be opened": ("rope", "periods"),
    }
    what = next((kind for kind, marks in kinds.items() if any(mark in n for n in names for mark in marks)), None)
    return UserError(
        f"{raw.where}: not a Vision Transformer of timm, Hugging Face, Google, DeiT, DINO, DINOv2 or MAE, a BiT or an "
        "EfficientNet"
        f"{f', but by its tensors {what}' if what else ''} (its first tensors: {', '.join(names[:3]) or 'none'}); "
        "give another file."
    )


def _size(preprocess: Preprocess | str | None) -> tuple[int, int] | None:
    """The image's size, if the person said it."""
    if isinstance(preprocess, Preprocess):
        return preprocess.size
    if preprocess is None or "size" not in _said(preprocess):
        return None
    return parse_preprocess(preprocess, Preprocess()).size


def preprocess_text(preprocess: Preprocess) -> str:
    """A preprocessing as `parse_preprocess` reads it."""
    numbers = {name: ",".join(map(_number, getattr(preprocess, name))) for name in ("mean", "std")}
    same = {name: text.split(",")[0] if len(set(text.split(","))) == 1 else text for name, text in numbers.items()}
    height, width = preprocess.size
    return (
        f"mean={same['mean']},std={same['std']},crop={_number(preprocess.crop)},interpolation={preprocess.interpolation},"
        f"size={height}x{width},resize={preprocess.resize}"
    )


def _number(value: float) -> str:
    """All its digits, so that it is read back as it was."""
    return repr(float(value)).removesuffix(".0")


def parse_preprocess(text: str, base: Preprocess, channels: int | None = None) -> Preprocess:
    """`base` with the fields that the text names: "mean=0.485,0.456,0.406,std=0.229,0.224,0.225,size=224x160".

    One number for mean or std stands for all channels: so many, or as many as `base` has.
    """
    said: dict[str, list[str]] = {}
    name = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part:
            name, _, part = (side.strip() for side in part.partition("="))
            said[name] = []
        if name not in FIELDS:
            raise UserError(
                f"preprocess {text!r}: {name or part!r} is not one of {', '.join(FIELDS)}; "
                f"write for example '{EXAMPLE}'."
            )
        said[name].append(part)
    changes: dict[str, object] = {}
    try:
        for name, values in said.items():
            if name in ("mean", "std"):
                numbers = tuple(float(value) for value in values)
                changes[name] = numbers * (channels or base.channels) if len(numbers) == 1 else numbers
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
