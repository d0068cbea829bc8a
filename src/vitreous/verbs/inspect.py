"""`vitreous inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import console, printable, table
from vitreous.cli.verb import Verb, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from vitreous.data.health import Duplicates, HealthReport
    from vitreous.data.source import Data

MAX_CLASSES, MAX_LINES = 40, 10
"""Rows and lines that are printed; --json has all."""


@dataclass(frozen=True)
class Inspect(Verb["HealthReport"]):
    """Check data before training: counts, sizes, unreadable files, duplicates, leaks between splits."""

    data: str | Path | Data
    """DATA: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin."""
    json_help: ClassVar[str] = "Print one JSON object with everything."

    def run(self) -> HealthReport:
        """Read every image once and report."""
        from vitreous.data.health import inspect_data
        from vitreous.data.opening import open_dataset

        return inspect_data(open_dataset(self.data), partial(self.told.progress, "reading"))

    def show(self, result: HealthReport) -> None:
        """Tables of splits and classes, sizes and formats, then a list of each kind of trouble."""
        page = console()
        _show_splits(page, result)
        for name, sizes in (("width", result.width), ("height", result.height)):
            if sizes:
                page.print(f"{name:8}{sizes['min']:.0f} to {sizes['max']:.0f} pixels, median {sizes['median']:.0f}")
        for name, counts in (("modes", result.modes), ("formats", result.formats)):
            if counts:
                page.print(f"{name:8}{', '.join(f'{kind} {count:,}' for kind, count in counts.items())}")
        trouble = {
            "cannot be read": [f"{printable(path)}: {reason}" for path, reason in result.unreadable.items()],
            "in more than one split, which makes results look better than they are": _lines(result.leaks, "splits"),
            "the same image in more than one class": _lines(result.contradictions, "labels"),
            "exact duplicates": _lines(result.exact_duplicates),
            "near duplicates": _lines(result.near_duplicates),
            "notes": [printable(note) for note in result.notes],
        }
        for title, lines in trouble.items():
            if lines:
                page.print(f"\n{len(lines):,} {title}:")
            for line in lines[:MAX_LINES]:
                page.print(f"  {line}", soft_wrap=True)
            if len(lines) > MAX_LINES:
                page.print(f"  ... and {len(lines) - MAX_LINES:,} more; --json lists all")
        if not (result.unreadable or result.exact_duplicates or result.near_duplicates):
            page.print("\nAll images can be read, and there are no duplicates.")


def _show_splits(page: Console, found: HealthReport) -> None:
    page.print(f"{found.images:,} images of {len(found.classes)} classes\n")
    splits = table("split", "images#", "classes#", "smallest#", "largest#", "imbalance#")
    for name, split in found.splits.items():
        some = [count for count in split.counts.values() if count] or [0]
        sizes = (f"{split.images:,}", f"{len(some):,}", f"{min(some):,}", f"{max(some):,}")
        splits.add_row(name, *sizes, f"{split.imbalance:.1f}:1")
    page.print(splits)
    page.print()
    classes = table("class", *(f"{name}#" for name in found.splits))
    for label in found.classes[:MAX_CLASSES]:
        classes.add_row(printable(label), *(f"{split.counts.get(label, 0):,}" for split in found.splits.values()))
    page.print(classes)
    if len(found.classes) > MAX_CLASSES:
        page.print(f"... and {len(found.classes) - MAX_CLASSES} more; --json lists all")
    page.print()


def _lines(groups: Sequence[Duplicates], shown: str = "") -> list[str]:
    """One line per group: its images, and in brackets the splits or labels that they are in."""
    lines = []
    for group in groups:
        places = f" ({', '.join(map(printable, getattr(group, shown)))})" if shown else ""
        lines.append(" = ".join(map(printable, group.names)) + places)
    return lines


inspect = verb(Inspect)
