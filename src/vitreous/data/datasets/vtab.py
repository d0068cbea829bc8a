"""VTAB-1k: 800 images to train on, 200 to choose by, and all of the test split.

The authors' code (google-research/task_adaptation) takes `train[:800]` and the first 200 of its val split in the order
that TensorFlow Datasets stores the images in, which is a hash of its own keys. That order cannot be had without
TensorFlow, so ours is a hash of the images' names, and the rest is the authors' rule. Who needs their very images
can open a copy of the published lists instead: see `images.read_vtab_lists`. Any other data are cut alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b, sha256

import numpy as np
from numpy.typing import NDArray

from vitreous.data.source import Data, Source
from vitreous.errors import UserError

TRAIN, VAL = 800, 200
SALT = "vtab-1k"


def hash_order(keys: Iterable[str], salt: str) -> NDArray[np.int64]:
    """(n,): the positions of the keys, ordered by 64 bits of BLAKE2b of the salt, a null byte and the key. The same on
    every machine and for ever: where a split has to be drawn, it is cut from this. Of two keys with the same hash, the
    one that comes first stays first."""
    seed = f"{salt}\0".encode()
    hashes = [blake2b(seed + key.encode("utf-8", "surrogateescape"), digest_size=8).digest() for key in keys]
    return np.argsort(np.frombuffer(b"".join(hashes), dtype=">u8"), kind="stable")


@dataclass(frozen=True)
class Vtab1k:
    """The images of one task, and 64 hexadecimal digits that differ if another image was chosen."""

    train: Source
    val: Source
    test: Source
    digest: str


def vtab_1k(data: Data, name: str, train_percent: int | None = None) -> Vtab1k:
    """The task's images: train (800), val (200), test (all). name: what a refusal calls the data. A val split is to
    choose by. Of data that have none: train_percent is how much of the train split is for training, and the rest to
    choose by, where the authors say so (`dataset.Vtab`); else the images after the 800 are."""
    source = data.train
    order = _order(source)
    if "val" in data.splits:
        other = data.splits["val"]
        train, val = source.subset(order[:TRAIN]), other.subset(_order(other)[:VAL])
    else:
        cut = TRAIN if train_percent is None else len(order) * train_percent // 100
        train, val = source.subset(order[:cut][:TRAIN]), source.subset(order[cut:][:VAL])
    if len(train) < TRAIN or len(val) < VAL:
        raise UserError(
            f"{name}: {len(train)} and {len(val)} images to train on and to choose by, and VTAB-1k takes "
            f"{TRAIN} and {VAL}; get the whole dataset."
        )
    return Vtab1k(train, val, data.splits["test"], _digest(train, val))


def _order(source: Source) -> NDArray[np.int64]:
    return hash_order((source.key(index) for index in range(len(source))), SALT)


def _digest(*parts: Source) -> str:
    digest = sha256()
    for source in parts:
        for index, label in enumerate(source.labels.tolist()):
            digest.update(f"{source.key(index)}\0{label}\n".encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()
