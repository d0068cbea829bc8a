"""What the verbs share: how things are shown to a person, and to a program."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class _Stderr(logging.Handler):
    """Writes what a room logs as a line on standard error, as it is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(f"vitreous: {printable(record.getMessage())}", file=sys.stderr)


def say_logs() -> None:
    """Show on standard error what is logged under "vitreous": what was recognised in weights, and what was assumed."""
    log = logging.getLogger("vitreous")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, _Stderr) for handler in log.handlers):
        log.addHandler(_Stderr())


def say_left_out(unreadable: Mapping[str, str]) -> None:
    """Name on standard error each image that could not be read, and why."""
    for path, reason in unreadable.items():
        print(f"vitreous: left out: {printable(path)}: {reason}", file=sys.stderr)


def print_json(value: Any, indent: int | None = 2) -> None:
    """One JSON value: all in ASCII, and never the NaN that other languages refuse."""
    import json

    print(json.dumps(value, indent=indent, allow_nan=False), flush=indent is None)


def console() -> Console:
    """Standard output, 120 columns wide where it is not a terminal; brackets in names are brackets."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich itself would end the process with status 1

    return Output(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False, emoji=False)


def table(*columns: str) -> Table:
    """An empty table without lines; the first column to the left and the others, if they end in "#", to the right."""
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name.removesuffix("#"), justify="right" if name.endswith("#") else "left", overflow="fold")
    return made


def printable(text: str) -> str:
    """Text that any terminal takes: a file's name may hold bytes that are no text, and line ends."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)
