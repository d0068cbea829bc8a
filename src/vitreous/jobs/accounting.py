"""What a training spent: floating-point operations, processor time, pictures, and energy where the machine tells it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from vitreous.config.train import Training
from vitreous.model.cost import count_flops

_ENERGY = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Spent:
    """A training's price so far."""

    seconds: float = 0.0
    core_hours: float = 0.0
    """Processor time of all processes, in hours."""
    pictures: int = 0
    """Seen in training."""
    flops: float = 0.0
    """Of the training steps: forward and twice that for backward."""
    joules: float | None = None
    """Of the processor package, where the machine tells it."""

    def __add__(self, other: Spent) -> Spent:
        joules = None if self.joules is None and other.joules is None else (self.joules or 0) + (other.joules or 0)
        return Spent(
            self.seconds + other.seconds,
            self.core_hours + other.core_hours,
            self.pictures + other.pictures,
            self.flops + other.flops,
            joules,
        )


class Meter:
    """Reads the clocks from its making on."""

    def __init__(self) -> None:
        self._start, self._cpu, self._energy = time.monotonic(), _cpu_seconds(), _microjoules()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def spent(self) -> Spent:
        """Clocks only; pictures and operations are counted by `training_work`."""
        energy = _microjoules()
        joules = None if energy is None or self._energy is None else (energy - self._energy) / 1e6
        return Spent(self.seconds, (_cpu_seconds() - self._cpu) / 3600, joules=joules)


def training_work(training: Training, pictures: int) -> Spent:
    """Operations of a whole training that saw so many pictures, with the token schedule counted in."""
    config = training.model
    total, before = 0.0, 0.0
    for end, keep in (*training.tokens, (1.0, 1.0)):
        rows = max(1, round(config.patches * keep))
        seen = replace(config, image_size=(config.patch, config.patch * rows))  # as many tokens, in a row
        total += (end - before) * count_flops(seen)
        before = end
    frozen = training.freeze / config.depth
    return Spent(pictures=pictures, flops=pictures * total * (3 - 2 * frozen))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _microjoules() -> int | None:
    """The energy counters of all processor packages, where they exist and may be read."""
    total = None
    for path in _ENERGY.glob("intel-rapl:?/energy_uj"):
        try:
            total = (total or 0) + int(path.read_text())
        except OSError:
            return None
    return total
