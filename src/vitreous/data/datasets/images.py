"""Readers of datasets that are image files, with lists of what belongs to which class and split."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitreous.data.datasets.vtab import hash_order
from vitreous.data.folder import FolderSource, FolderWalk, Names, entries, is_folder, open_folder
from vitreous.data.source import SPLITS, Data, Source, Split, check_classes, order_classes
from vitreous.data.unpack import read_mat
from vitreous.errors import UserError
from vitreous.inputs import read_text

ListedImage = tuple[str, int]  # A path below the dataset's folder, and the number of its class


def listed_data(root: Path, splits: Mapping[Split, Iterable[ListedImage]], classes: Sequence[str]) -> Data:
    found: dict[Split, Source] = {}
    for split, images in splits.items():
        names, labels = Names(), []
        for name, label in images:
            if not 0 <= label < len(classes):
                raise UserError(f"{root / name}: class {label} of {len(classes)}; get the lists again.")
            names.append(name.replace("/", os.sep))
            labels.append(label)
        found[split] = FolderSource(root, names, np.array(labels, dtype=np.int64), tuple(classes))
    check_classes(root, found, tuple(classes))
    return Data(found, tuple(classes))


def lines_of(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def read_pets(root: Path) -> Data:
    """annotations/trainval.txt and test.txt: NAME CLASS SPECIES BREED, classes from 1; the class is in the name."""
    classes: dict[int, str] = {}

    def images(path: Path) -> Iterator[ListedImage]:
        for line in lines_of(path):
            if line.startswith("#"):
                continue
            name, number, *_ = [*line.split(), ""]
            if "_" not in name or not number.isascii() or not number.isdigit():
                raise UserError(f"{path}: {line[:80]!r} is not NAME CLASS SPECIES BREED; get the list again.")
            classes.setdefault(int(number) - 1, name.rpartition("_")[0])
            yield f"images/{name}.jpg", int(number) - 1

    lists: dict[Split, str] = {"train": "trainval.txt", "test": "test.txt"}
    found = {split: list(images(root / "annotations" / name)) for split, name in lists.items()}
    return listed_data(root, found, [classes.get(number, str(number)) for number in range(1 + max(classes, default=0))])


def read_flowers(root: Path) -> Data:
    """imagelabels.mat has each image's class, setid.mat which images are in which split; both count from 1."""
    (labels,) = read_mat(root / "imagelabels.mat", "labels")
    ids = read_mat(root / "setid.mat", "trnid", "valid", "tstid")
    labels = labels.ravel().astype(np.int64)
    splits: dict[Split, list[ListedImage]] = {}
    for split, numbers in zip(SPLITS, ids, strict=True):
        chosen = numbers.ravel().astype(np.int64)
        if len(chosen) and not 1 <= chosen.min() <= chosen.max() <= len(labels):
            raise UserError(f"{root / 'setid.mat'}: names an image that imagelabels.mat does not have; get both again.")
        splits[split] = [(f"jpg/image_{number:05d}.jpg", int(labels[number - 1]) - 1) for number in chosen.tolist()]
    return listed_data(root, splits, [str(number) for number in range(1, int(labels.max(initial=0)) + 1)])


def read_dtd(root: Path) -> Data:
    """dtd/labels/train1.txt, val1.txt and test1.txt, the first of ten folds: CLASS/NAME."""
    base = root / "dtd"
    return _by_folder(base / "images", {split: lines_of(base / "labels" / f"{split}1.txt") for split in SPLITS})


def read_sun397(root: Path) -> Data:
    """sun397_tfds_tr.txt, va and te: /a/abbey/sun_x.jpg below SUN397; the class is the folder."""
    names: dict[Split, str] = {"train": "tr", "val": "va", "test": "te"}
    lists = {
        split: [line.lstrip("/") for line in lines_of(root / f"sun397_tfds_{n}.txt")] for split, n in names.items()
    }
    return _by_folder(root / "SUN397", lists)


def _by_folder(base: Path, lists: Mapping[Split, Sequence[str]]) -> Data:
    """Data of lists of CLASS/NAME; a class may have slashes."""
    for names in lists.values():
        for name in names:
            if "/" not in name or ".." in name.split("/"):
                raise UserError(f"{base}: {name[:80]!r} in a list is not CLASS/NAME; get the list again.")
    classes = order_classes(name.rpartition("/")[0] for names in lists.values() for name in names)
    number = {label: place for place, label in enumerate(classes)}
    found: dict[Split, list[ListedImage]] = {
        split: [(name, number[name.rpartition("/")[0]]) for name in names] for split, names in lists.items()
    }
    return listed_data(base, found, classes)


def read_caltech101(root: Path) -> Data:
    """A folder for each class, the background too; 30 images of each are for training. The owners made no splits.
    Thirty of each class is what everybody takes; which ones is the order of a hash of the names here, so it is the same
    everywhere."""
    base = root / "caltech-101" / "101_ObjectCategories" / "101_ObjectCategories"
    train: list[str] = []
    test: list[str] = []
    for label in [entry.name for entry in entries(base) if is_folder(entry)]:
        names = sorted(name.replace(os.sep, "/") for name in FolderWalk().images(base, label))
        order = hash_order(names, "caltech101").tolist()
        train += sorted(names[place] for place in order[:30])
        test += sorted(names[place] for place in order[30:])
    return _by_folder(base, {"train": train, "test": test})


