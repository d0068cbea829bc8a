"""`vitreous data list`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from vitreous.cli.terminal import Flag, console, option, print_json, printable, table


def data_list(root: Annotated[str | None, option("DIR")] = None, json: Flag = False) -> None:
    """List the public datasets that `data get` knows, with their classes, splits, size and licence.

    Args:
        root: Where to look for what is on this machine. Default: $VITREOUS_DATA, else ~/.cache/vitreous/data.
        json: Print one JSON list, with files (addresses, sizes, checksums), citations and notes.
    """
    from vitreous.inputs import size_text
    from vitreous.jobs.data_list import list_data

    rows = list_data(root=root)
    if json:
        print_json([asdict(row) for row in rows])
        return
    listed = table("dataset", "here", "classes#", "train#", "val#", "test#", "size#", "VTAB", "licence")
    for row in rows:
        counts = (f"{row.splits[split]:,}" if split in row.splits else "" for split in ("train", "val", "test"))
        size = "" if row.bytes is None else size_text(row.bytes)
        name = row.name + ("*" if row.by_hand else "")
        here = "yes" if row.here else "damaged" if row.damaged else ""
        listed.add_row(name, here, str(row.classes), *counts, size, row.vtab or "", row.licence)
    page = console()
    page.print(listed)
    page.print("\n* Some files only a person can get; `vitreous data get NAME` says which, and where to put them.")
    for row in rows:
        if row.damaged:
            page.print(printable(f"{row.name}: {row.damaged}"))
