"""What a dataset is: images with labels, in splits for training, validation and test."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.decode import Header
from vitreous.data.rng import SUBSET_EPOCH, Index, permutation
from vitreous.errors import UserError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
Labels = NDArray[np.int64]
Probabilities = NDArray[np.float32]

# What people call the splits, in lower case, and what we call them.
SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class NoClassesError(UserError):
    """There are images but no two classes of them, or not of all: enough for whatever needs no labels."""


class Source(ABC):
    """Images in a fixed order, each with the number of its class. A source holds names or pixels, never open files: it
    can be handed to another process at any time."""

    classes: tuple[str, ...]
    labels: Labels  # (n,), each an index of `classes`, or -1 where it is not known
    # (n, K), each row sums to 1: what a training learns in place of the labels, which are then the likeliest class of
    # each; None to learn the labels themselves.
    soft: Probabilities | None = None
    _rows: Index  # (n,): which of the images that were found these are

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def total(self) -> int:
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
        """The image, "RGB" or "L", perhaps already shrunk but with a short side of `at_least` or its full size. Raises
        `ImageError` if it cannot be read."""

    @abstractmethod
    def header(self, index: int) -> Header:
        """Its size and kind, without decoding it; raises `ImageError`."""

    @abstractmethod
    def content(self, index: int) -> bytes:
        """Its bytes as they are stored: equal for exact copies; raises `ImageError`."""

    @abstractmethod
    def size(self, index: int) -> int:
        """How many bytes `content` has, without reading them; 0 if it cannot be read."""

    def digest(self, index: int) -> bytes:
        """16 bytes that differ if `content` does; raises `ImageError`."""
        return blake2b(self.content(index), digest_size=16).digest()

    def encoded(self, index: int) -> bytes:
        """An image file of it: its bytes as they are stored where they are one, else a PNG; raises `ImageError`."""
        return self.content(index)

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width where all images are in memory and of one size; else None."""
        return None

    def gather(self, indices: Index) -> Tensor:
        """(B, C, H, W) uint8: these images as they are; only of a source that has a `shape`."""
        raise NotImplementedError

    def order(self, seed: int, epoch: int) -> Index:
        """The indices of all images in the order of an epoch of training, a pure function of seed and epoch."""
        return permutation(seed, epoch, len(self))

    @property
    def has_own_order(self) -> bool:
        """Whether `order` is another than a permutation of all, because reading nearly in sequence is faster."""
        return False

    def expect(self, indices: Index, keep_pending: bool = False) -> None:  # noqa: B027  most sources have nothing to do
        """Hear which images are read next: those that lie far away can be fetched at once.

        keep_pending: those that were named before, of this source or another, are still to be read.
        """

    def damage(self) -> dict[str, str]:
        """Of each file that holds several images and is not as it was written, by name, what is wrong with it."""
        return {}

    def subset(self, indices: Sequence[int] | Labels) -> Self:
        """These images in this order, with the same classes and their soft targets; nothing else is copied."""
        chosen, found = np.asarray(indices, dtype=np.int64), copy(self)
        found.labels, found._rows = self.labels[chosen], self._rows[chosen]
        found.soft = None if self.soft is None else self.soft[chosen]
        return found

    def with_labels(self, labels: Labels, classes: tuple[str, ...], soft: Probabilities | None = None) -> Self:
        """The same images with other labels (n,) and soft targets (n, K), none unless they are given."""
        found = copy(self)
        found.labels, found.classes, found.soft = labels, classes, soft
        return found

    def relabelled(self, classes: Sequence[str]) -> Source:
        """The same images with labels that count in `classes`, for a model that orders its classes so. Classes are
        matched by name, and all of this source's images must belong to one."""
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
    """A dataset: its classes, its splits among "train", "val" and "test", and remarks on what was skipped."""

    splits: dict[Split, Source]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", {name: self.splits[name] for name in SPLITS if name in self.splits})

    @property
    def train(self) -> Source:
        if "train" not in self.splits:
            raise UserError(f"these data have no train split, only {_list(self.splits)}; give some to train on.")
        return self.splits["train"]

    def with_validation(self, fraction: float = 0.1, seed: int = 0) -> Data:
        """The same data; if there is no val split, one is made of part of the train split."""
        if "val" in self.splits:
            return self
        train, val = split_validation(self.train, fraction, seed)
        return replace(self, splits={**self.splits, "train": train, "val": val})


