"""How a long computation tells a person what it does, and how it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with how many are done, and how many there are."""
NamedProgress = Callable[[str, int, int], None]
"""The same, with what is being done."""


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Event:
    """What the training loop tells after each step."""

    step: int
    steps: int
    epoch: int
    record: dict[str, float]
    """The loss, and what else the objective says of this step."""
    images_per_second: float
    evaluation: dict[str, float] | None = None


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called while something is computed."""

    message: Callable[[str], None] = lambda text: None
    step: Callable[[Event], None] = lambda event: None
    progress: NamedProgress = lambda what, done, total: None
    """Of images."""
    download: NamedProgress = lambda what, done, total: None
    """Of the bytes that are downloaded or unpacked."""
    should_stop: Callable[[], bool] = lambda: False
    """Asked between two training steps; then everything is saved, and the same call resumes."""
    started: float | None = None
    """When the person began to wait, by `time.monotonic`; None: with the call."""
