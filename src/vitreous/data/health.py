"""What is in the data, and what is wrong with them: counts, sizes, unreadable files, duplicates, leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.complete import NO_END
from vitreous.data.decode import ImageError
from vitreous.data.duplicates import Located, connected_groups, difference_hash, group_equal, near_pairs
from vitreous.data.source import Data, Source

THUMBNAIL = 16


@dataclass(frozen=True)
class SplitReport:
    """One of train, val and test."""

    images: int
    counts: dict[str, int]  # images of each class
    imbalance: float  # the largest class's images for one of the smallest's; classes without any do not count
    missing: list[str]  # classes without an image


@dataclass(frozen=True)
class Duplicates:
    """Images that are the same, or nearly."""

    names: list[str]
    splits: list[str]  # that they are in: more than one is a leak
    labels: list[str]  # the classes they are in: more than one contradict each other


@dataclass(frozen=True)
class HealthReport:
    """What `inspect_data` found. `to_json` gives plain dicts and lists."""

    images: int
    classes: list[str]
    splits: dict[str, SplitReport]
    width: dict[str, float]  # least, median and greatest, in pixels; of the height too
    height: dict[str, float]
    modes: dict[str, int]  # images of each of Pillow's modes, such as RGB, L, CMYK, as they are stored
    formats: dict[str, int]
    unreadable: dict[str, str]  # path to reason; shards whose checksum is wrong too
    exact_duplicates: list[Duplicates]
    near_duplicates: list[Duplicates]
    notes: list[str]

    @property
    def leaks(self) -> list[Duplicates]:
        """Duplicates across train, val and test: they make results look better than they are."""
        return [group for group in self.exact_duplicates + self.near_duplicates if len(group.splits) > 1]

    @property
    def contradictions(self) -> list[Duplicates]:
        return [group for group in self.exact_duplicates + self.near_duplicates if len(group.labels) > 1]

    def to_json(self) -> dict[str, Any]:
        more = {"leaks": self.leaks, "contradictions": self.contradictions}
        return {**asdict(self), **{name: [asdict(group) for group in groups] for name, groups in more.items()}}


class _ImageStats(NamedTuple):
    located: Located
    size: tuple[int, int]  # width and height
    mode: str
    format: str
    digest: bytes
    thumbnail: NDArray[np.uint8]
    hash: int
    ended: bool  # it is no JPEG without its end marker, which is read all the same


def inspect_data(data: Data, progress: Callable[[int, int], None] | None = None) -> HealthReport:
    """Read every image once and report. progress: called with images done and images in all."""
    total = sum(len(source) for source in data.splits.values())
    seen: list[_ImageStats] = []
    unreadable: dict[str, str] = {}
    for split, source in data.splits.items():
        for index in range(len(source)):
            try:
                seen.append(_read(source, (split, index)))
            except ImageError as error:
                unreadable[source.name(index)] = error.reason
            if progress is not None:
                progress(len(seen) + len(unreadable), total)
    exact = group_equal((one.digest, i) for i, one in enumerate(seen))
    copies = {member for group in exact for member in group[1:]}
    distinct = [i for i in range(len(seen)) if i not in copies]
    pairs = near_pairs(
        np.array([seen[i].hash for i in distinct], dtype=np.uint64),
        np.stack([seen[i].thumbnail for i in distinct]) if distinct else np.empty((0, 1), np.uint8),
    )
    near = connected_groups((distinct[a], distinct[b]) for a, b in pairs)
    sizes = np.array([one.size for one in seen], dtype=np.int64).reshape(-1, 2)
    unended = [data.splits[one.located[0]].name(one.located[1]) for one in seen if not one.ended]
    notes = [f"{len(unended):,} JPEG without the end marker, read all the same: {', '.join(unended[:3])}."]
    return HealthReport(
        images=total,
        classes=list(data.classes),
        splits={split: _report_split(source) for split, source in data.splits.items()},
        width=_range(sizes[:, 0]),
        height=_range(sizes[:, 1]),
        modes=dict(Counter(one.mode for one in seen).most_common()),
        formats=dict(Counter(one.format for one in seen).most_common()),
        unreadable=unreadable | {name: why for source in data.splits.values() for name, why in source.damage().items()},
        exact_duplicates=[_named(data, [seen[i].located for i in group]) for group in exact],
        near_duplicates=[_named(data, [seen[i].located for i in group]) for group in near],
        notes=[*data.notes, *(notes if unended else ())],
    )


def _read(source: Source, located: Located) -> _ImageStats:
    index = located[1]
    source.expect(np.array([index]))  # it is read three times
    header = source.header(index)
    # The smallest decode that serves a thumbnail; but all of the file is read, so damage shows.
    image = source.read(index, channels=1, at_least=2 * THUMBNAIL)
    digest = source.digest(index)
    thumbnail = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    return _ImageStats(
        *(located, (header.width, header.height), header.mode, header.format, digest),
        *(np.asarray(thumbnail).ravel(), difference_hash(image), NO_END not in image.info),
    )


def _report_split(source: Source) -> SplitReport:
    known = source.labels[source.labels >= 0]
    counts = np.bincount(known, minlength=len(source.classes))
    some = counts[counts > 0]
    return SplitReport(
        images=len(source),
        counts={name: int(count) for name, count in zip(source.classes, counts, strict=True)},
        imbalance=float(some.max() / some.min()) if len(some) else 1.0,
        missing=[name for name, count in zip(source.classes, counts, strict=True) if count == 0],
    )


def _range(values: NDArray[np.int64]) -> dict[str, float]:
    if not len(values):
        return {}
    return {"min": float(values.min()), "median": float(np.median(values)), "max": float(values.max())}


def _named(data: Data, members: list[Located]) -> Duplicates:
    names, splits, labels = [], [], []
    for split, index in members:
        source = data.splits[split]
        label = int(source.labels[index])
        names.append(source.name(index))
        splits.append(split)
        labels.append(source.classes[label] if label >= 0 else "")
    return Duplicates(names, sorted(set(splits)), sorted(set(labels)))
