"""A teacher's answers for the places of images, made once and kept in files.

A file holds some images, as an array of records: which image (a digest of its bytes), and of each place the
likeliest classes with their probabilities. It is named after its own SHA-256, so damage shows, and it is complete or
not there. Renamed, moved or split data find their maps again; a training that was killed goes on with those it made.
Images that cannot be decoded have no map: files of records without places say so, and nobody tries them again.

Letters: B images, h x w places, k classes kept of K.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.errors import MachineError, UserError
from vitreous.evaluate.feature_cache import Progress, tell
from vitreous.storage.files import write_file

Records = NDArray[Any]
Digest = bytes
Known = dict[Digest, tuple[Path, int] | None]
"""The file and row of each image's map; None of one that cannot be decoded."""

FORMAT = 1
MAP, UNREADABLE = ("image", "classes", "shares"), ("image",)
"""Fields of an image's record: with its map, or without, for it cannot be decoded."""
FILE_BYTES = 8 * 2**20
"""A file is closed when it has grown so large, or after so many seconds: what a kill can cost."""
FILE_SECONDS = 30.0
OPEN = 64
"""Files that are mapped into the memory at a time."""
LIMIT = 8 * 2**30
"""Bytes that maps of all teachers may take: beyond that, those that were not used for longest are removed."""
MARK_SECONDS = 3600.0
"""Between two marks of whoever reads maps that they are in use."""
IN_USE_SECONDS = 24 * 3600.0
"""After its last mark a store counts as in use, and is not removed: another process may open its files any time."""


