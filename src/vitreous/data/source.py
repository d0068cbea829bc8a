"""What a dataset is: images with labels, in splits for training, validation and test."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.chance import Index, permutation
from vitreous.data.decode import Header
from vitreous.errors import UserError
from vitreous.inputs import file_kind, reason

Split = Literal["train", "val", "test"]
Labels = NDArray[np.int64]
Shares = NDArray[np.float32]

SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""What people call the splits, in lower case, and what we call them."""


class NoClassesError(UserError):
    """There are images but no two classes of them, or not of all: enough for whatever needs no labels."""


class Source(ABC):
    """Images in a fixed order, each with the number of its class.

    A source holds names or pixels, never open files: it can be handed to another process at any time.
    """

    classes: tuple[str, ...]
    labels: Labels
    """(n,), each an index of `classes`, or -1 where it is not known."""
    soft: Shares | None = None
    """(n, K), each row sums to 1: what a training learns in place of the labels, which are then the likeliest class of
    each; None to learn the labels themselves."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def whole(self) -> int:
        """How many images the data have that this may be a subset of."""
        return len(self)

    @abstractmethod
    def name(self, index: int) -> str:
        """What a person calls this image: its path, or "file#number"."""

    @abstractmethod
    def key(self, index: int) -> str:
        """What this image is called within the data, wherever the data lie."""

    @abstractmethod
    def read(self, index: int, *, channels: int = 3, at_least: int | None = None) -> Image.Image:
        """The image, "RGB" or "L", perhaps already shrunk but with a short side of `at_least` or its full size.

        Raises `ImageError` if it cannot be read.
        """

    @abstractmethod
    def header(self, index: int) -> Header:
        """Its size and kind, without decoding it; raises `ImageError`."""

    @abstractmethod
    def content(self, index: int) -> bytes:
        """Its bytes as they are stored: equal for exact copies; raises `ImageError`."""

    def digest(self, index: int) -> bytes:
        """16 bytes that differ if `content` does; raises `ImageError`."""
        return blake2b(self.content(index), digest_size=16).digest()

    @abstractmethod
    def size(self, index: int) -> int:
        """How many bytes `content` has, without reading them; 0 if it cannot be read."""

    def encoded(self, index: int) -> bytes:
        """An image file of it: its bytes as they are stored where they are one, else a PNG; raises `ImageError`."""
        return self.content(index)

    def order(self, seed: int, epoch: int) -> Index:
        """The indices of all images in the order of an epoch of training, a pure function of seed and epoch."""
        return permutation(seed, epoch, len(self))

    def expect(self, indices: Index, besides: bool = False) -> None:  # noqa: B027  most sources have nothing to do
        """Hear which images are read next: those that lie far away can be fetched at once.

        besides: those that were named before, of this source or another, are still to be read.
        """

    def damage(self) -> dict[str, str]:
        """Of each file that holds several images and is not as it was written, by name, what is wrong with it."""
        return {}

    @abstractmethod
    def subset(self, indices: Sequence[int] | Labels) -> Source:
        """These images in this order, with the same classes."""

    @abstractmethod
    def with_labels(self, labels: Labels, classes: tuple[str, ...]) -> Source:
        """The same images with other labels (n,)."""

    def relabelled(self, classes: Sequence[str]) -> Source:
        """The same images with labels that count in `classes`, for a model that orders its classes so.

        Classes are matched by name, and all of this source's images must belong to one.
        """
        number = {name: i for i, name in enumerate(classes)}
        used = {self.classes[label] for label in np.unique(self.labels) if label >= 0}
        if unknown := sorted(used - set(number)):
            raise UserError(
                f"class {unknown[0]!r}: the data have it and the model does not (its {len(number)} classes: "
                f"{_list(classes)}); rename or remove its folder, or train on these data."
            )
        table = np.array([number.get(name, -1) for name in self.classes] + [-1], dtype=np.int64)
        return self.with_labels(table[self.labels], tuple(classes))


@dataclass(frozen=True)
class Data:
    """A dataset: its classes, its splits among "train", "val" and "test", and remarks on what was passed over."""

    splits: dict[Split, Source]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        order: tuple[Split, ...] = ("train", "val", "test")
        object.__setattr__(self, "splits", {name: self.splits[name] for name in order if name in self.splits})

    @property
    def train(self) -> Source:
        """The images to train on."""
        if "train" not in self.splits:
            raise UserError(f"these data have no train split, only {_list(self.splits)}; give some to train on.")
        return self.splits["train"]

    def with_validation(self, fraction: float = 0.1, seed: int = 0) -> Data:
        """The same data; if there is no val split, one is made of part of the train split."""
        if "val" in self.splits:
            return self
        train, val = split_validation(self.train, fraction, seed)
        return replace(self, splits={**self.splits, "train": train, "val": val})


def open_data(path: str | Path, *, labelled: bool = True) -> Data:
    """The dataset at `path`, recognised by what is there.

    - a folder with a folder for each class, by itself or in each of train, val and test;
    - a .csv or .jsonl file with path, label and perhaps split;
    - a folder of CIFAR-10 or CIFAR-100, binary or python version, or of MNIST-style idx files, packed by gzip or not;
    - an .npz file with x_train, y_train..., train_images, train_labels..., or images, labels;
    - WebDataset shards: a folder of tar files, a pattern such as train-{000..009}.tar, or an address of them;
    - a folder that `vitreous data get` made, or `data:NAME` for the one of that name; one task of VTAB-1k in its lists.

    labelled: False takes any folder of files as images without labels; only train, val and test folders stay apart.
    """
    from vitreous.data import folder, lists, packed  # all build on this module
    from vitreous.data.datasets import place
    from vitreous.data.shards.opening import is_shards, open_shards

    if not str(path):
        raise UserError("data: an empty path; give a folder, a .csv, a .jsonl or an .npz file.")
    if isinstance(path, str) and path.startswith(place.PREFIX):
        return place.open_named(path)
    try:
        if is_shards(path):
            return open_shards(path, labelled=labelled)
        path = Path(path)
        kind = _kind(path)
        if kind == "folder":
            found = place.open_folder_of_dataset(path) or packed.open_packed_folder(path)
            return found or (folder.open_folder(path) if labelled else folder.open_unlabelled(path))
        if kind == "file" and path.suffix.lower() in lists.LIST_SUFFIXES:
            return lists.open_list(path)
        if kind == "file" and path.suffix.lower() == ".npz":
            return packed.open_npz(path)
        what = "not a known kind of data" if kind == "file" else f"this is a {kind}, not data"
        raise UserError(f"{path}: {what}; give a folder, a .csv, a .jsonl or an .npz file.")
    except PermissionError as error:
        raise UserError(f"{error.filename or path}: no permission to read it; change its mode or owner.") from None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{error.filename or path}: there is nothing of this name; check the path.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); check the path.") from None


def _kind(path: Path) -> str:
    try:
        return file_kind(path.stat().st_mode)
    except ValueError as error:  # a name with a null byte
        raise UserError(f"{str(path)!a}: cannot be read ({error}); check the path.") from None


def split_validation(source: Source, fraction: float = 0.1, seed: int = 0) -> tuple[Source, Source]:
    """(training, validation): of each class its share, chosen by a hash of the seed and the image's key.

    So the choice depends on nothing but the seed and the names in that class: not on where the data lie nor on their
    order. A class of n gives round(n x fraction), at least 1 and at most n - 1; one of a single image is refused.
    A new image can move at most one other of its class, none of another class. (None at all is impossible with
    exact shares.)
    """
    if not 0 < fraction < 1:
        raise UserError(f"fraction={fraction}: the validation's share must be above 0 and below 1.")
    if len(source) < 2:
        raise UserError(f"{len(source)} images: too few to set some aside for validation; add more.")
    chosen = np.zeros(len(source), dtype=bool)
    for members in _by_class_in_random_order(source, seed):
        if len(members) < 2:
            alone = int(members[0])
            lonely = source.classes[source.labels[alone]]
            raise UserError(
                f"{source.name(alone)}: the only image of class {lonely!r}, so none can be "
                "set aside for validation; add more of it, remove the class, or give a val folder."
            )
        count = min(max(round(len(members) * fraction), 1), len(members) - 1)
        chosen[members[:count]] = True
    return source.subset(np.flatnonzero(~chosen)), source.subset(np.flatnonzero(chosen))


def take_share(source: Source, share: float, seed: int) -> Source:
    """Of each class its share, in the source's order, chosen as `split_validation` does: by a hash of seed and key.

    A class of n gives n x share, rounded half up; one that would give none is refused. With one seed, what a smaller
    share takes is part of what a larger one takes.
    """
    if not 0 < share <= 1:
        raise UserError(f"share={share}: must be above 0 and at most 1.")
    if share == 1:
        return source
    chosen = []
    for members in _by_class_in_random_order(source, seed):
        count = int(len(members) * share + 0.5)
        if not count:
            label = source.classes[source.labels[members[0]]]
            raise UserError(
                f"share={share:g}: class {label!r} has {len(members)} training image{'s' * (len(members) > 1)}, so "
                f"none would be left; give at least {_ceil_share(0.5 / len(members)):g}, or add images of it."
            )
        chosen.append(members[:count])
    return source.subset(np.sort(np.concatenate(chosen)))


def _by_class_in_random_order(source: Source, seed: int) -> list[Labels]:
    """Of each class the indices of its images, ordered by a hash of the seed and the image's key."""
    order = np.lexsort((draws(source, seed), source.labels))
    starts = np.flatnonzero(np.diff(source.labels[order], prepend=-2))
    return np.split(order, starts[1:])


