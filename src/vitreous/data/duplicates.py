"""The same image more than once: exact copies byte by byte, and near ones by hash and thumbnail."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.decode import ImageError
from vitreous.data.source import Data, Source, Split

HASH_DISTANCE = 3  # bits of 64 that the hashes of near duplicates may differ in
# Grey levels by which their thumbnails may differ on average: another JPEG quality or size stays below 2 or so.
PIXEL_DISTANCE = 4.0
MAX_NEIGHBOURS = 64  # in a band that each hash is compared with; only crowds of look-alikes have more

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Located = tuple[Split, int]  # a split, and the index of an image in it


class _OutOfTimeError(Exception):
    pass


def note_duplicates(data: Data, seconds: float = 1.0) -> Data:
    """The data, with a note where the same image is in several splits, and one where it is in several classes. Copies
    have as many bytes, so only where these coincide are files read. What takes more than `seconds` is left to `vitreous
    inspect`, and a note says so."""
    end, sizes = time.monotonic() + seconds, defaultdict[int, list[Located]](list)
    groups: list[list[Located]] = []
    try:
        for split, source in data.splits.items():
            for index in _until(end, range(len(source))):
                sizes[source.size(index)].append((split, index))
        for located in (one for one in sizes.values() if len(one) > 1):
            digests = ((_digest(data.splits[split], index), (split, index)) for split, index in _until(end, located))
            groups += group_equal((digest, one) for digest, one in digests if digest is not None)
    except _OutOfTimeError:
        note = "Too many images to look for copies among them in a moment; `vitreous inspect` does."
        return replace(data, notes=(*data.notes, note))
    leaks = [group for group in groups if len({split for split, _ in group}) > 1]
    conflicts = [group for group in groups if len({int(data.splits[split].labels[i]) for split, i in group}) > 1]
    notes = []
    if leaks:
        splits = " and ".join(dict.fromkeys(split for group in leaks for split, _ in group))
        notes.append(
            f"{_count(leaks)} in more than one of {splits}, which makes results look better than they are "
            f"({_example(data, leaks[0])}); `vitreous inspect` lists all."
        )
    if conflicts:
        notes.append(
            f"{_count(conflicts)} in more than one class, of which only one can be right "
            f"({_example(data, conflicts[0])}); `vitreous inspect` lists all."
        )
    return replace(data, notes=(*data.notes, *notes))


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


def _count(groups: list[list[Located]]) -> str:
    return "1 image is" if len(groups) == 1 else f"{len(groups):,} images are"


def _example(data: Data, group: list[Located]) -> str:
    (one, i), (other, j) = group[0], group[-1]
    return f"{data.splits[one].name(i)} = {data.splits[other].name(j)}"


def without_duplicates(source: Source, others: Sequence[Source]) -> Source:
    """The images of a source that are in none of the others, byte by byte; files are read where sizes coincide."""
    known: dict[int, list[tuple[Source, int]]] = {}
    for other in others:
        for index in range(len(other)):
            known.setdefault(other.size(index), []).append((other, index))
    digests: dict[int, set[bytes]] = {}

    def is_duplicate(index: int) -> bool:
        size = source.size(index)
        if size not in known:
            return False
        if size not in digests:
            digests[size] = {found for one in known[size] if (found := _digest(*one)) is not None}
        return _digest(source, index) in digests[size]

    return source.subset([index for index in range(len(source)) if not is_duplicate(index)])


def group_equal(items: Iterable[tuple[Key, Item]]) -> list[list[Item]]:
    """The items, given with a key each, that share a key with another: a list for each such key, in order."""
    groups: dict[Key, list[Item]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return [group for group in groups.values() if len(group) > 1]


def near_pairs(hashes: NDArray[np.uint64], thumbnails: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Pairs (a, b), a < b, with hashes at most HASH_DISTANCE bits and thumbnails at most PIXEL_DISTANCE levels apart.

    hashes: (n,); thumbnails: (n, pixels). Two hashes that differ in 3 bits agree in one of 4 bands of 16: so each is
    compared only with its neighbours in the order of each band, and the work grows as n log n.
    """
    found: set[tuple[int, int]] = set()
    for number in range(HASH_DISTANCE + 1):
        band = (hashes >> np.uint64(16 * number)) & np.uint64(0xFFFF)
        order = np.lexsort((hashes, band))
        for step in range(1, min(MAX_NEIGHBOURS, len(order) - 1) + 1):
            a, b = order[:-step], order[step:]
            same = band[a] == band[b]
            if not same.any():
                break
            a, b = a[same], b[same]
            close = np.bitwise_count(hashes[a] ^ hashes[b]) <= HASH_DISTANCE
            a, b = a[close], b[close]
            apart = np.abs(thumbnails[a].astype(np.int16) - thumbnails[b]).mean(axis=1)
            for x, y in zip(a[apart <= PIXEL_DISTANCE].tolist(), b[apart <= PIXEL_DISTANCE].tolist(), strict=True):
                found.add((min(x, y), max(x, y)))
    return sorted(found)


def difference_hash(image: Image.Image) -> int:
    """64 bits: whether each of 8 x 8 places is brighter than its right neighbour (dHash)."""
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX)).astype(np.int16)
    bits = (grey[:, :-1] > grey[:, 1:]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def connected_groups(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Pairs joined to groups of all that are connected, in order."""
    leader: dict[int, int] = {}

    def find(x: int) -> int:
        while leader.setdefault(x, x) != x:
            leader[x] = x = leader[leader[x]]
        return x

    for a, b in pairs:
        low, high = sorted((find(a), find(b)))
        leader[high] = low
    return group_equal((find(member), member) for member in sorted(leader))
