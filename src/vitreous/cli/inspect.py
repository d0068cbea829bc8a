"""`vitreous inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.terminal import Flag, console, option, print_json, printable, progress, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from vitreous.data.health import Duplicates, HealthReport

SHOWN = 10


def inspect(data: Annotated[str, tyro.conf.Positional, option("DATA")], json: Flag = False) -> None:
    """Check data before training: counts, sizes, unreadable files, duplicates, leaks between splits.

    Args:
        data: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin.
        json: Print one JSON object with everything.
    """
    from vitreous.jobs.inspect import inspect as look

    with progress("reading") as bar:
        found = look(data, progress=bar)
    if json:
        print_json(found.to_json())
        return
    page = console()
    _show_splits(page, found)
    _show_images(page, found)
    _show_trouble(page, found)


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
    for label in found.classes[: 4 * SHOWN]:
        classes.add_row(printable(label), *(f"{split.counts.get(label, 0):,}" for split in found.splits.values()))
    page.print(classes)
    if len(found.classes) > 4 * SHOWN:
        page.print(f"... and {len(found.classes) - 4 * SHOWN} more; --json lists all")
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
    for line in lines[:SHOWN]:
        page.print(f"  {line}", soft_wrap=True)
    if len(lines) > SHOWN:
        page.print(f"  ... and {len(lines) - SHOWN:,} more; --json lists all")