def draws(source: Source, seed: int) -> NDArray[np.uint64]:
    """(n,) a number for each image that looks random, from the seed and the image's key."""
    return np.fromiter((_draw(seed, source.key(i)) for i in range(len(source))), np.uint64, len(source))


def _ceil_share(share: float) -> float:
    """The share with two digits, rounded up."""
    scale = 10.0 ** (1 - math.floor(math.log10(share)))
    return math.ceil(share * scale - 1e-9) / scale


def _draw(seed: int, key: str) -> int:
    """64 bits that look random, from the seed and a key; any key, even one that is not valid Unicode."""
    text = f"{seed}\0".encode() + key.encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def order_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct names in order: by number if all are whole numbers, else by the alphabet."""
    distinct = set(names)
    if all(name.isascii() and name.isdigit() for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def check_classes(where: str | Path, splits: dict[Split, Source], classes: tuple[str, ...]) -> None:
    """Refuse what cannot be learned from: no images, one class, or test classes that training does not know."""
    if not any(len(source) for source in splits.values()):
        raise UserError(f"{where}: there are no images here; give a folder that has a folder of images a class.")
    if len(classes) < 2:
        raise NoClassesError(
            f"{where}: there is only one class, {classes[0]!r}; to tell images apart, give at least two classes."
        )
    if "train" not in splits:
        return
    known = set(np.unique(splits["train"].labels).tolist())
    for split, source in splits.items():
        for label in np.unique(source.labels).tolist():
            if label not in known:
                raise UserError(
                    f"{where}: the {split} split has class {classes[label]!r} and the train split does not; "
                    "add images of it to the train split, or remove it."
                )


def _list(names: Iterable[str], most: int = 5) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")
