"""A bundle: a folder with everything that a model needs, which timm opens too.

config.json         timm's hub layout, and our own section "vitreous"
model.safetensors   the tensors, under timm's names
README.md           the model card
manifest.json       size and SHA-256 of each of them, checked at every load
seen-images.json    after a training: hashes of the images that it has seen

Other files in the folder are never read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitreous.arguments import shown
from vitreous.config.data import Preprocess
from vitreous.config.fields import from_fields
from vitreous.config.model import ModelConfig, model_to_json, with_article
from vitreous.errors import UserError
from vitreous.inputs import counted, read_json, utf8_text
from vitreous.memory import check_memory
from vitreous.model.family import config_from_json
from vitreous.model.network import Network
from vitreous.storage.files import new_folder, write_tensors
from vitreous.storage.manifest import (
    MANIFEST,
    check_manifest,
    has_manifest,
    read_manifest,
    read_whole,
    restore_folder,
    sha256_json,
    unlisted_files,
)
from vitreous.weights.mapping import build_model, export_state
from vitreous.weights.markdown import code
from vitreous.weights.reading import read_safetensors
from vitreous.weights.seen_images import SeenImages
from vitreous.weights.timm_config import timm_config, to_timm

CONFIG, WEIGHTS, CARD, SEEN = "config.json", "model.safetensors", "README.md", "seen-images.json"
FORMAT = 1


@dataclass(frozen=True)
class Bundle:
    """A model with its preprocessing and labels."""

    model: Network  # in evaluation mode, in float32
    preprocess: Preprocess
    labels: tuple[str, ...]  # (K,) the names of the classes, in the classifier's order
    info: dict[str, Any] = field(default_factory=dict)  # about the training or the import
    path: Path | None = None  # where it was read from
    notes: tuple[str, ...] = ()
    """From another format: what it was recognised as, ignored keys, what was assumed. From a bundle: files in its
    folder that do not belong to it."""
    seen_images: SeenImages | None = None  # of its training; None where that is not known

    def __repr__(self) -> str:
        return f"Bundle({self.summary()})"

    def summary(self) -> str:
        """ "ViT of width 192, depth 12, patch 16; 224x224 pixels; 2 classes: ants, bees; runs/insects/bundle"."""
        height, width = self.preprocess.size
        some = ", ".join(self.labels[:3]) + (", ..." if len(self.labels) > 3 else "")
        classes = f"{counted(len(self.labels), 'class')}: {some}" if self.labels else "no classifier"
        parts = [self.model.config.describe(), f"{height}x{width} pixels", classes]
        return "; ".join([*parts, *([] if self.path is None else [str(self.path)])])


def save_bundle(
    path: str | Path,
    model: Network,
    preprocess: Preprocess,
    labels: Sequence[str],
    *,
    card: str | None = None,
    info: dict[str, Any] | None = None,
    seen_images: SeenImages | None = None,
) -> Path:
    """Write a bundle and return its folder. An earlier bundle is replaced only when the new one is complete.

    card: the text of README.md; None for a plain one. info: JSON values, which `load_bundle` returns.
    """
    path = Path(path)
    labels = tuple(labels)
    check_consistent(model.config, preprocess, labels, str(path))
    section = {
        "format": FORMAT,
        "model": model_to_json(model.config),
        "preprocess": asdict(preprocess),
        "labels": list(labels),
        "training": info or {},
    }
    described = json.dumps(timm_config(model.config, preprocess, labels) | {"vitreous": section}, indent=2)
    state = export_state(model.state_dict(), to_timm(model.config).rules)
    with new_folder(path) as folder:
        (folder / CONFIG).write_text(described + "\n", encoding="utf-8")
        text = _plain_card(model.config, labels) if card is None else card
        (folder / CARD).write_text(utf8_text(text), encoding="utf-8")
        write_tensors(folder / WEIGHTS, state)
        if seen_images is not None:
            (folder / SEEN).write_text(json.dumps(seen_images.to_json(), indent=2) + "\n", encoding="utf-8")
    return path


def load_bundle(path: str | Path) -> Bundle:
    """The bundle in a folder, or in the subfolder `bundle` of a run; the digest of every file is checked."""
    return read_whole(Path(path), lambda: _load(find_bundle(Path(path))))


def _load(folder: Path) -> Bundle:
    notes, path = check_files(folder, optional=(SEEN,)), folder / CONFIG
    config_json = read_json(path)
    fields = config_json.get("vitreous") if isinstance(config_json, dict) else None
    if not isinstance(fields, dict) or "format" not in fields:
        raise UserError(f"{path}: has no section 'vitreous' with a format; save the bundle with vitreous.")
    if (version := fields["format"]) != FORMAT:
        raise UserError(
            f"{path}: written in format {shown(version)}, and this vitreous reads {FORMAT}; install a newer one."
        )
    section = from_fields(_Section, fields, path)
    config = config_from_json(section.model, str(path))
    check_consistent(config, section.preprocess, section.labels, str(path))
    model = build_model(config, read_safetensors(folder / WEIGHTS), folder / WEIGHTS, rules=to_timm(config).rules)
    seen = SeenImages.from_json(read_json(folder / SEEN), folder / SEEN) if (folder / SEEN).exists() else None
    return Bundle(model, section.preprocess, section.labels, section.training, folder, notes, seen)


def check_files(
    folder: Path, required: Sequence[str] = (CONFIG, WEIGHTS), optional: Sequence[str] = ()
) -> tuple[str, ...]:
    """Refuse a damaged or incomplete folder of ours; return a note about files that do not belong to it, if any.

    required, optional: files that are read, always or if they exist; the manifest must list them.
    """
    listed = check_manifest(folder)
    read = [*required, *(name for name in optional if (folder / name).exists())]
    if missing := [name for name in read if name not in listed]:
        raise UserError(
            f"{folder / MANIFEST}: does not list {missing[0]}, so nothing vouches for it; restore the folder from a "
            "copy, or save the model again."
        )
    others = unlisted_files(folder, listed)
    some = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return (f"{folder}: not part of the model, and not read: {some}",) if others else ()


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle, intact or damaged: its manifest lists a model card, or its config.json says so.

    The manifest of an export to another project's format lists no card.
    """
    try:
        if has_manifest(folder) and CARD in read_manifest(folder):
            return True
    except UserError:  # damaged: `load_bundle` refuses it
        return True
    try:
        config = read_json(folder / CONFIG)
    except UserError:  # not there, or not ours
        return False
    return isinstance(config, dict) and "vitreous" in config


