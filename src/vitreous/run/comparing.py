"""Doing what is left to do of a comparison: learning rates first, then cell by cell."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vitreous import __version__
from vitreous.report.compared import Cell, Tried, share_text
from vitreous.run.candidates import Candidate
from vitreous.run.cells import Cells, cell_of, equal_flops, evaluations_of, trial_of
from vitreous.run.comparison import GRID, TRYING, ComparePlan, cells_of
from vitreous.run.folder import RESULT
from vitreous.run.result import FitResult


@dataclass
class Comparing:
    """The trainings of a comparison in its folder; `run` does what is left and fills in what came of it."""

    cells: Cells
    candidates: Sequence[Candidate]
    """Those to train."""
    plan: ComparePlan
    tried: list[Tried] = field(default_factory=list)
    done: list[Cell] = field(default_factory=list)
    chosen: dict[str, float] = field(default_factory=dict)
    """Of each model its learning rate."""
    _evaluations: int = 10**9
    """The fewest that a trial had time for."""

    def run(self) -> bool:
        """Whether all is done; False where it was stopped between two steps."""
        if not self.candidates:
            return True
        self._say_time()
        return all(self._tune(candidate) for candidate in self.candidates) and self._settle_flops() and self._train()

    @property
    def _seconds(self) -> float:
        assert self.plan.cell_seconds is not None
        return self.plan.cell_seconds

    def _say_time(self) -> None:
        asked, models = self.plan.request, len(self.candidates)
        keys = cells_of([one.name for one in self.candidates], asked.fractions, asked.seeds)
        by_name = {candidate.name: candidate for candidate in self.candidates}
        left = sum(not _is_done(self.cells.place(key, by_name[key.model])) for key in keys)
        each = f"{self._seconds:g} s each" if asked.equal == "time" else f"{self._seconds:g} s each on average"
        done = f" ({len(keys) - left} are finished)" if left < len(keys) else ""
        self._say(
            f"{len(keys)} cells of {each}{done}, and before them {models * len(GRID)} trials of "
            f"{TRYING * self._seconds:.3g} s to choose learning rates."
        )

    def _say(self, text: str) -> None:
        self.cells.listeners.say(text)

    def _tune(self, candidate: Candidate) -> bool:
        """Choose the learning rate with the best validation accuracy; of equal ones, that with the lower loss."""
        for rate in self.cells.learning_rates(candidate):
            place = self.cells.trial_place(candidate, rate)
            before = _is_done(place)
            result = self.cells.try_rate(candidate, rate, self.plan.tuned_on, self._seconds)
            if not result.finished:
                return False
            trial = trial_of(candidate.name, rate, result)
            self.tried.append(trial)
            self._evaluations = min(self._evaluations, evaluations_of(place))
            if not before:
                self._say(
                    f"trial {len(self.tried)} of {len(self.candidates) * len(GRID)} ({candidate.name}, learning rate "
                    f"{rate:g}): {trial.accuracy:.1%} of {trial.n:,} validation pictures, {result.spent.seconds:.0f} s"
                )
        own = [trial for trial in self.tried if trial.model == candidate.name]
        self.chosen[candidate.name] = max(own, key=lambda trial: (trial.accuracy, -trial.loss)).learning_rate
        return True

    def _settle_flops(self) -> bool:
        """With equal FLOPs, how many; as soon as it is known it is kept, and holds for cells that are added later."""
        if self.plan.request.equal == "flops" and self.plan.cell_flops is None:
            speeds = {
                name: max(t.spent.flops / t.spent.seconds for t in self.tried if t.model == name)
                for name in self.chosen
            }
            flops = float(f"{equal_flops(self._seconds, speeds):.6g}")
            self.plan = replace(self.plan, cell_flops=flops, cell_evaluations=self._evaluations)
            self.plan.write(self.cells.folder)
        if self.plan.cell_flops is not None:
            self._say(f"Each cell trains with {self.plan.cell_flops:.3g} floating-point operations.")
        return True

    def _train(self) -> bool:
        by_name = {candidate.name: candidate for candidate in self.candidates}
        asked = self.plan.request
        keys = cells_of(list(by_name), asked.fractions, asked.seeds)
        for number, key in enumerate(keys, start=1):
            place = self.cells.place(key, by_name[key.model])
            before = _is_done(place)
            result = self.cells.train(key, by_name[key.model], self.chosen[key.model], self.plan)
            if not result.finished:
                return False
            cell = cell_of(key, result, place)
            self.done.append(cell)
            if not before:
                self._say(f"cell {number} of {len(keys)} ({_called(cell)}): {_found(cell, result)}")
        return True


def _is_done(run: Path) -> bool:
    return (run / RESULT).exists()


def _called(cell: Cell) -> str:
    return f"{cell.model}, {share_text(cell.fraction)} of the pictures, seed {cell.seed}"


def _found(cell: Cell, result: FitResult) -> str:
    split = "test" if result.test is not None else "validation"
    return f"{cell.accuracy:.1%} of {cell.n:,} {split} pictures, {result.steps:,} steps, {result.spent.seconds:.0f} s"


def machine_features(device: torch.device) -> dict[str, Any]:
    """What the trainings ran on and with."""
    return {
        "device": device.type,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vitreous": __version__,
    }
