"""What a person sees of a training while it runs and when it has ended, and how it is stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vitreous import cli
from vitreous.cli.terminal import printable

if TYPE_CHECKING:
    from vitreous.run.request import Listeners
    from vitreous.run.result import FitResult, PretrainResult
    from vitreous.train.loop import Event

SHOWN = {"accuracy": "val accuracy", "knn": "k-NN", "information": "information"}
"""Metrics of an evaluation that the progress line shows, and what they are called there."""


@contextmanager
def listening() -> Iterator[Listeners]:
    """Messages on stderr, a progress line on a terminal, and a first Ctrl-C that stops between two steps."""
    from vitreous.run.request import Listeners
    from vitreous.train.meter import process_began

    stopped = False
    began = process_began() if cli.whole_process else None

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one stops at once

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _bar() as (say, step):
            yield Listeners(say=say, step=step, stop=lambda: stopped, began=began)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _bar() -> Iterator[tuple[Any, Any]]:
    """Functions that show a message and a step: on a terminal a live line, elsewhere the messages alone."""
    if not sys.stderr.isatty():
        yield lambda text: print(printable(text), file=sys.stderr, flush=True), lambda event: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)
        seen: dict[str, float] = {}

        def step(event: Event) -> None:
            seen["loss"] = 0.9 * seen.get("loss", event.record["loss"]) + 0.1 * event.record["loss"]
            if "entropy" in event.record:
                seen["teacher entropy"] = event.record["entropy"]
            seen.update({SHOWN[name]: value for name, value in (event.evaluation or {}).items() if name in SHOWN})
            metrics = "  ".join(f"{name} {value:.3f}" for name, value in seen.items())
            text = f"epoch {event.epoch + 1}  {metrics}  {event.pictures_per_second:.0f} pictures/s"
            if "collapsed" in event.record:
                text = f"COLLAPSED, see above  {text}"
            bar.update(task, completed=event.step, total=event.steps, description=text, visible=True)

        yield lambda text: bar.console.print(printable(text), highlight=False, markup=False), step


def closing_text(result: FitResult | PretrainResult, found: Sequence[str], use: Sequence[str]) -> str:
    """What a tired person wants to know of a training: what was found, what it cost, and how to use it."""
    if not result.finished:
        return f"Stopped. Everything is saved in {result.run}; repeat the same command to resume."
    spent = result.spent
    lines = [
        *found,
        f"after {spent.seconds:.0f} s, {spent.pictures:,} pictures seen",
        f"model:  {result.bundle}",
        f"report: {result.run}/report.html",
        *use,
    ]
    if result.remarks:
        count = len(result.remarks)
        lines.append(f"{count} {'note' if count == 1 else 'notes'}, such as: {printable(result.remarks[0])}")
    return "\n".join(lines)
