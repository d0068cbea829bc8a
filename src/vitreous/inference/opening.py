"""What a person names on the command line or in a notebook, opened."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitreous.config.data import Preprocess
from vitreous.data.builtin import builtin_data
from vitreous.data.decode import IMAGE_SUFFIXES
from vitreous.data.folder import images_below, one_image
from vitreous.data.shards.opening import is_shards, open_shards
from vitreous.data.source import Data, NoClassesError, Source, Split, open_data
from vitreous.data.view import Sample
from vitreous.data.walk import FolderWalk, has_images
from vitreous.errors import UserError
from vitreous.inference.folder import is_engine
from vitreous.inputs import reason
from vitreous.model.network import MergesTokens, require
from vitreous.weights.bundle import Bundle
from vitreous.weights.source import open_weights, with_preprocess

log = logging.getLogger("vitreous")

BUILTIN = "builtin"


def open_dataset(data: str | Path | Data) -> Data:
    """The data at a path; "builtin" stands for the images that come with the package."""
    if isinstance(data, Data):
        return data
    return builtin_data() if data == BUILTIN else open_data(data)


def open_images(data: str | Path | Data) -> Data:
    """The data at a path; of a folder without class folders, or with only one, the images alone, and a note."""
    try:
        return open_dataset(data)
    except NoClassesError as error:
        if isinstance(data, Data) or not (is_shards(data) or Path(data).is_dir()):
            raise
        opened = open_data(data, labelled=False)
        reason = str(error).removeprefix(f"{data}: ").split(";")[0]
        counts = ", ".join(f"{len(source):,} {split}" for split, source in opened.splits.items())
        return replace(opened, notes=(f"{data}: no labels ({reason}): {counts} images.", *opened.notes))


def open_unlabelled(data: str | Path) -> tuple[Source, tuple[str, ...]]:
    """All images at a path, whatever labels they have, and notes on what was passed over.

    Of a folder of files, all below it. Of data in splits, the train split: who keeps a test split apart wants to be
    judged by it.
    """
    opened = builtin_data() if data == BUILTIN else open_data(data, labelled=False)
    source = opened.splits.get("train") or next(iter(opened.splits.values()))
    others = [f"{len(other):,} {split}" for split, other in opened.splits.items() if other is not source]
    aside = (f"{data}: its {' and '.join(others)} images are left aside.",) if others else ()
    return source.with_labels(np.full(len(source), -1, dtype=np.int64), ()), (*opened.notes, *aside)


def open_model(
    model: str | Path | Bundle, preprocess: Preprocess | str | None = None, merge: int | None = None
) -> Bundle:
    """The model at a path, or one that is open already, with its preprocessing changed where asked.

    merge: how many tokens it merges per block; None for as many as it does of itself.
    """
    if not isinstance(model, Bundle) and is_engine(Path(model)):
        raise UserError(
            f"{model}: an exported model, whose network cannot be looked into or trained; give the model that it was "
            "exported from. predict, evaluate, probe and bench take it as it is."
        )
    bundle = with_preprocess(model, preprocess) if isinstance(model, Bundle) else open_weights(model, preprocess)
    return bundle if merge is None else with_merge(bundle, merge)


def with_merge(bundle: Bundle, merge: int) -> Bundle:
    """The model with so many tokens merged per block; it shares its weights."""
    return replace(bundle, model=require(bundle.model, MergesTokens, f"merge={merge}").with_merge(merge))


def open_classifier(model: str | Path | Bundle, preprocess: Preprocess | str | None = None) -> Bundle:
    """The same, of a model that must have a classifier."""
    bundle = open_model(model, preprocess)
    check_classifier(bundle)
    return bundle


def check_classifier(bundle: Bundle) -> None:
    """Refuse a model that has none."""
    if not bundle.model.config.classes:
        raise UserError(
            f"{bundle.path or 'the model'}: it has no classifier and so no labels to give; fit one first: "
            "vitreous fit DATA --weights MODEL."
        )


def list_images(given: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files, with each folder replaced by the images in it, in the order of their paths.

    What was passed over is logged, an empty folder among others too.
    """
    notes: list[str] = []
    places = [given] if isinstance(given, str | Path) else given
    paths = [path for place in places for path in find_images(place, notes)]
    check_found(len(paths), notes)
    return paths


def find_samples(place: str | Path) -> list[Sample] | None:
    """All images in shards, split after split, whatever labels they have; None if these are no shards."""
    if not is_shards(place):
        return None
    sources = open_shards(place, labelled=False).splits.values()
    return [Sample(source, index) for source in sources for index in range(len(source))]


def find_images(place: str | Path, notes: list[str]) -> list[Path]:
    """The file itself, or the images in a folder; `notes` hears of what was passed over, or that there are none."""
    if not str(place):
        raise UserError("an empty path: give an image or a folder.")
    if is_shards(place):
        raise UserError(f"{place}: shards, and image files are needed here; give some, or a folder of them.")
    path = Path(place)
    if not _is_folder(path):
        return [path]
    walk = FolderWalk()
    try:
        source = images_below(path, walk)
    except UserError as error:
        notes.append(str(error))
        return []
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be read ({reason(error)}); check its mode.") from None
    notes += walk.remarks(path)
    return [Path(source.name(index)) for index in range(len(source))]


def open_all(place: str | Path) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """All images at a place, whatever labels and splits they have, and notes on what was passed over.

    A file of an image; a folder, of which all images below it are taken, in the order of their paths; or any other
    data that `open_data` knows, of which all splits are taken. Names of files are absolute.
    """
    path = Path(place)
    if _is_folder(path):
        walk = FolderWalk()
        if has_images(path):
            return (images_below(path.absolute(), walk),), walk.remarks(path)
    elif path.suffix.lower() in IMAGE_SUFFIXES:
        return (one_image(path.absolute()),), ()
    opened = (
        builtin_data() if place == BUILTIN else open_data(path.absolute() if path.exists() else place, labelled=False)
    )
    return tuple(opened.splits.values()), opened.notes


def check_found(count: int, notes: Sequence[str]) -> None:
    """Refuse where no image was found at all; else log what was passed over."""
    if not count:
        raise UserError(notes[0] if notes else "no images: give at least one image or folder.")
    for note in notes:
        log.info(note)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # too long a name, say: who reads it as an image will tell
        return False


def names_of(source: Source, unreadable: Container[str]) -> list[str]:
    """What the images are called that an evaluation saw, in its order."""
    return [name for name in map(source.name, range(len(source))) if name not in unreadable]


def choose_split(data: Data, split: Split | None) -> tuple[str, Source]:
    """The split of the data to measure on, and its name: the one asked for, else test, else val, else all."""
    if split is not None and split not in data.splits:
        raise UserError(f"split={split!r}: the data have only {', '.join(data.splits)}; choose one of these.")
    for name in (split,) if split is not None else ("test", "val", "train"):
        if name in data.splits:
            return ("all" if len(data.splits) == 1 and split is None else name), data.splits[name]
    raise UserError("the data are empty; give some with images.")
