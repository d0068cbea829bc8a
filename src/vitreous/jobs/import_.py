"""`vitreous import`: from anybody's weights to a bundle."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vitreous.arguments import Count, Merge, Pixels, checked
from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.model.network import MergesTokens, require
from vitreous.storage.overwrite import check_apart, check_elsewhere, check_folder
from vitreous.weights import hub
from vitreous.weights.adapt import adapt
from vitreous.weights.bundle import Bundle, save_bundle
from vitreous.weights.foreign import describe
from vitreous.weights.labels import read_labels, repeated_names
from vitreous.weights.markdown import code
from vitreous.weights.source import open_weights, preprocess_text
from vitreous.wording import Range

log = logging.getLogger("vitreous")

BUNDLE = frozenset({"config.json", "model.safetensors", "README.md"})
"""What a bundle holds, besides its manifest."""


@dataclass(frozen=True)
class Imported:
    """What was made of a source."""

    bundle: str
    description: str
    """ "ViT-Ti/16, 224, 1000 classes"."""
    parameters: int
    channels: int
    preprocess: str
    labels: tuple[str, ...]
    numbered: bool
    """The labels are numbers, for nobody said the classes' names."""
    notes: tuple[str, ...]
    """What the source was taken for, what was left aside, what was assumed."""


@checked
def import_weights(
    source: str | Path,
    out: str | Path,
    *,
    preprocess: Preprocess | str | None = None,
    labels: str | Path | Sequence[str] | None = None,
    image_size: Pixels | None = None,
    patch: Pixels | None = None,
    channels: Count | None = None,
    classes: Annotated[int, Range(0)] | None = None,
    heads: Count | None = None,
    epsilon: Annotated[float, Range(1e-30, 1)] | None = None,
    entry: str | None = None,
    merge: Merge | None = None,
) -> Imported:
    """Write a bundle of the weights at `source`; see `open_weights` for what that may be.

    preprocess: fields that should differ from what the source says, such as "crop=1,interpolation=bilinear".
    labels: the classes' names, or a file with them.
    image_size, patch, channels: resample the model to other images; see `vitreous.weights.adapt`.
    classes: 0 leaves the classifier out; another number puts a new one of zeros in its place.
    heads: how many heads each block has, where the source does not tell. epsilon: another one for every LayerNorm.
    entry: which model of a training file that holds several: "student"; else the averaged one, such as "teacher".
    merge: how many tokens the bundle's model merges per block (docs/merging.md); None for as many as it does.
    """
    out = Path(out)
    check_elsewhere(out)
    check_folder(out, BUNDLE)
    opened = open_weights(source, preprocess, heads=heads, entry=entry)
    check_apart(out, opened.path)
    model, prepared = adapt(
        opened.model,
        opened.preprocess,
        image_size=image_size,
        patch=patch,
        channels=channels,
        classes=classes,
        epsilon=epsilon,
    )
    if merge is not None:
        model = require(model, MergesTokens, f"merge={merge}").with_merge(merge)
    names = _names(labels, opened, model.config.classes)
    repeated = repeated_names(names) if labels is not None else None
    if repeated is not None:
        log.warning("labels: %s", repeated)
    made = Imported(
        bundle=str(out),
        description=describe("", model.config).strip(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        channels=model.config.channels,
        preprocess=preprocess_text(prepared),
        labels=names,
        numbered=labels is None and (opened.info.get("numbered") is True or len(opened.labels) != len(names)),
        notes=opened.notes if repeated is None else (*opened.notes, f"labels: {repeated}"),
    )
    name, notes = _without_places(str(source), opened)
    info = {**opened.info, "imported": name, "notes": notes, "numbered": made.numbered} if notes else opened.info
    save_bundle(out, model, prepared, names, card=_card(name, notes, made.description, prepared), info=info)
    return made


def _without_places(source: str, opened: Bundle) -> tuple[str, list[str]]:
    """What the source is called, and what was found out about it, without folders of this machine."""
    name = source if source.startswith(hub.PREFIX) else Path(source).resolve().name
    return name, [note.replace(str(opened.path), name) for note in opened.notes]


def _names(said: str | Path | Sequence[str] | None, opened: Bundle, classes: int) -> tuple[str, ...]:
    """The classes' names: those that were given, else the source's, else numbers."""
    if said is None:
        return opened.labels if len(opened.labels) == classes else tuple(str(number) for number in range(classes))
    names = read_labels(said) if isinstance(said, str | Path) else tuple(said)
    if len(names) != classes:
        place = said if isinstance(said, str | Path) else "labels"
        raise UserError(f"{place}: has {len(names)} names, and the classifier {classes} outputs; give one for each.")
    return names


def _card(source: str, notes: Sequence[str], description: str, preprocess: Preprocess) -> str:
    files = preprocess.channels in (1, 3)  # of other numbers there are only tensors
    use = (
        "vitreous predict FOLDER_OF_THIS_FILE image.jpg"
        if files
        else "vitreous.load(FOLDER_OF_THIS_FILE).network(images)"
    )
    return "\n".join(
        [
            f"# {description}",
            "",
            f"Imported by vitreous from {code(source)}; its licence and its data are those of that source.",
            "",
            *([f"- {code(note)}" for note in notes] or ["- a bundle"]),
            f"- preprocessing: {code(preprocess_text(preprocess))}",
            "",
            f"Use it: `{use}`.",
            "",
        ]
    )