def split_validation(source: Source, fraction: float = 0.1, seed: int = 0) -> tuple[Source, Source]:
    """(training, validation): of each class its fraction, chosen by a hash of the seed and the image's key.

    So the choice depends on nothing but the seed and the names in that class: not on where the data lie nor on their
    order. A class of n gives round(n x fraction), at least 1 and at most n - 1; one of a single image is refused.
    A new image can move at most one other of its class, none of another class. (None at all is impossible with
    exact fractions.)
    """
    if not 0 < fraction < 1:
        raise UserError(f"fraction={fraction}: the validation's share must be above 0 and below 1.")
    if len(source) < 2:
        raise UserError(f"{len(source)} images: too few to set some aside for validation; add more.")
    chosen = np.zeros(len(source), dtype=bool)
    for members in _by_class_in_random_order(source, seed):
        if len(members) < 2:
            label = source.classes[source.labels[members[0]]]
            raise UserError(
                f"{source.name(int(members[0]))}: the only image of class {label!r}, so none can be "
                "set aside for validation; add more of it, remove the class, or give a val folder."
            )
        count = min(max(round(len(members) * fraction), 1), len(members) - 1)
        chosen[members[:count]] = True
    return source.subset(np.flatnonzero(~chosen)), source.subset(np.flatnonzero(chosen))


def take_fraction(source: Source, fraction: float, seed: int) -> Source:
    """A fraction of each class, in the source's order, chosen as `split_validation` does: by a hash of seed and key. A
    class of n gives n x fraction, rounded half up; one that would give none is refused. With one seed, what a smaller
    fraction takes is part of what a larger one takes."""
    if not 0 < fraction <= 1:
        raise UserError(f"share={fraction}: must be above 0 and at most 1.")
    if fraction == 1:
        return source
    chosen = []
    for members in _by_class_in_random_order(source, seed):
        count = int(len(members) * fraction + 0.5)
        if not count:
            label, least = source.classes[source.labels[members[0]]], 0.5 / len(members)
            scale = 10.0 ** (1 - math.floor(math.log10(least)))  # two digits, rounded up
            raise UserError(
                f"share={fraction:g}: class {label!r} has {len(members)} training image{'s' * (len(members) > 1)}, so "
                f"none would be left; give at least {math.ceil(least * scale - 1e-9) / scale:g}, or add images of it."
            )
        chosen.append(members[:count])
    return source.subset(np.sort(np.concatenate(chosen)))


def random_subset(source: Source, seed: int, count: int | None = None) -> Source:
    """The first `count` images of a random order, all if None; whatever is seen first is a random sample."""
    return source.subset(permutation(seed, SUBSET_EPOCH, len(source))[:count])


def _by_class_in_random_order(source: Source, seed: int) -> list[Labels]:
    """Of each class the indices of its images, ordered by a hash of the seed and the image's key."""
    order = np.lexsort((key_hashes(source, seed), source.labels))
    starts = np.flatnonzero(np.diff(source.labels[order], prepend=-2))
    return np.split(order, starts[1:])


def key_hashes(source: Source, seed: int) -> NDArray[np.uint64]:
    """(n,) 64 bits for each image that look random, from the seed and the image's key, valid Unicode or not."""
    texts = (f"{seed}\0".encode() + source.key(i).encode("utf-8", "surrogateescape") for i in range(len(source)))
    hashes = b"".join(blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(hashes, dtype="<u8")


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
