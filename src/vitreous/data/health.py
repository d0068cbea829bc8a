"""What is in the data, and what is wrong with them: counts, sizes, unreadable files, duplicates, leaks across parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.decode import NO_END, ImageError
from vitreous.data.source import Data, Source

HASH_DISTANCE = 3
"""Bits of 64 that the hashes of near duplicates may differ in."""
PIXEL_DISTANCE = 4.0
"""Grey levels by which their thumbnails may differ on average: another JPEG quality or size stays below 2 or so."""
THUMBNAIL = 16
REACH = 64
"""How many neighbours in a band each hash is compared with; only crowds of look-alikes have more."""


@dataclass(frozen=True)
class PartReport:
    """One of train, val and test."""

    images: int
    counts: dict[str, int]
    """Images of each class."""
    imbalance: float
    """The largest class's images for one of the smallest's; classes without any do not count."""
    missing: list[str]
    """Classes without an image."""


@dataclass(frozen=True)
class Duplicates:
    """Images that are the same, or nearly."""

    names: list[str]
    splits: list[str]
    """The parts they are in: more than one is a leak."""
    labels: list[str]
    """The classes they are in: more than one contradict each other."""


@dataclass(frozen=True)
class HealthReport:
    """What `inspect_data` found. `to_json` gives plain dicts and lists."""

    images: int
    classes: list[str]
    splits: dict[str, PartReport]
    width: dict[str, float]
    """Least, median and greatest, in pixels; of the height too."""
    height: dict[str, float]
    modes: dict[str, int]
    """Images of each of Pillow's modes, such as RGB, L, CMYK, as they are stored."""
    formats: dict[str, int]
    unreadable: dict[str, str]
    """Path to reason; shards whose checksum is wrong too."""
    exact_duplicates: list[Duplicates]
    near_duplicates: list[Duplicates]
    notes: list[str]

    @property
    def leaks(self) -> list[Duplicates]:
        """Duplicates across train, val and test: they make results look better than they are."""
        return [group for group in self.exact_duplicates + self.near_duplicates if len(group.splits) > 1]

    @property
    def contradictions(self) -> list[Duplicates]:
        """Duplicates with different labels."""
        return [group for group in self.exact_duplicates + self.near_duplicates if len(group.labels) > 1]

    def to_json(self) -> dict[str, Any]:
        """The report with leaks and contradictions, as dicts, lists, texts and numbers."""
        more = {"leaks": self.leaks, "contradictions": self.contradictions}
        return {**asdict(self), **{name: [asdict(group) for group in groups] for name, groups in more.items()}}


@dataclass
class _Seen:
    """What was noted of each readable image, in the order of the parts."""

    places: list[tuple[str, int]]
    sizes: list[tuple[int, int]]
    modes: Counter[str]
    formats: Counter[str]
    digests: list[bytes]
    thumbnails: list[NDArray[np.uint8]]
    hashes: list[int]
    unreadable: dict[str, str]
    unended: list[str]
    """JPEGs without their end marker, which are read all the same."""


def inspect_data(data: Data, progress: Callable[[int, int], None] | None = None) -> HealthReport:
    """Read every image once and report. progress: called with images done and images in all."""
    seen = _look(data, progress)
    damaged = {name: why for source in data.splits.values() for name, why in source.damage().items()}
    exact = _groups_of_equals(seen.digests)
    copies = {member for group in exact for member in group[1:]}
    distinct = [i for i in range(len(seen.digests)) if i not in copies]
    pairs = near_pairs(
        np.array([seen.hashes[i] for i in distinct], dtype=np.uint64),
        np.stack([seen.thumbnails[i] for i in distinct]) if distinct else np.empty((0, 1), np.uint8),
    )
    near = _components([(distinct[a], distinct[b]) for a, b in pairs])
    sizes = np.array(seen.sizes, dtype=np.int64).reshape(-1, 2)
    return HealthReport(
        images=sum(len(source) for source in data.splits.values()),
        classes=list(data.classes),
        splits={split: _part(source) for split, source in data.splits.items()},
        width=_range(sizes[:, 0]),
        height=_range(sizes[:, 1]),
        modes=dict(seen.modes.most_common()),
        formats=dict(seen.formats.most_common()),
        unreadable={**seen.unreadable, **damaged},
        exact_duplicates=[_named(data, seen, group) for group in exact],
        near_duplicates=[_named(data, seen, group) for group in near],
        notes=[*data.notes, *_unended(seen.unended)],
    )


