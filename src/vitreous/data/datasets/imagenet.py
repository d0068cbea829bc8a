"""The reader of ImageNet (ILSVRC 2012) from its own archives."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitreous.data.datasets.images import ListedImage, lines_of, listed_data
from vitreous.data.datasets.matlab import Structs, read_mat
from vitreous.data.source import Data, Split
from vitreous.data.walk import FolderWalk, entries, is_folder
from vitreous.errors import UserError

KIT = "ILSVRC2012_devkit_t12"


def read_imagenet(root: Path) -> Data:
    """train/SYNSET/*.JPEG and val/ILSVRC2012_val_00000001.JPEG on; classes are synsets, in the order of their names.

    The kit numbers classes in another order, and says for each image of val which number is right.
    """
    classes = tuple(entry.name for entry in entries(root / "train") if is_folder(entry))
    number = {synset: place for place, synset in enumerate(classes)}
    kit = root / KIT / "data"
    synsets = _synsets(kit / "meta.mat")
    splits: dict[Split, list[ListedImage]] = {"train": [], "val": []}
    for synset in classes:
        names = sorted(FolderWalk().images(root / "train", synset))
        splits["train"] += [(f"train/{name}".replace(os.sep, "/"), number[synset]) for name in names]
    truth = kit / "ILSVRC2012_validation_ground_truth.txt"
    for place, line in enumerate(lines_of(truth), start=1):
        synset = synsets.get(int(line), "") if line.isascii() and line.isdigit() else ""
        if synset not in number:
            raise UserError(f"{truth}, line {place}: {line[:20]!r} is no class of the train split; get the kit again.")
        splits["val"].append((f"val/ILSVRC2012_val_{place:08d}.JPEG", number[synset]))
    return listed_data(root, splits, classes)


def _synsets(path: Path) -> dict[int, str]:
    """The kit's number of each class, and its synset."""
    rows = read_mat(path, ["synsets"])["synsets"]
    found = {}
    for row in rows.rows if isinstance(rows, Structs) else ():
        number, synset = row.get("ILSVRC2012_ID"), row.get("WNID")
        if isinstance(number, np.ndarray) and number.size == 1 and isinstance(synset, str):
            found[int(number.flat[0])] = synset
    if not found:
        raise UserError(f"{path}: names no synsets; get the kit again.")
    return found
