"""What a person sees of a training while it runs and when it has ended, and how it is stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vitreous import cli
from vitreous.cli.terminal import Reminder, print_json, printable
from vitreous.interrupt import Interrupted, signal_heard

if TYPE_CHECKING:
    from vitreous.callbacks import Callbacks, Event
    from vitreous.studies.self_training.folder import SelfTrainResult
    from vitreous.training.result import FitResult, PretrainResult

    Ended = FitResult | PretrainResult | SelfTrainResult

SHOWN = {"accuracy": "val accuracy", "knn": "k-NN", "information": "information"}
"""Metrics of an evaluation that the progress line shows, and what they are called there."""


@contextmanager
def listening(*, steps: bool = True) -> Iterator[Callbacks]:
    """Messages on stderr, and how far it is: on a terminal a live line, elsewhere a plain one now and then.

    steps: whether such plain lines tell of single steps, too.
    A signal stops between two steps, and all is saved; elsewhere it ends the command, which may be repeated.
    """
    from vitreous.callbacks import Callbacks
    from vitreous.cli.progress import process_started as process_began

    began = process_began() if cli.whole_process else None
    with _shown() as (say, step, look):
        if not steps and not sys.stderr.isatty():
            step = _tell_nothing
        try:
            yield Callbacks(
                message=say, step=step, progress=look, should_stop=lambda: signal_heard() is not None, started=began
            )
        except Interrupted:
            say("Stopped. What was saved before is intact; repeat the same command to go on.")
            raise


def show_ending(result: Ended, as_json: bool, text: Callable[[], str]) -> int:
    """Print what a training came to, as JSON or in words; its exit status."""
    if as_json:
        print_json(result.to_json())
    else:
        print(text() if result.finished else stopped_text(result.run))
    return ending_status(result.finished)


def ending_status(finished: bool) -> int:
    """The exit status of a training."""
    return 0 if finished else 128 + (signal_heard() or signal.SIGINT)


def stopped_text(run: str) -> str:
    """What to know of a training that was stopped."""
    return f"Stopped. Everything is saved in {run}; repeat the same command to go on."


@contextmanager
def _shown() -> Iterator[tuple[Callable[[str], None], Callable[[Event], None], Callable[[str, int, int], None]]]:
    """Functions that show a message, a step, and how many images were looked at."""
    metrics = _Metrics()
    if not sys.stderr.isatty():
        reminder = Reminder()

        def remind(event: Event) -> None:
            text = metrics.text(event)
            if reminder.due():
                left = reminder.left(event.step, event.steps, "steps")
                _say(f"step {event.step:,} of {event.steps:,}  {text}{left}")

        def count(what: str, done: int, total: int) -> None:
            if done < total and reminder.due():
                _say(f"{what}: {done:,} of {total:,}{reminder.left(done, total, what)}")

        yield _say, remind, count
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)

        def step(event: Event) -> None:
            text = metrics.text(event)
            bar.update(task, completed=event.step, total=event.steps, description=text, visible=True)

        def look(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=what, visible=done < total)

        yield lambda text: bar.console.print(printable(text), highlight=False, markup=False), step, look


def _tell_nothing(event: Event) -> None:
    pass


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


class _Metrics:
    """The numbers of a progress line; the loss is averaged over some steps."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def text(self, event: Event) -> str:
        """What to show after this step."""
        seen = self._seen
        seen["loss"] = 0.9 * seen.get("loss", event.record["loss"]) + 0.1 * event.record["loss"]
        if "entropy" in event.record:
            seen["teacher entropy"] = event.record["entropy"]
        seen.update({SHOWN[name]: value for name, value in (event.evaluation or {}).items() if name in SHOWN})
        metrics = "  ".join(f"{name} {value:.3f}" for name, value in seen.items())
        text = f"epoch {event.epoch + 1}  {metrics}  {event.images_per_second:.0f} images/s"
        return f"COLLAPSED, see above  {text}" if "collapsed" in event.record else text


def closing_text(result: FitResult | PretrainResult, found: Sequence[str], use: Sequence[str]) -> str:
    """What a tired person wants to know of a training: what was found, what it cost, and how to use it."""
    spent = result.spent
    lines = [
        *found,
        f"time: {spent.seconds:.0f} s, {spent.images:,} training images processed",
        f"model: {result.bundle}",
        f"report: {result.run}/report.html",
        *use,
    ]
    if result.remarks:
        count = len(result.remarks)
        lines.append(f"{count} {'note' if count == 1 else 'notes'}, such as: {printable(result.remarks[0])}")
    return "\n".join(lines)
