"""How long a model takes to look at an image of a task."""

from __future__ import annotations

import time
from collections.abc import Callable

from vitreous.data.source import Source
from vitreous.data.subset import random_subset
from vitreous.studies.transfer.tasks import SEED

SOME = 32
"""Images at once."""
MOST, TELLING = 256, 1.5
"""Images and seconds, at most, that tell."""


def seconds_per_look(look: Callable[[Source], object], source: Source) -> float:
    """Seconds for an image, decoding included; the first images warm up."""
    some = random_subset(source, SEED, MOST)
    parts = [some.subset(range(start, min(start + SOME, len(some)))) for start in range(0, len(some), SOME)]
    look(parts[0])
    began, looked = time.perf_counter(), 0
    for part in parts[1:] or parts:
        look(part)
        looked += len(part)
        if time.perf_counter() - began > TELLING:
            break
    return (time.perf_counter() - began) / looked
