"""How far a training is at each step, and how it ends in time where a person chose one.

A schedule asks how far the training is, from 0 to 1. Without a clock that is the share of the steps. With one, the
number of steps is planned from a first measurement, and when the machine turns out slower or faster, the rest of the
training is spread over fewer or more steps: the pace bends. Bends are written down before they count; a training that
is taken up again bends where it did before, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

CHECKS = 20
"""How often the clock is looked at: whenever a part so large of the steps is taken, or of the time is gone."""
SLACK = 0.03
"""Smaller overrides of the steps that are left are not worth a bend."""
CAUTION = 0.5
"""The share of the steps that are left which one look at the clock leaves standing, however slow the machine seems: it
may have been a moment, and a training that was ended cannot be made longer again."""


class Pace:
    """From steps to progress: a line from 0 to 1, bent where a new number of steps was set."""

    def __init__(self, steps: int, bends: Sequence[tuple[int, int]] = ()) -> None:
        self._bends = [(0, steps)]
        for bend in bends:
            self.bend(*bend)

    @property
    def steps(self) -> int:
        """Of the whole training, as it is planned now."""
        return self._bends[-1][1]

    @property
    def bends(self) -> list[tuple[int, int]]:
        """Pairs (from this step on, so many steps in all)."""
        return self._bends[1:]

    def bend(self, step: int, steps: int) -> None:
        """From this step on, spread what is left of the training so that it ends after so many steps in all."""
        assert self._bends[-1][0] <= step < steps
        self._bends.append((step, steps))

    def progress(self, step: int) -> float:
        """The share of the training that is done before this step."""
        if step >= self.steps:
            return 1.0
        done, ends = 0.0, [start for start, _ in self.bends] + [step]
        for (start, steps), end in zip(self._bends, ends, strict=True):
            if start > step:
                break
            done += (1 - done) * (min(end, step) - start) / (steps - start)
        return done


@dataclass(frozen=True)
class Timetable:
    """What was measured before a training, in seconds."""

    deadline: float
    """When all must be done, by the training's clock."""
    stages: tuple[tuple[float, float], ...]
    """Pairs: up to this share of the training, a step takes so long."""
    evaluations: int
    evaluation: float
    """What one takes."""
    ending: float
    """What follows the last step."""

    def step_seconds(self, start: float, end: float) -> float:
        """The mean time of a step between two shares of the training."""
        total, before = 0.0, 0.0
        for until, seconds in self.stages:
            total += max(0.0, min(end, until) - max(start, before)) * seconds
            before = until
        return total / (end - start)

    def evaluation_seconds(self, start: float, end: float) -> float:
        """Of the evaluations between two shares of the training."""
        return self.evaluation * (crossed(end, self.evaluations) - crossed(start, self.evaluations))


class Timekeeper:
    """Bends a pace so that a training ends in time. Call `check` after each step."""

    def __init__(
        self, pace: Pace, timetable: Timetable, clock: Callable[[], float], written: Callable[[], None]
    ) -> None:
        """`clock` gives the seconds spent so far; `written` keeps the pace for a training that is taken up again."""
        self.pace, self.timetable, self.clock, self.written = pace, timetable, clock, written
        self.slowness = 1.0
        self._last: tuple[int, float] | None = None

    def check(self, step: int) -> None:
        """Look at the clock, now and then, and bend the pace where that is needed."""
        now = self.clock()
        if self._last is None:
            self._last = step, now
            return
        before, done = self.pace.progress(self._last[0]), self.pace.progress(step)
        table = self.timetable
        soon = crossed(done, CHECKS) == crossed(before, CHECKS) and now - self._last[1] < table.deadline / CHECKS
        if done == 1.0 or soon:
            return
        expected = (step - self._last[0]) * table.step_seconds(before, done) + table.evaluation_seconds(before, done)
        self.slowness = (self.slowness + (now - self._last[1]) / expected) / 2
        self._last = step, now
        planned = self.pace.steps - step
        fitting, at_best = (self._fitting(now, done, slowness) for slowness in (self.slowness, 1.0))
        steps = max(1, fitting, min(at_best, int(CAUTION * planned)))
        if abs(steps - planned) > SLACK * planned:
            self.pace.bend(step, step + steps)
            self.written()

    def _fitting(self, now: float, done: float, slowness: float) -> int:
        """Steps that fit before the deadline, on a machine that takes so many times as long as was measured."""
        table = self.timetable
        left = (table.deadline - now) / slowness - table.ending - table.evaluation_seconds(done, 1.0)
        return int(left / table.step_seconds(done, 1.0))


def crossed(progress: float, parts: int) -> int:
    """How many of so many equal parts are done."""
    return int(progress * parts + 1e-9)
