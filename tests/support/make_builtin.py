"""Make the built-in images from Debian's package dataset-fashion-mnist: python tests/support/make_builtin.py [SOURCE]

Of each class the first 250 training and the first 60 test images, in the order of the original.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

SOURCE = Path("/usr/share/datasets/fashion-mnist")
TARGET = Path(__file__).parents[2] / "src" / "vitreous" / "data" / "builtin"
COUNTS = {"train": 250, "t10k": 60}


def select(source: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) and labels (n,) of one part."""
    labels = np.frombuffer(gzip.decompress((source / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
    images = np.frombuffer(gzip.decompress((source / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
    rows = np.sort(np.concatenate([np.flatnonzero(labels == label)[: COUNTS[part]] for label in range(10)]))
    return images.reshape(-1, 28, 28)[rows], labels[rows]


def write_idx(path: Path, array: np.ndarray) -> None:
    """The array as idx, packed, with no date in it so that the bytes are always the same."""
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.tobytes(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    origin = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    for part in COUNTS:
        images, labels = select(origin, part)
        write_idx(TARGET / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(TARGET / f"{part}-labels-idx1-ubyte.gz", labels)