def read_prefixed(root: Path, folder: str, lists: str) -> Data:
    """FOLDER/CLASS/CLASS_1.jpg, and LISTS-train.txt, -val and -test with CLASS_1.jpg."""
    found = {
        split: [f"{name.rpartition('_')[0]}/{name}" for name in lines_of(root / f"{lists}-{split}.txt")]
        for split in SPLITS
    }
    return _by_folder(root / folder, found)


def read_retinopathy(root: Path) -> Data:
    """trainLabels.csv for train/, retinopathy_solution.csv for test/, whose public part is for validation."""
    solution = root / "retinopathy_solution.csv"
    splits: dict[Split, list[ListedImage]] = {
        "train": [_graded(row, "train", root / "trainLabels.csv") for row in _table(root / "trainLabels.csv")],
        "val": [_graded(row, "test", solution) for row in _table(solution) if row.get("Usage") == "Public"],
        "test": [_graded(row, "test", solution) for row in _table(solution) if row.get("Usage") == "Private"],
    }
    return listed_data(root, splits, [str(level) for level in range(5)])


def _table(path: Path) -> Iterator[dict[str, str | None]]:
    try:
        yield from csv.DictReader(read_text(path).splitlines())
    except csv.Error as error:
        raise UserError(f"{path}: not CSV ({error}); get it again.") from None


def _graded(row: Mapping[str, str | None], folder: str, path: Path) -> ListedImage:
    name, level = row.get("image"), row.get("level") or ""
    if not name or "/" in name or not level.isascii() or not level.isdigit():
        raise UserError(f"{path}: has no columns image and level, or a row without them; get it again.")
    return f"{folder}/{name}.jpeg", int(level)


def read_numbered_folders(root: Path) -> Data:
    """ImageNet-V2: one folder for each class, called by its number in ImageNet's order; all of it is a test split."""
    found = open_folder(next(iter(sorted(root.glob("imagenetv2-*"))), root))
    return Data({"test": found.train}, found.classes, found.notes)


def read_imagenet(root: Path) -> Data:
    """train/SYNSET/*.JPEG and val/ILSVRC2012_val_00000001.JPEG on; classes are synsets, in the order of their names.
    The kit numbers classes in another order, and says for each image of val which number is right."""
    classes = tuple(entry.name for entry in entries(root / "train") if is_folder(entry))
    number = {synset: n for n, synset in enumerate(classes)}
    kit = root / "ILSVRC2012_devkit_t12" / "data"
    synsets = _synsets(kit / "meta.mat")
    splits: dict[Split, list[ListedImage]] = {"train": [], "val": []}
    for synset in classes:
        names = sorted(FolderWalk().images(root / "train", synset))
        splits["train"] += [(f"train/{name}".replace(os.sep, "/"), number[synset]) for name in names]
    truth = kit / "ILSVRC2012_validation_ground_truth.txt"
    for n, line in enumerate(lines_of(truth), start=1):
        synset = synsets.get(int(line), "") if line.isascii() and line.isdigit() else ""
        if synset not in number:
            raise UserError(f"{truth}, line {n}: {line[:20]!r} is no class of the train split; get the kit again.")
        splits["val"].append((f"val/ILSVRC2012_val_{n:08d}.JPEG", number[synset]))
    return listed_data(root, splits, classes)


def _synsets(path: Path) -> dict[int, str]:
    """The kit's number of each class, and its synset."""
    (rows,) = read_mat(path, "synsets")
    try:
        return {int(row["ILSVRC2012_ID"].item()): str(row["WNID"].item()) for row in rows.ravel()}
    except (IndexError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path}: names no synsets ({str(error)[:200]}); get the kit again.") from None


LISTS = ("train800.txt", "val200.txt", "test.txt")


def has_vtab_lists(folder: Path) -> bool:
    """Whether a folder holds one task of VTAB-1k as others have written it out."""
    return all((folder / name).is_file() for name in LISTS)


def read_vtab_lists(root: Path) -> Data:
    """One task of VTAB-1k as others have written it out: train800.txt, val200.txt and test.txt with PATH LABEL."""
    splits: dict[Split, list[ListedImage]] = {}
    names: tuple[Split, ...] = ("train", "val", "test")
    for split, name in zip(names, LISTS, strict=True):
        splits[split] = []
        for line in lines_of(root / name):
            image, _, label = line.rpartition(" ")
            if not image or not label.isascii() or not label.isdigit() or ".." in image.split("/"):
                raise UserError(f"{root / name}: {line[:80]!r} is not PATH LABEL; check the list.")
            splits[split].append((image, int(label)))
    classes = [str(label) for label in range(1 + max((n for images in splits.values() for _, n in images), default=0))]
    found: dict[Split, Source] = {}
    for split, images in splits.items():
        labels = np.array([label for _, label in images], dtype=np.int64)
        found[split] = FolderSource(root, Names(name for name, _ in images), labels, tuple(classes))
    return Data(found, tuple(classes), (f"{root}: VTAB-1k as in its lists, {', '.join(LISTS)}.",))
