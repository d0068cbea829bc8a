"""A clock that only the trainings move: a budget comes to the same number of steps on any machine, however busy."""

import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from vitreous.training.step import train_step


@contextmanager
def fake_clock(step_seconds=0.5, reading_seconds=1e-4):
    """A function that tells the time; all of vitreous reads it, and nothing but steps and readings takes any.

    step_seconds: how long a step takes, or a function from the number of steps before it to that.
    """
    now, steps = 1000.0, 0

    def read():
        nonlocal now
        now += reading_seconds
        return now

    def slow_step(*args, **more):
        nonlocal now, steps
        now += step_seconds(steps) if callable(step_seconds) else step_seconds
        steps += 1
        return train_step(*args, **more)

    fake = SimpleNamespace(**{**vars(time), "monotonic": read, "perf_counter": read})
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("vitreous.") and vars(module).get("time") is time:
                patch.setattr(module, "time", fake)
        patch.setattr("vitreous.distributed.meter._cpu_seconds", read)
        for module in ("vitreous.studies.timing", "vitreous.training.loop"):
            patch.setattr(f"{module}.train_step", slow_step)
        yield read
