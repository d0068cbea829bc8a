"""The cost of a training: time, processor time, and energy if the machine measures it."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from vitreous.distributed.world import SINGLE_PROCESS, World

_ENERGY = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Cost:
    """The cost of a training so far."""

    seconds: float = 0.0
    core_hours: float = 0.0  # processor time of all processes, in hours; a decoding process counts when it has ended
    images: int = 0  # seen in training
    flops: float = 0.0  # of a first classifier's features and of the steps, forward and backward; 0 if not counted
    joules: float | None = None  # of the processor packages, where the machine tells it
    stages: dict[str, float] = field(default_factory=dict)  # seconds of each stage, in their order

    def __add__(self, other: Cost) -> Cost:
        joules = None if self.joules is None and other.joules is None else (self.joules or 0) + (other.joules or 0)
        return Cost(
            self.seconds + other.seconds,
            self.core_hours + other.core_hours,
            self.images + other.images,
            self.flops + other.flops,
            joules,
            dict(Counter(self.stages) + Counter(other.stages)),
        )


class Meter:
    """Measures the cost since its construction, or since an earlier time, and adds `before`, the cost of the training's
    interrupted processes up to their checkpoints."""

    def __init__(self, energy: Path = _ENERGY, began: float | None = None) -> None:
        """began: the start, by `time.monotonic`; None for now."""
        self.before = Cost()
        self._start = time.monotonic() if began is None else began
        self._cpu = _cpu_seconds() if began is None else 0.0
        self._stages: dict[str, float] = {}
        self._folder, self._energy, self._microjoules = energy, _counters(energy), 0

    @property
    def seconds(self) -> float:
        """Since the start, without `before`."""
        return time.monotonic() - self._start

    def end_stage(self, name: str) -> None:
        """The time since the last stage ended belongs to this one. A stage may come several times."""
        self._stages[name] = self._stages.get(name, 0.0) + self.seconds - sum(self._stages.values())

    def spent(self, world: World = SINGLE_PROCESS) -> Cost:
        """The cost, without images and FLOPs. Call it now and then, because energy counters wrap. world: the processes
        whose processor time counts."""
        now = _counters(self._folder)
        for place, (value, wrap) in now.items():
            last = self._energy.get(place, (value, wrap))[0]
            self._microjoules += value - last if value >= last else value - last + wrap
        self._energy = now
        joules = self._microjoules / 1e6 if now else None
        core_seconds = world.size * world.mean_number(_cpu_seconds() - self._cpu)
        return self.before + Cost(self.seconds, core_seconds / 3600, joules=joules, stages=dict(self._stages))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _counters(folder: Path) -> dict[str, tuple[int, int]]:
    """By processor package, its energy counter and the value at which it wraps, in microjoules."""
    found = {}
    for place in folder.glob("intel-rapl:?"):
        try:
            value, wrap = ((place / name).read_text() for name in ("energy_uj", "max_energy_range_uj"))
        except OSError:  # missing, or readable by root only
            continue
        found[place.name] = int(value), int(wrap)
    return found
