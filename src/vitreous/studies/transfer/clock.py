"""The time that a person gave for all tasks, divided fairly among what is left to do."""

from __future__ import annotations

import time
from collections.abc import Callable

from vitreous.errors import UserError
from vitreous.training.deadline import format_budget, parse_budget

ENDING = 5.0
"""Seconds that the page and the end of the process take."""
MARGIN = 0.95
"""What is planned of the rest; a machine is never as fast for long as it was for a moment."""
LEAST = 20.0
"""Seconds below which nothing can be learned or measured that is worth a line."""


class TransferClock:
    """How long all may take together, from the moment that a person began to wait."""

    def __init__(self, budget: str, began: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self.text, self._now = budget, now
        self._end = (now() if began is None else began) + parse_budget(budget) - ENDING

    def check(self, units: int) -> None:
        """Refuse a time in which not even the least of each can be done."""
        if self._left() / MARGIN < units * LEAST:
            needed = format_budget(units * LEAST / MARGIN + 3 * ENDING)
            raise UserError(
                f"budget {self.text!r}: too short to do {units} thing{'s' * (units > 1)} of at least {LEAST:g} s each; "
                f"give at least {needed}, or fewer tasks or protocols."
            )

    def share(self, units: int) -> float:
        """Seconds for the next of so many things; what one leaves over is shared by those after it."""
        return max(0.0, self._left() / units)

    def _left(self) -> float:
        return MARGIN * (self._end - self._now())
