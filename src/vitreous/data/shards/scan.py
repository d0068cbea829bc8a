"""The index of shards that came without one: their headers are gone through once, and the result is kept.

A sample is what webdataset takes for one: members one after the other whose names are the same up to the first dot of
the last part. Its image is the member that is called .jpg, .png...; its label is in .cls, else in .json, as "label"
or "cls".
"""

from __future__ import annotations

import logging
import re
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitreous.data.decode import IMAGE_SUFFIXES, MAX_BYTES
from vitreous.data.folder import Names
from vitreous.data.shards.index import Shard, ShardIndex, ShardRows, check_rows
from vitreous.data.shards.index_cache import load_index, store_index
from vitreous.data.shards.places import reader, stat_place, without_query
from vitreous.data.shards.tar import Member, Read, check_size, members
from vitreous.data.source import SPLIT_NAMES, Split, order_classes
from vitreous.errors import UserError
from vitreous.inputs import as_text, parse_json

log = logging.getLogger("vitreous")

MOST_LABEL, MOST_JSON = 2**10, 2**20  # bytes of a .cls and of a .json member
SECONDS = 10.0  # after which it is said how far the scan is

_SAMPLE = re.compile(r"((?:.*/)?[^./][^.]*)\.([^/]+)", re.DOTALL)
_META = re.compile(r"__[^/]*__(?:/|$)")


def scan_shards(places: Sequence[str]) -> ShardIndex:
    """The index of these shards, in the order given, from the cache where they were scanned before.

    Classes are called by what .cls says: numbers, or names.
    """
    names = [file_name(place) for place in places]
    stored = [stat_place(place) for place in places]
    if (cached := load_index(places, stored)) is not None:
        return cached
    found, told = _Found(), time.monotonic()
    shards: list[Shard] = []
    for place, name, (size, _) in zip(places, names, stored, strict=True):
        if time.monotonic() > told + SECONDS:
            log.info(f"{len(shards):,} of {len(places):,} shards are indexed, which is done once.")
            told = time.monotonic()
        before = len(found.names)
        with reader(place) as read:
            found.scan(place, size, read)
        shards.append(Shard(name, split_of(name), size, len(found.names) - before))
    if not len(found.names):
        raise UserError(f"{places[0]}: no images in it, nor in the {len(places) - 1:,} shards after it; check them.")
    classes, rows = found.finish()
    index = ShardIndex(tuple(places), tuple(shards), classes, rows)
    check_rows(index, places[0])
    store_index(index, stored)
    return index


def split_of(name: str) -> Split:
    """The split that a shard's name tells, such as imagenet-validation-12.tar; else train."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), "train")


def file_name(place: str) -> str:
    """The last part of a path or an address."""
    return without_query(place).replace("\\", "/").rstrip("/").rpartition("/")[2]


@dataclass
class _Found:
    """What was found so far, without an object per image."""

    offset: array[int] = field(default_factory=lambda: array("q"))
    length: array[int] = field(default_factory=lambda: array("i"))
    label: array[int] = field(default_factory=lambda: array("i"))
    names: Names = field(default_factory=Names)
    numbers: dict[str, int] = field(default_factory=dict)
    """Of each label that was found, in the order in which they were."""

    def scan(self, shard: str, size: int, read: Read) -> None:
        """Add the images of a shard of so many bytes."""
        for image, label in _samples(shard, size, read):
            self.offset.append(image.offset)
            self.length.append(image.size)
            self.names.append(image.name)
            self.label.append(-1 if label is None else self.numbers.setdefault(label, len(self.numbers)))

    def finish(self) -> tuple[tuple[str, ...], ShardRows]:
        """The classes in order, and the rows with labels that count in them."""
        classes = order_classes(self.numbers) if self.numbers else ()
        place = {name: number for number, name in enumerate(classes)}
        ordered = np.array([*(place[name] for name in self.numbers), -1], dtype=np.int32)
        offset: NDArray[np.int64] = np.frombuffer(self.offset, dtype=np.int64)
        length: NDArray[np.int32] = np.frombuffer(self.length, dtype=np.int32)
        return classes, ShardRows(offset, length, ordered[np.frombuffer(self.label, dtype=np.int32)], self.names)


def _samples(shard: str, size: int, read: Read) -> Iterator[tuple[Member, str | None]]:
    """The image of each sample, and its label if it has one."""
    key, image, label, described = "", None, None, None
    for member in members(shard, read):
        if member.offset + member.size > size:
            raise UserError(
                f"{shard}: cut short at byte {size:,}, within its member {member.name!r}; restore it from a copy."
            )
        named = _SAMPLE.fullmatch(member.name)
        if named is None or (member.name.startswith("__") and _META.match(member.name)):
            continue
        if named[1] != key:
            if image is not None:
                yield image, label if label is not None else _described(shard, described, read)
            key, image, label, described = named[1], None, None, None
        suffix = f".{named[2].lower()}"
        if suffix in IMAGE_SUFFIXES and image is None:
            check_size(shard, member, MAX_BYTES)
            image = member
        elif suffix == ".cls":
            check_size(shard, member, MOST_LABEL)
            label = read(member.offset, member.size).decode("utf-8", "backslashreplace").strip() or None
        elif suffix == ".json":
            described = member
    if image is not None:
        yield image, label if label is not None else _described(shard, described, read)


def _described(shard: str, member: Member | None, read: Read) -> str | None:
    """The label that a .json member gives; None if there is none."""
    if member is None:
        return None
    check_size(shard, member, MOST_JSON)
    found = parse_json(read(member.offset, member.size).decode("utf-8", "replace"), f"{shard}, {member.name}")
    label = found.get("label", found.get("cls")) if isinstance(found, dict) else None
    return as_text(str(label)[:MOST_LABEL]) if isinstance(label, str | int) and not isinstance(label, bool) else None
