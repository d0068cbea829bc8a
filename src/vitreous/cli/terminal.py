"""The output of a command: standard streams that cannot fail silently, tables, JSON, and progress.

Progress is a live line on a terminal, else a plain line now and then.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.callbacks import Callbacks, Event, NamedProgress
from vitreous.distributed.launcher import global_rank, world_size
from vitreous.errors import MachineError
from vitreous.inputs import format_bytes, reason
from vitreous.interrupt import received_signal

if TYPE_CHECKING:
    from rich.table import Table

GROUP = "vitreous.distributed.process_group"  # needs torch; if it is not imported, there is no process group
SHOWN_METRICS = {"accuracy": "val accuracy", "knn": "k-NN", "information": "information"}
"""Names in the progress line, by metric."""


@contextmanager
def reliable_streams() -> Iterator[None]:
    """Within, a failing write to standard error is ignored, and one to standard output is an error.

    A closed stream is opened again, or its number would go to the next file that is opened, which then gets the output.
    """
    for number in range(3):  # reading gives nothing, writing output fails, writing errors is ignored
        try:
            os.fstat(number)
        except OSError:
            _open_null(number, os.O_WRONLY if number == 2 else os.O_RDONLY)
    before = sys.stdout, sys.stderr
    if _is_stream(sys.stdout, sys.__stdout__, 1):
        sys.stdout = _text(_Stdout(1, "w", closefd=False), sys.stdout)
    if _is_stream(sys.stderr, sys.__stderr__, 2):
        sys.stderr = _text(_Stderr(2, "w", closefd=False), sys.stderr)
    try:
        yield
    finally:
        after, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), before
        for stream in after:
            stream.flush()


@contextmanager
def only_main_process_prints() -> Iterator[None]:
    """Within, only the main process prints."""
    if world_size() == 1:
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # we report lost connections ourselves
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
    """Print why this command ends, unless another process does."""
    group = sys.modules.get(GROUP)
    if world_size() == 1:
        print(message, file=sys.stderr)
    elif group.is_first_failure() if group else global_rank() == 0:
        print(message, file=sys.__stderr__, flush=True)


class _Stdout(io.FileIO):
    """Standard output: a write that fails ends the command."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _open_null(self.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise MachineError(f"standard output: cannot be written ({reason(error)}); send it elsewhere.") from error


class _Stderr(io.FileIO):
    """Standard error: writes that fail are ignored."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            _open_null(self.fileno())
            return len(data)


def _open_null(number: int, mode: int = os.O_WRONLY) -> None:
    """Redirect this stream to the null device, so that its buffer does not fail again at exit."""
    handle = os.open(os.devnull, mode)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)


def _is_stream(now: object, own: object, number: int) -> bool:
    """Whether this is the process's own stream, not a replacement by a test or a notebook."""
    return now is own and (own is None or (isinstance(own, io.TextIOWrapper) and own.fileno() == number))


def _text(raw: io.FileIO, like: object) -> io.TextIOWrapper:
    """A text stream with the encoding and buffering of the stream that it replaces, which is flushed."""
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


class _LogToStderr(logging.Handler):
    """Writes log records to the present `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"vitreous: {printable(record.getMessage())}", file=sys.stderr)


def log_to_stderr() -> None:
    """Show the log "vitreous" on standard error."""
    log = logging.getLogger("vitreous")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, _LogToStderr) for handler in log.handlers):
        log.addHandler(_LogToStderr())


def print_skipped(unreadable: Mapping[str, str]) -> None:
    """Name on standard error each image that could not be read, and why."""
    for path, why in unreadable.items():
        print(f"vitreous: left out: {printable(path)}: {why}", file=sys.stderr)


def print_json(value: Any, indent: int | None = 2) -> None:
    """One JSON value: all in ASCII, and never the NaN that other languages refuse."""
    import json

    print(json.dumps(value, indent=indent, allow_nan=False), flush=indent is None)


def print_wide(*parts: str | Table) -> None:
    """Print lines and tables, 120 columns wide where standard output is no terminal; brackets are brackets."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich itself would end the process with status 1

    output = Output(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False, emoji=False)
    for part in parts:
        output.print(part)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without lines; columns whose name ends in "#" are to the right. Without any name there is no header."""
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False, show_header=any(columns))
    for name in columns:
        made.add_column(name.removesuffix("#"), justify="right" if name.endswith("#") else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def printable(text: str) -> str:
    """Text with escapes for characters that the terminal cannot print, such as line ends in a file's name."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)


