"""`vitreous inspect`: what is in data, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitreous.arguments import checked
from vitreous.data.health import HealthReport, inspect_data
from vitreous.data.source import Data
from vitreous.inference.opening import open_dataset


@checked
def inspect(data: str | Path | Data, *, progress: Callable[[int, int], None] | None = None) -> HealthReport:
    """Read every image once and report counts, sizes, unreadable files, duplicates and leaks.

    progress: called with images done and images in all.
    """
    return inspect_data(open_dataset(data), progress)
