"""How far a training is at each step: from 0 to 1, by which every schedule is read.

Without a deadline that is the fraction of the steps. With one, the number of steps is planned from a first measurement,
and where the machine turns out slower or faster, the rest of the training is spread over fewer or more steps. Such a
replanning is written down before it counts: a resumed training replans where it did before, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence


class StepSchedule:
    """From steps to progress: a line from 0 to 1, replanned where a new number of steps was set."""

    def __init__(self, steps: int, replans: Sequence[tuple[int, int]] = ()) -> None:
        self._replans = [(0, steps)]
        for one in replans:
            self.replan(*one)

    @property
    def steps(self) -> int:
        """Of the whole training, as it is planned now."""
        return self._replans[-1][1]

    @property
    def replans(self) -> list[tuple[int, int]]:
        """Pairs (from this step on, so many steps in all)."""
        return self._replans[1:]

    def replan(self, step: int, steps: int) -> None:
        """From this step on, spread what is left of the training so that it ends after so many steps in all."""
        assert self._replans[-1][0] <= step < steps
        self._replans.append((step, steps))

    def progress(self, step: int) -> float:
        """The share of the training that is done before this step."""
        if step >= self.steps:
            return 1.0
        done, ends = 0.0, [start for start, _ in self.replans] + [step]
        for (start, steps), end in zip(self._replans, ends, strict=True):
            if start > step:
                break
            done += (1 - done) * (min(end, step) - start) / (steps - start)
        return done


def parts_done(progress: float, parts: int) -> int:
    """How many of so many equal parts are done."""
    return int(progress * parts + 1e-9)