def near_pairs(hashes: NDArray[np.uint64], thumbnails: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Pairs (a, b), a < b, with hashes at most HASH_DISTANCE bits and thumbnails at most PIXEL_DISTANCE levels apart.

    hashes: (n,); thumbnails: (n, pixels). Two hashes that differ in 3 bits agree in one of 4 bands of 16: so each is
    compared only with its neighbours in the order of each band, and the work grows as n log n.
    """
    found: set[tuple[int, int]] = set()
    for band in range(HASH_DISTANCE + 1):
        part = (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        order = np.lexsort((hashes, part))
        for step in range(1, min(REACH, len(order) - 1) + 1):
            a, b = order[:-step], order[step:]
            same = part[a] == part[b]
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


def _look(data: Data, progress: Callable[[int, int], None] | None) -> _Seen:
    seen = _Seen([], [], Counter(), Counter(), [], [], [], {}, [])
    total = sum(len(source) for source in data.splits.values())
    for split, source in data.splits.items():
        for index in range(len(source)):
            try:
                _look_at(source, index, split, seen)
            except ImageError as error:
                seen.unreadable[source.name(index)] = error.reason
            if progress is not None:
                progress(len(seen.places) + len(seen.unreadable), total)
    return seen


def _look_at(source: Source, index: int, split: str, seen: _Seen) -> None:
    source.expect(np.array([index]))  # it is read three times
    header = source.header(index)
    # The smallest decode that serves a thumbnail; but all of the file is read, so damage shows.
    image = source.read(index, channels=1, at_least=2 * THUMBNAIL)
    digest = source.digest(index)
    thumbnail = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    if NO_END in image.info:
        seen.unended.append(source.name(index))
    seen.places.append((split, index))
    seen.sizes.append((header.width, header.height))
    seen.modes[header.mode] += 1
    seen.formats[header.format] += 1
    seen.digests.append(digest)
    seen.thumbnails.append(np.asarray(thumbnail).ravel())
    seen.hashes.append(difference_hash(image))


def _unended(names: list[str]) -> list[str]:
    if not names:
        return []
    return [f"{len(names):,} JPEG without the end marker, read all the same: {', '.join(names[:3])}."]


def _part(source: Source) -> PartReport:
    known = source.labels[source.labels >= 0]
    counts = np.bincount(known, minlength=len(source.classes))
    some = counts[counts > 0]
    return PartReport(
        images=len(source),
        counts={name: int(count) for name, count in zip(source.classes, counts, strict=True)},
        imbalance=float(some.max() / some.min()) if len(some) else 1.0,
        missing=[name for name, count in zip(source.classes, counts, strict=True) if count == 0],
    )


def _range(values: NDArray[np.int64]) -> dict[str, float]:
    if not len(values):
        return {}
    return {"min": float(values.min()), "median": float(np.median(values)), "max": float(values.max())}


def _groups_of_equals(digests: list[bytes]) -> list[list[int]]:
    groups: dict[bytes, list[int]] = {}
    for i, digest in enumerate(digests):
        groups.setdefault(digest, []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def _components(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Pairs joined to groups of all that are connected, in order."""
    leader: dict[int, int] = {}

    def find(x: int) -> int:
        while leader.setdefault(x, x) != x:
            leader[x] = x = leader[leader[x]]
        return x

    for a, b in pairs:
        low, high = sorted((find(a), find(b)))
        leader[high] = low
    groups: dict[int, list[int]] = {}
    for member in sorted(leader):
        groups.setdefault(find(member), []).append(member)
    return list(groups.values())


def _named(data: Data, seen: _Seen, members: list[int]) -> Duplicates:
    names, splits, labels = [], [], []
    for split, index in (seen.places[member] for member in members):
        source = next(part for name, part in data.splits.items() if name == split)
        label = int(source.labels[index])
        names.append(source.name(index))
        splits.append(split)
        labels.append(source.classes[label] if label >= 0 else "")
    return Duplicates(names, sorted(set(splits)), sorted(set(labels)))
