"""Where datasets lie, and what is there: ROOT/NAME is complete, with a card that says what it is, or not there.

Datasets that are read from the same files share the folder that holds them; then ROOT/NAME has nothing but the card.
What is downloaded, or put there by hand, waits in ROOT/downloads/NAME.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from vitreous.data.datasets.dataset import Dataset
from vitreous.data.datasets.images import has_vtab_lists, read_vtab_lists
from vitreous.data.datasets.table import DATASETS
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.inputs import read_json
from vitreous.storage.cache import cache_root

PREFIX = "data:"  # `data:pets` is the dataset of the table; a folder that is really called so is ./data:pets
CARD = "vitreous-dataset.json"
FILES = "files"  # As the dataset of a card: a folder of files that several datasets are read from


@dataclass(frozen=True)
class Card:
    """What a folder says of itself."""

    dataset: str  # A name of the table, or `FILES`
    folder: str  # Where the files are, seen from the card's folder

    def to_json(self, **more: Any) -> str:
        return json.dumps({"dataset": self.dataset, "folder": self.folder, **more}, indent=2) + "\n"


def data_root(root: str | Path | None = None) -> Path:
    """The folder of all datasets: the given one, else $VITREOUS_DATA, else `data` where caches are."""
    if root is not None:
        if not str(root).strip():
            raise UserError("root: an empty path; give a folder.")
        return Path(root)
    if folder := os.environ.get("VITREOUS_DATA"):
        return Path(folder)
    return cache_root() / "data"


def find_dataset(name: str) -> Dataset:
    if name in DATASETS:
        return DATASETS[name]
    near = get_close_matches(name, DATASETS, n=1)
    meant = f"did you mean {near[0]}?" if near else f"the table has {', '.join(DATASETS)}."
    raise UserError(f"{name[:80]!r}: there is no such dataset; {meant}")


def read_card(folder: Path) -> Card | None:
    if not (folder / CARD).is_file():
        return None
    found = read_json(folder / CARD)
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in ("dataset", "folder")):
        raise UserError(f"{folder / CARD}: not what `vitreous data get` writes; remove the folder and get it again.")
    return Card(found["dataset"], found["folder"])


def is_here(dataset: Dataset, root: Path) -> bool:
    """Whether all of a dataset is at its place."""
    card = read_card(root / dataset.name)
    if card is None:
        return False
    store = root / dataset.name / card.folder
    return read_card(store) is not None and not broken_links(dataset, store)


def broken_links(dataset: Dataset, store: Path) -> list[Path]:
    """Of the links to what a person put into the downloads, those that lead nowhere any more."""
    places = [store / file.into / file.name for file in dataset.files]
    return [place for place in places if place.is_symlink() and not place.exists()]


def open_named(name: str, root: str | Path | None = None) -> Data:
    """The data called `data:NAME`; where they are not on this machine, an error that says how to get them."""
    dataset = find_dataset(name.removeprefix(PREFIX))
    place = data_root(root)
    if not is_here(dataset, place):
        raise UserError(
            f"{PREFIX}{dataset.name}: not in {place}; get it with `vitreous data get {dataset.name}`, or set "
            "VITREOUS_DATA to the folder that has it."
        )
    data = open_dataset_folder(place / dataset.name)
    assert data is not None
    return data


def open_dataset_folder(folder: Path) -> Data | None:
    """The data in a folder that `data get` made, or one task of VTAB-1k in its lists; None if it is neither."""
    if has_vtab_lists(folder):
        return read_vtab_lists(folder)
    card = read_card(folder)
    if card is None:
        return None
    if card.dataset == FILES:
        sharing = [PREFIX + row.name for row in DATASETS.values() if row.store == folder.resolve().name]
        names = ", ".join(sharing) or "those of its name"
        raise UserError(f"{folder}: files that several datasets share; open one of these instead: {names}.")
    return read_dataset(find_dataset(card.dataset), folder / card.folder)


def read_dataset(dataset: Dataset, folder: Path) -> Data:
    if dataset.read is None:
        raise UserError(f"{dataset.name}: {dataset.title}, which are not images; {dataset.notes[0]}")
    return dataset.read(folder)
