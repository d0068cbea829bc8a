"""Exact copies among images: what a training should say of them before it begins, and leaving them out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from vitreous.data.decode import ImageError
from vitreous.data.source import Data, Source, Split

Item = TypeVar("Item")
Place = tuple[Split, int]
"""A split, and the index of an image in it."""


class _OutOfTimeError(Exception):
    pass


def note_copies(data: Data, seconds: float = 1.0) -> Data:
    """The data, with a note where the same image is in several splits, and one where it is in several classes.

    Copies have as many bytes, so only where these coincide are files read. What takes more than `seconds` is left to
    `vitreous inspect`, and a note says so.
    """
    try:
        groups = list(_copies(data, time.monotonic() + seconds))
    except _OutOfTimeError:
        note = "Too many images to look for copies among them in a moment; `vitreous inspect` does."
        return replace(data, notes=(*data.notes, note))
    leaks = [group for group in groups if len({split for split, _ in group}) > 1]
    torn = [group for group in groups if len({int(data.splits[split].labels[i]) for split, i in group}) > 1]
    notes = []
    if leaks:
        splits = " and ".join(dict.fromkeys(split for group in leaks for split, _ in group))
        notes.append(
            f"{_count(leaks)} in more than one of {splits}, which makes results look better than they are "
            f"({_example(data, leaks[0])}); `vitreous inspect` lists all."
        )
    if torn:
        notes.append(
            f"{_count(torn)} in more than one class, of which only one can be right ({_example(data, torn[0])}); "
            "`vitreous inspect` lists all."
        )
    return replace(data, notes=(*data.notes, *notes))


def _copies(data: Data, end: float) -> Iterator[list[Place]]:
    """Groups of places that hold the same bytes."""
    sizes: dict[int, list[Place]] = {}
    for split, source in data.splits.items():
        for index in _until(end, range(len(source))):
            sizes.setdefault(source.size(index), []).append((split, index))
    for places in sizes.values():
        if len(places) > 1:
            equal: dict[bytes, list[Place]] = {}
            for split, index in _until(end, places):
                if (digest := _digest(data.splits[split], index)) is not None:
                    equal.setdefault(digest, []).append((split, index))
            yield from (group for group in equal.values() if len(group) > 1)


def _digest(source: Source, index: int) -> bytes | None:
    """Of an image's bytes; None where they cannot be read, which will be told when they are needed."""
    try:
        return source.digest(index)
    except ImageError:
        return None


def _until(end: float, items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        if time.monotonic() > end:
            raise _OutOfTimeError
        yield item


def _count(groups: list[list[Place]]) -> str:
    return "1 image is" if len(groups) == 1 else f"{len(groups):,} images are"


def _example(data: Data, group: list[Place]) -> str:
    (one, i), (other, j) = group[0], group[-1]
    return f"{data.splits[one].name(i)} = {data.splits[other].name(j)}"


def without_copies(source: Source, others: Sequence[Source]) -> Source:
    """The images of a source that are in none of the others, byte by byte.

    Copies have as many bytes, so only where these coincide are files read.
    """
    known: dict[int, list[tuple[Source, int]]] = {}
    for other in others:
        for index in range(len(other)):
            known.setdefault(other.size(index), []).append((other, index))
    digests: dict[int, set[bytes]] = {}

    def is_copy(index: int) -> bool:
        size = source.size(index)
        if size not in known:
            return False
        if size not in digests:
            digests[size] = {found for place in known[size] if (found := _digest(*place)) is not None}
        return _digest(source, index) in digests[size]

    return source.subset([index for index in range(len(source)) if not is_copy(index)])
