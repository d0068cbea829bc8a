"""What a person sees while something is computed: a live line on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitreous.callbacks import Callbacks, Event
from vitreous.cli.terminal import printable
from vitreous.inputs import size_text
from vitreous.interrupt import signal_heard

SHOWN_METRICS = {"accuracy": "val accuracy", "knn": "k-NN", "information": "information"}
"""Metrics of an evaluation that the progress line shows, and their names there."""


@contextmanager
def shown_progress(*, bar: bool = True, started: float | None = None) -> Iterator[Callbacks]:
    """Callbacks that write to standard error, and that stop a training at a signal.

    bar: whether a live bar may be drawn; it may not while lines of output go to the same terminal.
    started: when the person began to wait.
    """
    live = _live_callbacks() if sys.stderr.isatty() or "ipykernel" in sys.modules else _plain_callbacks()
    with live as shown:
        if not bar:
            shown = Callbacks(message=shown.message)
        yield Callbacks(
            message=shown.message,
            step=shown.step,
            progress=shown.progress,
            download=shown.download,
            should_stop=lambda: signal_heard() is not None,
            started=started,
        )


@contextmanager
def _plain_callbacks() -> Iterator[Callbacks]:
    metrics, reminder = MetricsText(), Reminder()

    def message(text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    def step(event: Event) -> None:
        text = metrics.text(event)
        if reminder.due():
            message(f"step {event.step:,} of {event.steps:,}  {text}{reminder.left(event.step, event.steps, 'steps')}")

    def counted(number: Callable[[int], str]) -> Callable[[str, int, int], None]:
        def progress(what: str, done: int, total: int) -> None:
            if done < total and reminder.due():
                message(f"{what}: {number(done)} of {number(total)}{reminder.left(done, total, what)}")

        return progress

    yield Callbacks(message, step, counted(lambda count: f"{count:,}"), counted(size_text))


@contextmanager
def _live_callbacks() -> Iterator[Callbacks]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    metrics = MetricsText()
    columns = (BarColumn(), TextColumn("{task.fields[count]}"), TextColumn("{task.description}"), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task, shown, ended = bar.add_task("", total=None, visible=False, count=""), "", False

    def counted(number: Callable[[int], str]) -> Callable[[str, int, int], None]:
        def progress(what: str, done: int, total: int) -> None:
            nonlocal shown
            if what != shown:
                shown = what
                bar.reset(task)
            count = f"{number(done)}/{number(total)}"
            bar.update(task, completed=done, total=total, description=what, count=count, visible=done < total)
            if not ended:  # an iterator may outlive this function
                bar.start()  # only now, so that a command without progress, such as a server, redraws nothing

        return progress

    count = counted(lambda number: f"{number:,}")

    def step(event: Event) -> None:
        count("steps", event.step, event.steps)
        bar.update(task, description=metrics.text(event), visible=True)

    def message(text: str) -> None:
        bar.console.print(printable(text), highlight=False, markup=False)

    try:
        yield Callbacks(message, step, count, counted(size_text))
    finally:
        ended = True
        if bar.live.is_started:
            bar.stop()


def process_started() -> float:
    """When this process was started, by `time.monotonic`; where the system does not tell, when Python was ready."""
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, AttributeError, IndexError, ValueError):  # not Linux
        return time.monotonic() - time.process_time()


class MetricsText:
    """The numbers of a training's progress line; the loss is a moving average."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def text(self, event: Event) -> str:
        """What to show after this step."""
        seen = self._seen
        seen["loss"] = 0.9 * seen.get("loss", event.record["loss"]) + 0.1 * event.record["loss"]
        if "entropy" in event.record:
            seen["teacher entropy"] = event.record["entropy"]
        for name, value in (event.evaluation or {}).items():
            if name in SHOWN_METRICS:
                seen[SHOWN_METRICS[name]] = value
        metrics = "  ".join(f"{name} {value:.3f}" for name, value in seen.items())
        text = f"epoch {event.epoch + 1}  {metrics}  {event.images_per_second:.0f} images/s"
        return f"COLLAPSED, see above  {text}" if "collapsed" in event.record else text


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
