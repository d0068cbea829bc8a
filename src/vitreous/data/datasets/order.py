"""An order of images that depends on nothing but their names: where a split has to be drawn, it is cut from this."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def hash_order(keys: Iterable[str], salt: str) -> NDArray[np.int64]:
    """(n,): the places of the keys, ordered by 64 bits of BLAKE2b of the salt, a null byte and the key.

    The same on every machine and for ever. Of two keys with the same hash, the one that comes first stays first.
    """
    seed = f"{salt}\0".encode()
    draws = [blake2b(seed + key.encode("utf-8", "surrogateescape"), digest_size=8).digest() for key in keys]
    return np.argsort(np.frombuffer(b"".join(draws), dtype=">u8"), kind="stable")
