"""Standard streams that a command can rely on, whatever it was started with: closed, full, or read by nobody.

Of several processes that torchrun started, the main one prints, and whichever fails first.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitreous.distributed.launcher import global_rank, world_size
from vitreous.errors import MachineError
from vitreous.inputs import reason

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
