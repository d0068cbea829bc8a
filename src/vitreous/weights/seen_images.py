"""Which images a model was trained on, and which selected its weights: hashes of them, kept in its bundle.

    if bundle.seen_images is not None:  # None: a bundle of before, or weights of others
        overlap = bundle.seen_images.overlap(source)
        print(overlap.sentence)

An image counts as seen if its stored bytes are the same; one that was encoded anew is not recognised.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.decode import ImageError
from vitreous.data.joined import JoinedSource
from vitreous.data.shards.source import ShardSource
from vitreous.data.source import Data, Source, Split
from vitreous.errors import UserError

MAX_SEEN_IMAGES = 2_000_000  # of which hashes are kept: 16 MB
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """How many images of a source a model has seen in its training."""

    n: int  # images of the source
    train: int  # of these, how many it was trained on
    val: int  # how many others selected its weights
    not_kept: str | None = None  # why nothing is known of it; then train and val are 0

    @property
    def sentence(self) -> str | None:
        """What to say beside a result on this source; None where there is nothing to say."""
        if self.not_kept is not None:
            return f"Whether the model was trained on some of these images is not known: {self.not_kept}."
        found = ((self.train, "were trained on"), (self.val, "selected the weights"))
        if not (parts := [f"{count:,} {what}" for count, what in found if count]):
            return None
        return f"Of these {self.n:,} images {' and '.join(parts)}: the accuracy is optimistic for other images."


@dataclass(frozen=True)
class SeenImages:
    """Sorted 8-byte hashes of the images of a training; or why they are not kept."""

    train: Hashes
    val: Hashes  # images that selected the weights, or the temperature
    not_kept: str | None = None

    def overlap(self, source: Source) -> Overlap:
        """How many images of a source are among these. Every image is read, but not decoded; none in shards, each of
        which may be a request."""
        unknown = self.not_kept
        if unknown is None and _in_shards(source):
            unknown = "they are in shards, and were not compared with its training images"
        if unknown is not None:
            return Overlap(len(source), 0, 0, unknown)
        hashes = np.array([one for one in _hash_images(source) if one is not None], dtype=np.uint64)
        trained = np.isin(hashes, self.train)
        return Overlap(len(source), int(trained.sum()), int((np.isin(hashes, self.val) & ~trained).sum()))

    def union(self, other: SeenImages) -> SeenImages:
        """With those of the training that the weights came from."""
        train, val = (np.union1d(a, b) for a, b in ((self.train, other.train), (self.val, other.val)))
        return SeenImages(train, val, self.not_kept or other.not_kept)

    def to_json(self) -> dict[str, Any]:
        splits = {"train": self.train, "val": self.val}
        hashes = {name: b64encode(found.astype("<u8").tobytes()).decode() for name, found in splits.items()}
        return {"hash": "first 8 bytes of BLAKE2b-128, little-endian, sorted", **hashes, "not_kept": self.not_kept}

    @staticmethod
    def from_json(fields: Any, path: Path) -> SeenImages:
        try:
            found = {name: np.frombuffer(b64decode(fields[name], validate=True), "<u8") for name in ("train", "val")}
            not_kept = fields["not_kept"]
            if not (not_kept is None or isinstance(not_kept, str)):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: not the hashes of images; save the model again.") from None
        return SeenImages(**{name: hashes.astype(np.uint64) for name, hashes in found.items()}, not_kept=not_kept)


def find_seen_images(data: Data, selected: Sequence[Split] = ("val",), seconds: float | None = None) -> SeenImages:
    """What a training on the train split of these data sees. selected: splits that select its weights. seconds: how
    long it may take."""
    splits = [data.train, *(data.splits[split] for split in selected if split in data.splits)]
    if any(map(_in_shards, splits)):
        return _not_kept("the training images are in shards, which are not read for this alone")
    if (count := sum(map(len, splits))) > MAX_SEEN_IMAGES:
        return _not_kept(f"there are {count:,} training images, too many to keep a hash of each")
    end = None if seconds is None else time.monotonic() + seconds
    found = []
    for source in splits:
        hashes = []
        for one in _hash_images(source):
            if end is not None and time.monotonic() > end:
                return _not_kept("the budget of the training was too short to read all its images")
            if one is not None:
                hashes.append(one)
        found.append(np.unique(np.array(hashes, dtype=np.uint64)))
    none = np.array([], dtype=np.uint64)
    return SeenImages(found[0], found[1] if len(found) > 1 else none)


def _in_shards(source: Source) -> bool:
    parts = source.parts if isinstance(source, JoinedSource) else (source,)
    return any(isinstance(part, ShardSource) for part in parts)


def _not_kept(why: str) -> SeenImages:
    none = np.array([], dtype=np.uint64)
    return SeenImages(none, none, why)


def _hash_images(source: Source) -> Iterator[int | None]:
    for index in range(len(source)):
        try:
            yield int.from_bytes(source.digest(index)[:8], "little")
        except ImageError:  # which is told where it is needed
            yield None
