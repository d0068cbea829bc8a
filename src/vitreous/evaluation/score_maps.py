"""A teacher's predictions for each region of an image, computed once and cached: token labels are cut from them.

A file holds the maps of some images, as an array of records: which image (a digest of its bytes), and for each region
the k most probable classes with their probabilities. It is named after its own SHA-256, so damage shows, and it is
complete or absent. Data that were renamed, moved or split find their maps again; a training that was killed goes on
with those it made. Images that cannot be decoded have no map: files of records without regions say so, and nobody tries
them again.

Letters: B images, h x w = N regions, T tokens, D width, k classes stored of K.
"""

from __future__ import annotations

import io
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

from vitreous.callbacks import Progress
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.errors import MachineError, UserError
from vitreous.evaluation.features import report
from vitreous.model.network import HasFeatureMap, Network
from vitreous.model.predictions import class_probabilities
from vitreous.model.trace import Trace
from vitreous.model.vit import Block, ViT
from vitreous.storage.cache import cache_key, cache_path, evict, mark_used, not_cached
from vitreous.storage.files import write_file

Records = NDArray[Any]
Digest = bytes
MapIndex = dict[Digest, tuple[Path, int] | None]
"""The file and row of each image's map; None for an image that cannot be decoded."""

FORMAT = 2
MAP_FIELDS, UNREADABLE_FIELDS = ("image", "classes", "probabilities"), ("image",)
"""Fields of an image's record: with its map, or without, for it cannot be decoded."""
FILE_BYTES = 8 * 2**20
"""A file is closed when it has grown to this size, or after `FILE_SECONDS`: that is what a kill can cost."""
FILE_SECONDS = 30.0
MAX_OPEN_FILES = 64  # files that are mapped into memory at a time
MARK_SECONDS = 3600.0  # between two marks of whoever reads maps that they are in use
HOLD_SECONDS = 24 * 3600.0
"""After its last mark a store is not removed from the cache: a training may open its files at any time."""


@torch.inference_mode()
def region_logits(network: Network, images: Tensor) -> Tensor:
    """(B, h, w, K): logits of the classifier applied to one patch, or one cell of a feature map, instead of all.

    images: (B, C, H, W) float, normalised. The network should be in evaluation mode.
    """
    if isinstance(network, ViT):
        return _patch_logits(network, images)
    if isinstance(network, HasFeatureMap):
        cells = network.feature_map(images)  # (B, D, h, w)
        batch, _, rows, columns = cells.shape
        alone = cells.permute(0, 2, 3, 1).flatten(0, 2)[:, :, None, None]  # each a map of one cell, which pools to it
        return network.classify(alone).view(batch, rows, columns, -1)
    raise UserError(
        f"token labels: need a teacher with patches or a feature map; a network of the family "
        f"{network.config.family!r} has neither. Use a Vision Transformer or a convolutional network."
    )


def _patch_logits(network: ViT, images: Tensor) -> Tensor:
    """Of patches that are pooled in the end: each by itself. Else the class token attends to each in the last block.

    A classifier of class tokens cannot read patch tokens: of ViT-Ti/16's, 6 in 100 say what the class token says, and
    35 in 100 where it attends to them one by one, more of those in the middle (docs/teachers.md).
    """
    c, trace = network.config, Trace(layers=[-1, -2][: network.config.depth], attention=False)
    network(images, trace=trace)
    if c.pool == "class":
        before = trace.embedded if c.depth == 1 else trace.tokens[c.depth - 2]
        assert before is not None
        block = network.blocks[-1]
        assert isinstance(block, Block)
        prefix = before[:, : 2 if c.distilled else 1]  # registers say nothing of their own
        seen = network.norm(_attend_alone(block, prefix, before[:, c.prefix :]).flatten(0, 1))
    else:
        tokens = network.norm(trace.tokens[c.depth - 1])
        prefix, patches = tokens[:, None, : c.prefix], tokens[:, c.prefix :, None]
        seen = torch.cat([prefix.expand(-1, patches.shape[1], -1, -1), patches], dim=2).flatten(0, 1)
    if network.head_dist is not None:
        logits: Tensor = (network.head(seen[:, 0]) + network.head_dist(seen[:, 1])) / 2
    else:
        logits = network.head(network.pre_logits(network.pool(seen)))
    return logits.view(len(images), *trace.grid, -1)


