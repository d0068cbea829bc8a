"""Standard streams that a command can rely on, and how things are shown on them: to a person, and to a program."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.distributed.launcher import global_rank, world_size
from vitreous.errors import MachineError
from vitreous.inputs import reason

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GROUP = "vitreous.distributed.process_group"
"""The module, which needs torch: where a command has not imported it, this process has met no others."""


@contextmanager
def reliable_streams() -> Iterator[None]:
    """Within, what is said on standard error may get lost but never fails, and output that gets lost is an error.

    A stream that was closed would give its number to the next file that is opened, which then gets what is printed.
    """
    for number in range(3):
        _fill(number)
    before = sys.stdout, sys.stderr
    if _is_stream(sys.stdout, sys.__stdout__, 1):
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    if _is_stream(sys.stderr, sys.__stderr__, 2):
        sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr)
    try:
        yield
    finally:
        after, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), before
        for stream in after:
            stream.flush()


@contextmanager
def only_main_prints() -> Iterator[None]:
    """Within, all processes but the main one print nothing."""
    if world_size() == 1:
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # lost connections are reported in a sentence
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        if global_rank() > 0:
            sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            if (group := sys.modules.get(GROUP)) is not None:
                group.leave()


def print_failure(message: str) -> None:
    """Say why this command ends, unless another process does."""
    group = sys.modules.get(GROUP)
    if world_size() == 1:
        print(message, file=sys.stderr)
    elif group.is_first_failure() if group else global_rank() == 0:
        print(message, file=sys.__stderr__, flush=True)


class _Output(io.FileIO):
    """Standard output: where it cannot be written, the command has failed."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            _silence(self.fileno())
            raise
        except OSError as error:
            _silence(self.fileno())
            raise MachineError(f"standard output: cannot be written ({reason(error)}); send it elsewhere.") from error


class _Messages(io.FileIO):
    """Standard error: where nobody can hear, the work goes on."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            _silence(self.fileno())
            return len(data)  # type: ignore[arg-type]


def _fill(number: int) -> None:
    """Open what was closed: to read nothing, to fail at writing, and for standard error to forget."""
    try:
        os.fstat(number)
    except OSError:
        handle = os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
        if handle != number:
            os.dup2(handle, number)
            os.close(handle)


def _silence(number: int) -> None:
    """What is still in a buffer goes nowhere; else it would fail once more when the program ends."""
    handle = os.open(os.devnull, os.O_WRONLY)
    os.dup2(handle, number)
    os.close(handle)


def _is_stream(now: object, own: object, number: int) -> bool:
    """Whether this is the process's own stream, and not what a test or a notebook put in its place."""
    return now is own and (own is None or (isinstance(own, io.TextIOWrapper) and own.fileno() == number))


def _text(raw: io.FileIO, like: object) -> io.TextIOWrapper:
    """Text, written as the stream that it takes the place of would be; that one has nothing left in its buffer."""
    error = raw.fileno() == 2
    if not isinstance(like, io.TextIOWrapper):
        like = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    like.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding,
        errors="backslashreplace" if error else like.errors,
        line_buffering=error or raw.isatty(),
    )


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
    for path, why in unreadable.items():
        print(f"vitreous: left out: {printable(path)}: {why}", file=sys.stderr)


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
