"""Doing what is left to do of a transfer: frozen features of every task first, then one fine-tuning after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vitreous.callbacks import Callbacks
from vitreous.errors import UserError
from vitreous.report.transferred import Absent, Protocol, TaskScore
from vitreous.studies.transfer.clock import LEAST, TransferClock
from vitreous.studies.transfer.finetuning import TUNED, FineTuning
from vitreous.studies.transfer.folder import TransferFolder
from vitreous.studies.transfer.frozen import FROZEN, FrozenFeatures
from vitreous.studies.transfer.tasks import OpenTask


class Unit(NamedTuple):
    """What gets a share of the time: one fine-tuning, or all protocols that share a task's features."""

    task: OpenTask
    protocols: tuple[Protocol, ...]


def units_left(tasks: Sequence[OpenTask], protocols: Sequence[Protocol], folder: TransferFolder) -> list[Unit]:
    """What is left to do, in its order."""
    left: list[Unit] = []
    frozen = [protocol for protocol in FROZEN if protocol in protocols]
    for together in (frozen, *([protocol] for protocol in TUNED if protocol in protocols)):
        for task in tasks:
            missing = [one for one in together if folder.read_score(task.named.name, one) is None]
            if missing:
                left.append(Unit(task, tuple(missing)))
    return left


@dataclass
class Transferring:
    """Every task under every protocol; `run` does what is left, and fills in what came of it."""

    tasks: Sequence[OpenTask]
    protocols: Sequence[Protocol]
    folder: TransferFolder
    callbacks: Callbacks
    frozen: FrozenFeatures | None
    """None where no protocol that is left asks for frozen features."""
    tuning: FineTuning
    clock: TransferClock | None
    absent: list[Absent]
    """What is left out, and why; `run` adds to it."""
    scores: list[TaskScore] = field(default_factory=list)

    def run(self) -> bool:
        """Whether all is done; False where it was stopped between two steps."""
        self._read_finished()
        units = units_left(self.tasks, self.protocols, self.folder)
        for number, unit in enumerate(units):
            seconds = None if self.clock is None else self.clock.share(len(units) - number)
            if seconds is not None and seconds < LEAST / 2:
                self._leave_out(unit, "there was no time left for it; give a longer budget")
            elif not self._measure(unit, seconds):
                return False
        return True

    def _read_finished(self) -> None:
        found = (self.folder.read_score(task.named.name, one) for task in self.tasks for one in self.protocols)
        self.scores = [score for score in found if score is not None]

    def _measure(self, unit: Unit, seconds: float | None) -> bool:
        """False where it was stopped."""
        try:
            found = self._found(unit, seconds)
        except UserError as error:  # too few images for this protocol, say: the other tasks can be measured
            self._leave_out(unit, str(error).rstrip("."))
            return True
        if found is None:
            return False
        for one in found:
            if isinstance(one, TaskScore):
                self.folder.write_score(one)
                self.scores.append(one)
                self.callbacks.message(_said(one))
            else:
                self._leave_out(Unit(unit.task, (one.protocol,) if one.protocol else unit.protocols), one.reason)
        return True

    def _found(self, unit: Unit, seconds: float | None) -> list[TaskScore | Absent] | None:
        if unit.protocols[0] in FROZEN:
            assert self.frozen is not None
            name = unit.task.named.name
            counted = any(self.folder.read_score(name, protocol) is not None for protocol in FROZEN)
            return self.frozen.measure(unit.task, unit.protocols, seconds, counted=counted)
        score = self.tuning.measure(unit.task, unit.protocols[0], seconds)
        return None if score is None else [score]

    def _leave_out(self, unit: Unit, reason: str) -> None:
        for protocol in unit.protocols:
            self.absent.append(Absent(unit.task.named.name, unit.task.task.group, protocol, reason))
            self.callbacks.message(f"{unit.task.named.name}, {protocol}: left out ({reason}).")


def _said(score: TaskScore) -> str:
    low, high = score.interval
    return (
        f"{score.task}, {score.protocol}: {score.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%}; test images: "
        f"{score.tested}), {score.seconds:.0f} s"
    )
