"""What the verbs share: how things are shown to a person, and to a program."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
"""An option that is either there or not."""


def option(metavar: str, *, name: str | None = None) -> Any:
    """How an argument is called in the help, and as an option if not by its parameter's name; None is no default."""

    def default(shown: str) -> str:
        return f"(default: {shown})" if shown not in ("", "None") else ""

    return tyro.conf.arg(name=name, metavar=metavar, help_behavior_hint=default)


def whole_numbers(name: str, text: str) -> list[int]:
    """The numbers of an option such as 1,5,10."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--{name} {text}: give whole numbers separated by commas, such as 1,5,10.") from None


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


class Reminder:
    """Says when a plain line is due that tells how far it is: after 10 s, 30 s and 70 s, then once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause, self._next = 10.0, clock() + 10.0
        self._last = clock(), 0, ""

    def due(self) -> bool:
        """Whether a line is due now; then none is for a while."""
        if self._clock() < self._next:
            return False
        self._pause = min(60.0, 2 * self._pause)
        self._next = self._clock() + self._pause
        return True

    def left(self, done: int, total: int, of: str = "") -> str:
        """How long the rest will take, judged by what was done since this was asked before; empty where unknown.

        of: what is counted; where that was something else before, nothing is known yet.
        """
        (then, before, kind), self._last = self._last, (self._clock(), done, of)
        if done <= before or kind != of:
            return ""
        seconds = (self._clock() - then) / (done - before) * (total - done)
        return f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"


@contextmanager
def progress(what: str, *, beside_output: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A function to call with images done and in all, which says so on standard error; None if nobody needs it.

    On a terminal that is a bar, elsewhere a plain line now and then.
    beside_output: lines are printed meanwhile, so there is a bar only if they go elsewhere than to the terminal.
    """
    if beside_output and sys.stdout.isatty():
        yield None
        return
    if not sys.stderr.isatty():
        reminder = Reminder()

        def remind(done: int, total: int) -> None:
            if done < total and reminder.due():
                print(f"{what}: {done:,} of {total:,}{reminder.left(done, total)}", file=sys.stderr, flush=True)

        yield remind
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def byte_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with what is being done and with bytes done and in all, which says so on standard error."""
    if not sys.stderr.isatty():
        from vitreous.inputs import size_text

        reminder = Reminder()

        def remind(what: str, done: int, total: int) -> None:
            if done < total and reminder.due():
                left = reminder.left(done, total, what)
                print(f"{what}: {size_text(done)} of {size_text(total)}{left}", file=sys.stderr, flush=True)

        yield remind
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task, shown = bar.add_task("", total=None), ""

        def show(what: str, done: int, total: int) -> None:
            nonlocal shown
            if what != shown:
                shown = what
                bar.reset(task, description=what)
            bar.update(task, completed=done, total=total)

        yield show
