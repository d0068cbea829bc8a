"""`vitreous import` and `vitreous export`: from anybody's weights to a bundle, and a bundle as others read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.weights.adapt import adapt
from vitreous.weights.bundle import Bundle, save_bundle
from vitreous.weights.foreign import describe
from vitreous.weights.google import write_google
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.labels import read_labels
from vitreous.weights.source import open_weights, preprocess_text
from vitreous.weights.timm import write_timm

Format = Literal["huggingface", "timm", "google"]

WRITERS: dict[Format, Callable[..., Path]] = {
    "huggingface": write_huggingface,
    "timm": write_timm,
    "google": write_google,
}


@dataclass(frozen=True)
class Imported:
    """What was made of a source."""

    bundle: str
    description: str
    """ "ViT-Ti/16, 224, 1000 classes"."""
    parameters: int
    preprocess: str
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    """What the source was taken for, what was left aside, what was assumed."""


def import_weights(
    source: str | Path,
    out: str | Path,
    *,
    preprocess: Preprocess | str | None = None,
    labels: str | Path | Sequence[str] | None = None,
    image_size: int | None = None,
    patch: int | None = None,
    channels: int | None = None,
    classes: int | None = None,
) -> Imported:
    """Write a bundle of the weights at `source`; see `open_weights` for what that may be.

    preprocess: fields that should differ from what the source says, such as "crop=1,interpolation=bilinear".
    labels: the classes' names, or a file with them.
    image_size, patch, channels: resample the model to other pictures; see `vitreous.weights.adapt`.
    classes: 0 leaves the classifier out; another number puts a new one of zeros in its place.
    """
    for name, value in (("image-size", image_size), ("patch", patch)):
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: give a number of pixels, for example 16.")
    opened = open_weights(source, preprocess)
    model, prepared = adapt(
        opened.model, opened.preprocess, image_size=image_size, patch=patch, channels=channels, classes=classes
    )
    names = _names(labels, opened, model.config.classes)
    description = describe("", model.config).strip()
    card = _card(str(source), opened, description, prepared)
    save_bundle(out, model, prepared, names, card=card, info=opened.info)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Imported(str(out), description, parameters, preprocess_text(prepared), names, opened.notes)


def export_weights(source: str | Path | Bundle, out: str | Path, to: Format) -> Path:
    """Write a model as others read it, and return where.

    source: a bundle, a run, or anything that can be imported.
    to: huggingface (a folder for `from_pretrained`), timm (a folder for "local-dir:"), google (an .npz).
    """
    if to not in get_args(Format):
        raise UserError(f"--to {to}: choose one of {', '.join(get_args(Format))}.")
    bundle = source if isinstance(source, Bundle) else open_weights(source)
    return WRITERS[to](out, bundle.model, bundle.preprocess, bundle.labels, bundle.info)


def _names(said: str | Path | Sequence[str] | None, opened: Bundle, classes: int) -> tuple[str, ...]:
    """The classes' names: those that were given, else the source's, else numbers."""
    if said is None:
        return opened.labels if len(opened.labels) == classes else tuple(str(number) for number in range(classes))
    names = read_labels(said) if isinstance(said, str | Path) else tuple(said)
    if len(names) != classes:
        place = said if isinstance(said, str | Path) else "labels"
        raise UserError(f"{place}: has {len(names)} names, and the classifier {classes} outputs; give one for each.")
    return names


def _card(source: str, opened: Bundle, description: str, preprocess: Preprocess) -> str:
    notes: Any = [f"- {note}" for note in opened.notes] or ["- a bundle"]
    return "\n".join(
        [
            f"# {description}",
            "",
            f"Imported by vitreous from `{Path(source).name}`; its licence and its data are those of that source.",
            "",
            *notes,
            f"- preprocessing: `{preprocess_text(preprocess)}`",
            "",
            "Use it: `vitreous predict FOLDER_OF_THIS_FILE picture.jpg`.",
            "",
        ]
    )