@contextmanager
def shown_progress(*, bar: bool = True, started: float | None = None) -> Iterator[Callbacks]:
    """Callbacks that write to standard error, and that stop a training at a signal.

    bar: whether to draw a live bar; not while lines of output go to the same terminal. started: see `Callbacks`.
    """

    def should_stop() -> bool:
        return received_signal() is not None

    live = _live_callbacks() if sys.stderr.isatty() or "ipykernel" in sys.modules else _plain_callbacks()
    with live as (message, step, progress, download):
        if bar:
            yield Callbacks(message, step, progress, download, should_stop, started)
        else:
            yield Callbacks(message, should_stop=should_stop, started=started)


ProgressFunctions = tuple[Callable[[str], None], Callable[[Event], None], NamedProgress, NamedProgress]


@contextmanager
def _plain_callbacks() -> Iterator[ProgressFunctions]:
    metrics, reminder = MetricsText(), LogInterval()

    def message(text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    def step(event: Event) -> None:
        text = metrics.text(event)
        if reminder.due() or event.step == event.steps:
            message(f"step {event.step:,} of {event.steps:,}  {text}{reminder.left(event.step, event.steps, 'steps')}")

    def counted(number: Callable[[int], str]) -> NamedProgress:
        def progress(what: str, done: int, total: int) -> None:
            if done < total and reminder.due():
                message(f"{what}: {number(done)} of {number(total)}{reminder.left(done, total, what)}")

        return progress

    yield message, step, counted("{:,}".format), counted(format_bytes)


@contextmanager
def _live_callbacks() -> Iterator[ProgressFunctions]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    metrics = MetricsText()
    columns = (BarColumn(), TextColumn("{task.fields[count]}"), TextColumn("{task.description}"), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task, shown, ended = bar.add_task("", total=None, visible=False, count=""), "", False

    def counted(number: Callable[[int], str]) -> NamedProgress:
        def progress(what: str, done: int, total: int) -> None:
            nonlocal shown
            if what != shown:
                shown = what
                bar.reset(task)
            count = f"{number(done)}/{number(total)}"
            bar.update(task, completed=done, total=total, description=what, count=count, visible=done < total)
            if not ended:  # an iterator may outlive this function
                bar.start()  # only now: a command without progress, such as a server, redraws nothing

        return progress

    count = counted("{:,}".format)

    def step(event: Event) -> None:
        count("steps", event.step, event.steps)
        bar.update(task, description=metrics.text(event), visible=True)

    def message(text: str) -> None:
        bar.console.print(printable(text), highlight=False, markup=False)

    try:
        yield message, step, count, counted(format_bytes)
    finally:
        ended = True
        if bar.live.is_started:
            bar.stop()


def process_started() -> float:
    """When this process was started, by `time.monotonic`; if it is unknown (not Linux), from its processor time."""
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, AttributeError, IndexError, ValueError):  # not Linux
        return time.monotonic() - time.process_time()


class MetricsText:
    """The metrics of a training's progress line; the loss is a moving average."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def text(self, event: Event) -> str:
        seen = self._seen
        seen["loss"] = 0.9 * seen.get("loss", event.record["loss"]) + 0.1 * event.record["loss"]
        if "entropy" in event.record:
            seen["teacher entropy"] = event.record["entropy"]
        for name, value in (event.evaluation or {}).items():
            if name in SHOWN_METRICS:
                seen[SHOWN_METRICS[name]] = value
        metrics = "  ".join(f"{name} {value:.3f}" for name, value in seen.items())
        rate = event.images_per_second
        speed = f"  {rate:.{0 if rate >= 10 else 1 if rate >= 1 else 2}f} images/s" if rate else ""
        text = f"epoch {event.epoch + 1}  {metrics}{speed}"
        return f"COLLAPSED, see above  {text}" if "collapsed" in event.record else text


class LogInterval:
    """When to print a plain line of progress: after 10 s, 30 s and 70 s, then once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause, self._next = 10.0, clock() + 10.0
        self._last = clock(), 0, ""

    def due(self) -> bool:
        """Whether to print now; starts the next interval."""
        if self._clock() < self._next:
            return False
        self._pause = min(60.0, 2 * self._pause)
        self._next = self._clock() + self._pause
        return True

    def left(self, done: int, total: int, of: str = "") -> str:
        """The time left at the speed since the last call; empty if unknown, as after a change of the task (`of`)."""
        (then, before, kind), self._last = self._last, (self._clock(), done, of)
        if done <= before or kind != of:
            return ""
        seconds = (self._clock() - then) / (done - before) * (total - done)
        return f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"