def _attend_alone(block: Block, prefix: Tensor, patches: Tensor) -> Tensor:
    """(B, N, T, D): tokens (B, T, D) after a block in which each attends to one of the patches (B, N, D), for each.

    Equations 2 and 3; attention to a single token is its value, whatever queries and keys say.
    """
    value = block.attn.qkv.values(block.norm1(patches) if block.norm_first else patches)
    z = prefix[:, None] + block.ls1(block.attn.proj(block.attn.norm(value)))[:, :, None]
    if block.norm_first:
        return z + block.ls2(block.mlp(block.norm2(z)))
    z = block.norm1(z)
    return block.norm2(z + block.ls2(block.mlp(z)))


def top_classes(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(..., k) classes int64 and their probabilities float16, the most probable first, of logits (..., K)."""
    top = class_probabilities(logits.float()).topk(min(k, logits.shape[-1]), dim=-1)
    return top.indices, top.values.half()


def all_probabilities(classes: Tensor, probabilities: Tensor, num_classes: int) -> Tensor:
    """(..., K) float32 that sum to 1, from the top k (..., k): the remaining probability is spread evenly."""
    known, k = probabilities.float(), probabilities.shape[-1]
    rest = (1 - known.sum(dim=-1, keepdim=True)).clamp(min=0)
    full = (rest / max(1, num_classes - k)).expand(*known.shape[:-1], num_classes).scatter(-1, classes.long(), known)
    return full / full.sum(dim=-1, keepdim=True)


def image_digests(source: Source, progress: Progress | None = None) -> list[Digest | None]:
    """A 16-byte digest of each image's content; None for one that cannot be read."""
    found: list[Digest | None] = []
    for index in range(len(source)):
        found.append(image_digest(source, index))
        report(progress, index + 1, len(source))
    return found


def image_digest(source: Source, index: int) -> Digest | None:
    try:
        return source.digest(index)
    except ImageError:
        return None


@dataclass
class MapStore:
    """The cached maps of one teacher. What a person should know of them is in `remarks`."""

    folder: Path
    classes: int  # K
    top_k: int
    remarks: list[str] = field(default_factory=list)

    @staticmethod
    def of(teacher: str, classes: Sequence[str], top_k: int) -> MapStore:
        """For any images of these classes. teacher: its digest."""
        key = cache_key("token labels", FORMAT, teacher, classes, top_k)
        return MapStore(cache_path("token-labels", key), len(classes), top_k)

    def index(self, progress: Progress | None = None) -> MapIndex:
        """Which images have a map, and where; a damaged file is removed, and its maps count as missing."""
        mark_used(self.folder, HOLD_SECONDS)
        found: MapIndex = {}
        files = sorted(path for path in self.folder.glob("*.npy") if len(path.stem) == 64)
        for number, path in enumerate(files):
            records = _read_records(path)
            if progress is not None and len(files) > 1:
                progress(number + 1, len(files))
            if records is None:
                self.remarks.append(f"{path}: damaged; its token labels are made again.")
                with suppress(OSError):
                    path.unlink()
                continue
            found |= _index_records(path, records)
        return found

    def write(self, batches: Iterable[tuple[Sequence[Digest], Tensor]]) -> MapIndex:
        """Store maps that come batch by batch, and return where: the images' digests, and logits (B, h, w, K)."""
        pending: list[Records] = []
        written: MapIndex = {}
        since = time.monotonic()
        try:
            for digests, logits in batches:
                pending.append(self._records(digests, logits))
                if time.monotonic() - since > FILE_SECONDS or sum(some.nbytes for some in pending) > FILE_BYTES:
                    full, pending, since = pending, [], time.monotonic()
                    written |= self._write_file(np.concatenate(full))
        finally:  # an interruption loses nothing that was made
            if pending:
                written |= self._write_file(np.concatenate(pending))
        return written

    def write_unreadable(self, digests: Sequence[Digest]) -> MapIndex:
        """Record that these images cannot be decoded."""
        if not digests:
            return {}
        records = np.empty(len(digests), np.dtype([("image", "u1", 16)]))
        records["image"] = _as_rows(digests)
        return self._write_file(records)

    def _records(self, digests: Sequence[Digest], logits: Tensor) -> Records:
        classes, probabilities = top_classes(logits, self.top_k)
        shape = tuple(classes.shape[1:])
        fields = [("classes", np.min_scalar_type(self.classes - 1), shape), ("probabilities", "<f2", shape)]
        records = np.empty(len(digests), np.dtype([("image", "u1", 16), *fields]))
        records["image"] = _as_rows(digests)
        records["classes"], records["probabilities"] = classes.cpu().numpy(), probabilities.cpu().numpy()
        return records

    def _write_file(self, records: Records) -> MapIndex:
        buffer = io.BytesIO()
        np.save(buffer, records, allow_pickle=False)
        data = buffer.getvalue()
        path = self.folder / f"{sha256(data).hexdigest()}.npy"
        try:
            write_file(path, data)
        except (UserError, MachineError) as error:
            raise type(error)(not_cached("token labels", error)) from None
        mark_used(self.folder, HOLD_SECONDS)
        evict(except_for=self.folder)
        return _index_records(path, records)


class StoredMaps:
    """The maps of a source's images, read from their files on demand."""

    def __init__(self, index: MapIndex, digests: Sequence[Digest | None], classes: int, name: Callable[[int], str]):
        """index: where the store has them. classes: K. name: says what a person calls an image."""
        self._name, self._classes = name, classes
        self._rows = [None if digest is None else index.get(digest) for digest in digests]
        self._folders = {row[0].parent for row in self._rows if row is not None}
        self._marked = float("-inf")  # when they were marked last, by `time.monotonic`
        self._open = lru_cache(maxsize=MAX_OPEN_FILES)(_mapped)

    def read(self, index: Tensor) -> Tensor:
        """(B, h, w, K) float32 that sum to 1."""
        if (now := time.monotonic()) - self._marked > MARK_SECONDS:
            self._marked = now
            for folder in self._folders:
                mark_used(folder, HOLD_SECONDS)
        rows = [self._row(number) for number in index.tolist()]
        classes, probabilities = (
            torch.from_numpy(np.stack([row[name] for row in rows]).astype(kind))
            for name, kind in (("classes", np.int64), ("probabilities", np.float32))
        )
        return all_probabilities(classes, probabilities, self._classes)

    def _row(self, number: int) -> Any:
        if (place := self._rows[number]) is None:
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


def _read_records(path: Path) -> Records | None:
    """The file's records if it is to the bit what was written, else None."""
    try:
        data = path.read_bytes()
        if sha256(data).hexdigest() != path.stem:
            return None
        records: Records = np.load(io.BytesIO(data), allow_pickle=False)
    except (OSError, ValueError):
        return None
    return records if records.dtype.names in (MAP_FIELDS, UNREADABLE_FIELDS) else None


def _index_records(path: Path, records: Records) -> MapIndex:
    has_map = records.dtype.names == MAP_FIELDS
    return {digest.tobytes(): (path, row) if has_map else None for row, digest in enumerate(records["image"])}


def _as_rows(digests: Sequence[Digest]) -> Records:
    """(n, 16) uint8."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def _mapped(path: Path) -> Records:
    return np.load(path, mmap_mode="r", allow_pickle=False)
