"""`vitreous --help`: the verbs by task, in the look of tyro's help but without the time that importing tyro takes."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping

OPTIONS = {"-h, --help": "Show this help message and exit.", "-V, --version": "Show the version and exit."}


def overview(groups: Mapping[str, Mapping[str, str]], word: str = "") -> str:
    """What `vitreous --help` prints: a box for each group, a line or two for each verb.

    word: the first word of all verbs in it, for `vitreous data --help`.
    """
    command = f"vitreous {word}" if word else "vitreous"
    width = max(40, shutil.get_terminal_size().columns)
    options = {name: line for name, line in OPTIONS.items() if not (word and "version" in name)}
    boxes = {"options": options, **groups}
    column = max(len(name) for rows in boxes.values() for name in rows) + 2
    lines = [f"usage: {command} COMMAND ...", "", "A Vision Transformer you can see through.", ""]
    for title, rows in boxes.items():
        lines += _box(title, list(_rows(rows, column, width - 4)), width)
    return "\n".join([*lines, "", f"{command} COMMAND --help shows the options of a command."])


def _rows(rows: Mapping[str, str], column: int, width: int) -> Iterable[str]:
    for name, text in rows.items():
        first, *more = textwrap.wrap(text, max(10, width - column), break_on_hyphens=False)
        yield f"{name:{column}}{first}"
        yield from (" " * column + line for line in more)


def _box(title: str, lines: list[str], width: int) -> list[str]:
    if (sys.stdout.encoding or "").lower() != "utf-8":
        return [f" {title}", f" {'-' * (width - 2)}", *(f"  {line}" for line in lines), ""]
    top = f"╭─ {title} {'─' * (width - 5 - len(title))}╮"
    return [top, *(f"│ {line:{width - 4}} │" for line in lines), f"╰{'─' * (width - 2)}╯"]
