"""How many images of a dataset may be unreadable, and what is said where they are more."""

from __future__ import annotations

import math
from collections.abc import Mapping

from vitreous.errors import UserError

LIMIT = 0.01
"""The share of all images that may be; of a few images, one."""
SHOWN = 3


def most_unreadable(images: int, limit: float = LIMIT) -> int:
    """How many images may be unreadable: one always may, unless the limit is 0."""
    return max(1 if limit else 0, math.floor(limit * images))


def check_unreadable(unreadable: Mapping[str, str], images: int, limit: float = LIMIT) -> None:
    """Refuse data of which too many images, or all, cannot be read. unreadable: path to reason."""
    if len(unreadable) <= min(most_unreadable(images, limit), images - 1):
        return
    shown = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in list(unreadable.items())[:SHOWN])
    raise UserError(
        f"{len(unreadable)} of {images} images cannot be read, more than the limit of {limit:.0%} ({shown}); mend "
        "or delete them."
    )
