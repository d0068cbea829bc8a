"""`vitreous inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import console, printable, table
from vitreous.cli.verb import Verb, verb

if TYPE_CHECKING:
    from rich.console import Console

    from vitreous.data.health import Duplicates, HealthReport
    from vitreous.data.source import Data

MAX_LINES = 10
"""Shown of a list; --json has all."""


@dataclass(frozen=True)
class Inspect(Verb["HealthReport"]):
    """Check data before training: counts, sizes, unreadable files, duplicates, leaks between splits."""

    data: str | Path | Data
    """DATA: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin."""
    json_help: ClassVar[str] = "Print one JSON object with everything."

    def run(self) -> HealthReport:
        """Read every image once."""
        from functools import partial

        from vitreous.data.health import inspect_data
        from vitreous.data.opening import open_dataset

        return inspect_data(open_dataset(self.data), partial(self.told.progress, "reading"))

    def show(self, result: HealthReport) -> None:
        """Counts, sizes, and what is wrong."""
        page = console()
        _show_splits(page, result)
        _show_images(page, result)
        _show_trouble(page, result)


def _show_splits(page: Console, found: HealthReport) -> None:
    page.print(f"{found.images:,} images of {len(found.classes)} classes")
    page.print()
    splits = table("split", "images#", "classes#", "smallest#", "largest#", "imbalance#")
    for name, split in found.splits.items():
        some = [count for count in split.counts.values() if count] or [0]
        sizes = (f"{split.images:,}", f"{len(some):,}", f"{min(some):,}", f"{max(some):,}")
        splits.add_row(name, *sizes, f"{split.imbalance:.1f}:1")
    page.print(splits)
    page.print()
    classes = table("class", *(f"{name}#" for name in found.splits))
    for label in found.classes[: 4 * MAX_LINES]:
        classes.add_row(printable(label), *(f"{split.counts.get(label, 0):,}" for split in found.splits.values()))
    page.print(classes)
    if len(found.classes) > 4 * MAX_LINES:
        page.print(f"... and {len(found.classes) - 4 * MAX_LINES} more; --json lists all")
    page.print()


def _show_images(page: Console, found: HealthReport) -> None:
    for name, sizes in (("width", found.width), ("height", found.height)):
        if sizes:
            page.print(f"{name:8}{sizes['min']:.0f} to {sizes['max']:.0f} pixels, median {sizes['median']:.0f}")
    for name, counts in (("modes", found.modes), ("formats", found.formats)):
        if counts:
            page.print(f"{name:8}{', '.join(f'{kind} {count:,}' for kind, count in counts.items())}")


def _show_trouble(page: Console, found: HealthReport) -> None:
    lines = [f"{printable(path)}: {reason}" for path, reason in found.unreadable.items()]
    _list(page, "cannot be read", lines)
    leaks = found.leaks
    _list(page, "in more than one split, which makes results look better than they are", _groups(leaks, "splits"))
    _list(page, "the same image in more than one class", _groups(found.contradictions, "labels"))
    _list(page, "exact duplicates", _groups(found.exact_duplicates))
    _list(page, "near duplicates", _groups(found.near_duplicates))
    _list(page, "notes", [printable(note) for note in found.notes])
    if not (found.unreadable or found.exact_duplicates or found.near_duplicates):
        page.print("\nAll images can be read, and there are no duplicates.")


def _groups(groups: Sequence[Duplicates], told: str | None = None) -> list[str]:
    lines = []
    for group in groups:
        why = f" ({', '.join(map(printable, getattr(group, told)))})" if told else ""
        lines.append(" = ".join(printable(name) for name in group.names) + why)
    return lines


def _list(page: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    page.print(f"\n{len(lines):,} {title}:")
    for line in lines[:MAX_LINES]:
        page.print(f"  {line}", soft_wrap=True)
    if len(lines) > MAX_LINES:
        page.print(f"  ... and {len(lines) - MAX_LINES:,} more; --json lists all")


inspect = verb(Inspect)
