"""How the verbs that train say what they came to."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitreous.cli.terminal import printable
from vitreous.interrupt import signal_heard

if TYPE_CHECKING:
    from vitreous.training.result import FitResult, PretrainResult


def ending_status(finished: bool) -> int:
    """The exit status of a training: 0, or 128 + the signal that stopped it."""
    return 0 if finished else 128 + (signal_heard() or signal.SIGINT)


def stopped_text(run: str) -> str:
    """What to know of a training that was stopped."""
    return f"Stopped. Everything is saved in {run}; repeat the same command to go on."


def closing_text(result: FitResult | PretrainResult, found: Sequence[str], use: Sequence[str]) -> str:
    """What a tired person wants to know of a training: what was found, what it cost, and how to use it."""
    if not result.finished:
        return stopped_text(result.run)
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
