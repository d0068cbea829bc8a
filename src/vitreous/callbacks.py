"""Callbacks of a long computation: messages, progress, and whether to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with the number done and the total."""
NamedProgress = Callable[[str, int, int], None]
"""The same, after the name of the task."""


def no_progress(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Event:
    """One training step, as the callback `step` gets it."""

    step: int
    steps: int
    epoch: int
    record: dict[str, float]  # the loss and the objective's metrics
    images_per_second: float
    evaluation: dict[str, float] | None = None


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called during a computation."""

    message: Callable[[str], None] = lambda text: None
    step: Callable[[Event], None] = lambda event: None
    progress: NamedProgress = lambda what, done, total: None  # in images
    download: NamedProgress = lambda what, done, total: None  # in bytes, downloaded or unpacked
    should_stop: Callable[[], bool] = lambda: False
    """Called between training steps; if it returns true, everything is saved, and the same call resumes."""
    started: float | None = None  # when a budget's clock began, by `time.monotonic`; None: with the call
