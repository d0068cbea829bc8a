"""Images in shards as a source: an image is read by one read of its place, so any order and any process will do.

Only the order of an epoch differs from other sources: shards are shuffled, some are read side by side, and images
change places within a buffer, so that reading stays nearly sequential.
"""

from __future__ import annotations

from bisect import bisect_right
from hashlib import sha256
from zlib import crc32

import numpy as np
from PIL import Image

from vitreous.data.decode import Header, ImageError, open_image, read_header
from vitreous.data.rng import ORDER, Index, permutation, uniforms
from vitreous.data.shards.index import ShardIndex
from vitreous.data.shards.prefetch import Piece, fetch_ahead, read_piece
from vitreous.data.shards.reading import read_range
from vitreous.data.shards.tar import BLOCK, parse_header
from vitreous.data.source import Labels, Source
from vitreous.errors import UserError

SHUFFLE_BUFFER = 4096  # images among which an image changes places; data of no more are shuffled as a whole
INTERLEAVED_SHARDS = 16  # shards that are read side by side, so that what was packed class by class is mixed
CHUNK_BYTES = 2**24


class ShardSource(Source):
    """Images in tar files, here or far away."""

    def __init__(self, index: ShardIndex, rows: Index, labels: Labels, classes: tuple[str, ...]) -> None:
        """rows (n,): which images of the index; labels: (n,)."""
        self.index, self.labels, self.classes = index, labels, classes
        self._rows, self._starts = rows, index.starts
        self._begins = self._starts.tolist()  # of one image, NumPy's search takes longer than to read it

    @property
    def total(self) -> int:
        return len(self.index.rows.length)

    def name(self, index: int) -> str:
        return f"{self.index.urls[self._shard(index)]}#{self.key(index)}"

    def key(self, index: int) -> str:
        """As the image was called when it was packed."""
        return self.index.rows.names[int(self._rows[index])]

    def read(self, index: int, *, channels: int = 3, at_least: int | None = None) -> Image.Image:
        return open_image(self.content(index), channels=channels, at_least=at_least, name=self.name(index))

    def header(self, index: int) -> Header:
        return read_header(self.content(index), name=self.name(index))

    def content(self, index: int) -> bytes:
        """Its bytes, found to be those that the index is of; raises `ImageError` where the shard is damaged."""
        rows, piece = self.index.rows, self._piece(index)
        block = read_piece(piece)
        try:
            _, _, size = parse_header(piece.url, piece.start, block[:BLOCK])
        except UserError as error:
            raise ImageError(self.name(index), str(error).removeprefix(f"{piece.url}: ")) from None
        content, offset, length = block[BLOCK:], piece.start + BLOCK, piece.length - BLOCK
        if size != length or len(content) != length:
            why = (
                f"the shard is cut short, or not the one that was indexed, at byte {offset:,}; restore it from a copy."
            )
            raise ImageError(self.name(index), why)
        if rows.crc is not None and crc32(content) != int(rows.crc[self._rows[index]]):
            why = f"damaged: the {length:,} bytes from byte {offset:,} of the shard on are not those that were packed;"
            raise ImageError(self.name(index), f"{why} restore the shard from a copy.")
        return content

    def size(self, index: int) -> int:
        return int(self.index.rows.length[int(self._rows[index])])

    @property
    def has_own_order(self) -> bool:
        return True

    def order(self, seed: int, epoch: int) -> Index:
        """Shards in a random order, some side by side, each from its start to its end, but for the buffer."""
        count = len(self)
        if count <= SHUFFLE_BUFFER:
            return permutation(seed, epoch, count)
        by_place = np.argsort(self._rows, kind="stable")
        shard = np.searchsorted(self._starts, self._rows[by_place], side="right") - 1
        counts = np.bincount(shard, minlength=len(self.index.shards))
        first = np.cumsum(counts) - counts
        turn = permutation(seed, epoch, len(counts))
        begins = np.empty(len(counts), dtype=np.int64)
        begins[turn] = np.cumsum(counts[turn]) - counts[turn]
        jitter = uniforms(seed, epoch, np.arange(count), 1, view=ORDER)[:, 0]
        # A shard that is read beside others takes as many times as long. What would end after the epoch comes at its
        # start, so that as many are side by side at any time.
        together = min(INTERLEAVED_SHARDS, int((counts > 0).sum()))
        time = begins[shard] + together * (np.arange(count) - first[shard]) + SHUFFLE_BUFFER * jitter
        return np.asarray(by_place[np.argsort(time % count, kind="stable")], dtype=np.int64)

    def expect(self, indices: Index, keep_pending: bool = False) -> None:
        """Fetch these from afar, several at once, for whoever reads them next; what lies here needs no such thing."""
        fetch_ahead(map(self._piece, indices.tolist()), keep_pending)

    def damage(self) -> dict[str, str]:
        """Of each shard whose SHA-256 is not that of the index, what is wrong with it."""
        found = {}
        for number in np.unique(np.searchsorted(self._starts, self._rows, side="right") - 1).tolist():
            url, shard = self.index.urls[number], self.index.shards[number]
            if shard.sha256 is None:
                continue
            digest = sha256()
            for start in range(0, shard.bytes, CHUNK_BYTES):
                digest.update(read_range(url, start, min(CHUNK_BYTES, shard.bytes - start), shard.bytes))
            if digest.hexdigest() != shard.sha256:
                found[url] = "damaged or changed, its SHA-256 is not the one in its index; restore it from a copy."
        return found

    def _shard(self, index: int) -> int:
        return bisect_right(self._begins, int(self._rows[index])) - 1

    def _piece(self, index: int) -> Piece:
        row, shard = int(self._rows[index]), self._shard(index)
        start, length = int(self.index.rows.offset[row]) - BLOCK, int(self.index.rows.length[row])
        return Piece(self.index.urls[shard], start, BLOCK + length, self.index.shards[shard].bytes)