def find_bundle(path: Path) -> Path:
    """The bundle's folder, from itself or from a run folder."""
    restore_folder(path)
    restore_folder(path / "bundle")
    if not path.exists():
        raise UserError(f"{path}: there is nothing of this name; give a bundle folder or a run folder.")
    if not path.is_dir():
        raise UserError(f"{path}: not a folder; give a bundle folder or a run folder.")
    if (path / WEIGHTS).exists():
        return path
    if (path / "bundle").is_dir():
        return path / "bundle"
    has = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
    raise UserError(f"{path}: not a bundle, for it has no {WEIGHTS} (it holds {has}); give a bundle or a run folder.")


@dataclass(frozen=True)
class _Section:
    """Our own section of config.json."""

    format: int
    model: dict[str, Any]
    preprocess: Preprocess
    labels: tuple[str, ...]
    training: dict[str, Any]


def check_consistent(config: ModelConfig, preprocess: Preprocess, labels: Sequence[str], where: str) -> None:
    """Refuse labels or preprocessing that do not fit the model."""
    if len(labels) != config.classes:
        raise UserError(
            f"{where}: there are {len(labels)} labels and the classifier has {config.classes} outputs; "
            "give one label for each output, in its order."
        )
    if len(labels) > 1 and len(set(labels)) == 1:
        raise UserError(f"{where}: all {len(labels)} labels are {shown(labels[0])}; give each class a name of its own.")
    if preprocess.channels != config.channels:
        raise UserError(
            f"{where}: the preprocessing gives {preprocess.channels} channels and the model takes {config.channels}; "
            "give as many numbers in mean and std as the model has channels."
        )
    config.check_size(preprocess.size)
    height, width = preprocess.size
    check_memory(4 * preprocess.channels * height * width, f"{where}: size {height}x{width}", "choose a smaller size")


def _plain_card(config: ModelConfig, labels: Sequence[str]) -> str:
    some = ", ".join(map(code, labels[:10])) + (", ..." if len(labels) > 10 else "")
    height, width = config.image_size
    return (
        f"# {with_article(config.title())}\n\n"
        f"{with_article(config.describe())}, for images of {height}x{width}.\n\n"
        f"{len(labels)} classes: {some or 'none; it gives representations'}.\n\n"
        "Saved by vitreous: `vitreous predict THIS_FOLDER image.jpg`.\n"
    )


def bundle_digest(bundle: Bundle) -> str:
    """32 hexadecimal digits over the network, its weights, the preprocessing and the labels."""
    config = model_to_json(bundle.model.config)  # heads and epsilons are not in the tensors
    return sha256_json([config, weights_digest(bundle.model), bundle.preprocess, bundle.labels])[:32]


def weights_digest(network: Network) -> str:
    """16 hexadecimal digits over the names and values of all tensors."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