def top_classes(scores: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """(..., k) classes int64 and their probabilities float16, the likeliest first, of scores (..., K)."""
    top = scores.float().softmax(dim=-1).topk(min(kept, scores.shape[-1]), dim=-1)
    return top.indices, top.values.half()


def spread_out(classes: Tensor, shares: Tensor, count: int) -> Tensor:
    """(..., K) float32 that sum to 1, of the kept ones (..., k): what they leave is shared evenly by all others."""
    known, kept = shares.float(), shares.shape[-1]
    rest = (1 - known.sum(dim=-1, keepdim=True)).clamp(min=0)
    full = (rest / max(1, count - kept)).expand(*known.shape[:-1], count).scatter(-1, classes.long(), known)
    return full / full.sum(dim=-1, keepdim=True)


def image_digests(source: Source, progress: Progress | None = None) -> list[Digest | None]:
    """Of each image 16 bytes that follow from its own; None of one that cannot be read."""
    found: list[Digest | None] = []
    for index in range(len(source)):
        found.append(image_digest(source, index))
        tell(progress, index + 1, len(source))
    return found


def image_digest(source: Source, index: int) -> Digest | None:
    """The same of one."""
    try:
        return sha256(source.content(index)).digest()[:16]
    except ImageError:
        return None


@dataclass
class MapStore:
    """Maps of one teacher in a folder of their own. What a person should know of it is in `remarks`."""

    folder: Path
    count: int
    """K."""
    kept: int
    """k."""
    remarks: list[str] = field(default_factory=list)

    def known(self, progress: Progress | None = None) -> Known:
        """What is there of which images; a damaged file is removed, and its maps count as not made."""
        _mark_use(self.folder)
        found: Known = {}
        files = _files(self.folder)
        for number, path in enumerate(files):
            records = self._whole(path)
            if progress is not None and len(files) > 1:
                progress(number + 1, len(files))
            if records is None:
                self.remarks.append(f"{path}: damaged; its token labels are made again.")
                with suppress(OSError):
                    path.unlink()
                continue
            found |= _rows(path, records)
        return found

    def _whole(self, path: Path) -> Records | None:
        """The file's records if it is to the bit what was written, else None."""
        try:
            data = path.read_bytes()
            if sha256(data).hexdigest() != path.stem:
                return None
            records: Records = np.load(io.BytesIO(data), allow_pickle=False)
        except (OSError, ValueError):
            return None
        return records if records.dtype.names in (MAP, UNREADABLE) else None

    def write(self, batches: Iterable[tuple[Sequence[Digest], Tensor]]) -> Known:
        """Keep maps that come batch by batch, and say where: the images' digests, and scores (B, h, w, K)."""
        waiting: list[Records] = []
        written: Known = {}
        since = time.monotonic()
        try:
            for digests, scores in batches:
                waiting.append(self._records(digests, scores))
                if time.monotonic() - since > FILE_SECONDS or sum(some.nbytes for some in waiting) > FILE_BYTES:
                    full, waiting, since = waiting, [], time.monotonic()
                    written |= self._write_file(np.concatenate(full))
        finally:  # an interruption loses nothing that was made
            if waiting:
                written |= self._write_file(np.concatenate(waiting))
        return written

    def write_unreadable(self, digests: Sequence[Digest]) -> Known:
        """Note that these images cannot be decoded."""
        if not digests:
            return {}
        records = np.empty(len(digests), np.dtype([("image", "u1", 16)]))
        records["image"] = _as_rows(digests)
        return self._write_file(records)

    def _records(self, digests: Sequence[Digest], scores: Tensor) -> Records:
        classes, shares = top_classes(scores, self.kept)
        whole = np.min_scalar_type(self.count - 1)
        shape = tuple(classes.shape[1:])
        kind = np.dtype([("image", "u1", 16), ("classes", whole, shape), ("shares", "<f2", shape)])
        records = np.empty(len(digests), kind)
        records["image"] = _as_rows(digests)
        records["classes"], records["shares"] = classes.cpu().numpy(), shares.cpu().numpy()
        return records

    def _write_file(self, records: Records) -> Known:
        buffer = io.BytesIO()
        np.save(buffer, records, allow_pickle=False)
        data = buffer.getvalue()
        path = self.folder / f"{sha256(data).hexdigest()}.npy"
        try:
            write_file(path, data)
        except (UserError, MachineError) as error:
            raise type(error)(
                f"{self.folder}: token labels could not be kept there; set VITREOUS_CACHE to a folder that can be "
                f"written ({str(error).rstrip('.')})."
            ) from None
        return _rows(path, records)

    def touch(self) -> None:
        """Note that it was used, and remove what was not for longest where all stores together are too large."""
        _mark_use(self.folder)
        with suppress(OSError):  # another process may be removing the same files
            folders = sorted(self.folder.parent.iterdir(), key=lambda place: place.stat().st_mtime, reverse=True)
            total = 0
            for place in folders:
                files = _files(place)
                total += sum(path.stat().st_size for path in files)
                unused = time.time() - place.stat().st_mtime > IN_USE_SECONDS
                if total > LIMIT and unused and place != self.folder:
                    for path in files:
                        path.unlink(missing_ok=True)


class StoredMaps:
    """The maps of a source's images, read from their files when they are asked for."""

    def __init__(self, known: Known, digests: Sequence[Digest | None], count: int, name: Callable[[int], str]) -> None:
        """known: where the store has them. count: K. name: says what a person calls an image."""
        self._name, self._count = name, count
        self._places = [None if digest is None else known.get(digest) for digest in digests]
        self._folders = {path.parent for path in {place[0] for place in self._places if place is not None}}
        self._marked = float("-inf")  # when they were marked last, by `time.monotonic`
        self._open = lru_cache(maxsize=OPEN)(_mapped)

    def read(self, index: Tensor) -> Tensor:
        """(B, h, w, K) float32 that sum to 1."""
        if (now := time.monotonic()) - self._marked > MARK_SECONDS:
            self._marked = now
            for folder in self._folders:
                _mark_use(folder)
        rows = [self._row(number) for number in index.tolist()]
        classes, shares = (
            torch.from_numpy(np.stack([row[name] for row in rows]).astype(kind))
            for name, kind in (("classes", np.int64), ("shares", np.float32))
        )
        return spread_out(classes, shares, self._count)

    def _row(self, number: int) -> Any:
        place = self._places[number]
        if place is None:
            raise UserError(
                f"{self._name(number)}: could not be read when its token labels were made; mend or delete it, and "
                "repeat the command."
            )
        path, row = place
        try:
            return self._open(path)[row]
        except (OSError, ValueError):
            raise UserError(
                f"{path}: the token labels in it are gone or damaged; repeat the command, and they are made again."
            ) from None


def _mark_use(folder: Path) -> None:
    """Note that this store is in use."""
    with suppress(OSError):  # it is not there yet, or somebody else's, who may remove it as ever
        os.utime(folder)


def _files(folder: Path) -> list[Path]:
    """The files of a store: those with a SHA-256 for a name."""
    return sorted(path for path in folder.glob("*.npy") if len(path.stem) == 64)


def _rows(path: Path, records: Records) -> Known:
    """What a file says of its images."""
    mapped = records.dtype.names == MAP
    return {digest.tobytes(): (path, row) if mapped else None for row, digest in enumerate(records["image"])}


def _as_rows(digests: Sequence[Digest]) -> Records:
    """(n, 16) uint8."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def _mapped(path: Path) -> Records:
    records: Records = np.load(path, mmap_mode="r", allow_pickle=False)
    return records
