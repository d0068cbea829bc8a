"""How many images of a dataset may be unreadable, and what is said where they are more.

The limit is judged on the whole data: a small random subset of good data may hold more than its share of bad files.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from vitreous.data.source import Source
from vitreous.errors import UserError

LIMIT = 0.01
"""The share of all images that may be; of a few images, one."""
SHOWN = 3


def most_unreadable(images: int, limit: float = LIMIT) -> int:
    """How many images may be unreadable: one always may, unless the limit is 0."""
    return max(1 if limit else 0, math.floor(limit * images))


def check_unreadable(
    unreadable: Mapping[str, str], images: int, limit: float = LIMIT, whole: int | None = None
) -> None:
    """Refuse data of which too many images, or all, cannot be read.

    unreadable: path to reason. whole: how many images the data have that these are a subset of; None for these alone.
    """
    whole = max(images, whole or 0)
    if len(unreadable) <= min(most_unreadable(whole, limit), images - 1):
        return
    shown = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in list(unreadable.items())[:SHOWN])
    of = f" of all {whole:,}" if whole > images else ""
    raise UserError(
        f"{len(unreadable)} of {images} images cannot be read, more than the limit of {limit:.0%}{of} ({shown}); mend "
        "or delete them."
    )


def readable_names(source: Source, unreadable: Container[str]) -> list[str]:
    """The names of the images that could be read, in order."""
    return [name for name in map(source.name, range(len(source))) if name not in unreadable]
