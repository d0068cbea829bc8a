"""Doing what is left to do of a comparison: learning rates first, then cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vitreous.report.compared import Cell, Trial, share_text
from vitreous.studies.comparison.candidates import Candidate
from vitreous.studies.comparison.cells import Cells, cell_of, diverged_cell, equal_flops, is_done, step_speed, trial_of
from vitreous.studies.comparison.plan import GRID, TRYING, ComparePlan, cells_of
from vitreous.training.start import split_for


@dataclass
class Comparing:
    """The trainings of a comparison in its folder; `run` does what is left and fills in what came of it."""

    cells: Cells
    candidates: Sequence[Candidate]
    """Those to train."""
    plan: ComparePlan
    tried: list[Trial] = field(default_factory=list)
    done: list[Cell] = field(default_factory=list)
    chosen: dict[str, float] = field(default_factory=dict)
    """Of each model its learning rate; a model that diverged at all of them has none."""

    def run(self) -> bool:
        """Whether all is done; False where it was stopped between two steps."""
        if not self.candidates:
            return True
        self._settle_images()
        self._say_time()
        for candidate in self.candidates:
            if not self._tune(candidate):
                return False
        self._settle_flops()
        return self._train()

    def _settle_images(self) -> None:
        """Which images all are validated and measured on; as soon as it is known it is kept."""
        if self.plan.val_images is None:
            largest = max(self.plan.request.fractions)
            trainings = {one.name: self.cells.choose(one, largest, 0) for one in self.candidates}
            any_of_them = next(iter(trainings.values()))
            self.plan = self.plan.looking(
                {name: self.cells.seconds_per_look(training) for name, training in trainings.items()},
                any_of_them.evaluations,
                len(split_for(any_of_them, self.cells.data).splits["val"]),
                len(self.cells.judged_on(any_of_them)[1]),
            )
            self.plan.write(self.cells.folder)
        self._say(
            f"Every training looks {self.plan.evaluations} times at the same {self.plan.val_images:,} validation "
            f"images; accuracies are of the same {self.plan.measured_images:,} images."
        )

    @property
    def _seconds(self) -> float:
        assert self.plan.cell_seconds is not None
        return self.plan.cell_seconds

    def _say_time(self) -> None:
        asked, models = self.plan.request, len(self.candidates)
        keys = cells_of([one.name for one in self.candidates], asked.fractions, asked.seeds)
        by_name = {candidate.name: candidate for candidate in self.candidates}
        left = sum(not is_done(self.cells.place(key, by_name[key.model])) for key in keys)
        each = f"{self._seconds:g} s each" if asked.equal == "time" else f"{self._seconds:g} s each on average"
        done = f" ({len(keys) - left} are finished)" if left < len(keys) else ""
        self._say(
            f"{len(keys)} cells of {each}{done}, and before them {models * len(GRID)} trials of "
            f"{TRYING * self._seconds:.3g} s to choose learning rates."
        )

    def _say(self, text: str) -> None:
        self.cells.callbacks.message(text)

    def _tune(self, candidate: Candidate) -> bool:
        """Choose the learning rate with the best validation accuracy; of equal ones, that with the lower loss."""
        for rate in self.cells.learning_rates(candidate):
            before = is_done(self.cells.trial_place(candidate, rate))
            result = self.cells.try_rate(candidate, rate, self.plan)
            if result is not None and not result.finished:
                return False
            trial = trial_of(candidate.name, rate, result, self.plan)
            self.tried.append(trial)
            if not before:
                self._say(
                    f"trial {len(self.tried)} of {len(self.candidates) * len(GRID)} ({candidate.name}, learning rate "
                    f"{rate:g}): {_trial_text(trial)}"
                )
        ended = [trial for trial in self._trials(candidate.name) if not trial.diverged]
        if ended:
            best = max(ended, key=lambda trial: (trial.accuracy, -(trial.loss or 0.0)))
            self.chosen[candidate.name] = best.learning_rate
        else:
            self._say(f"{candidate.name}: diverged at every learning rate, so it is not trained further.")
        return True

    def _trials(self, model: str) -> list[Trial]:
        return [trial for trial in self.tried if trial.model == model]

    def _settle_flops(self) -> None:
        """With equal FLOPs, how many; as soon as it is known it is kept, and holds for cells that are added later."""
        plan = self.plan
        if plan.request.equal == "flops" and plan.cell_flops is None and self.chosen:
            validating = {name: plan.validating(name) for name in self.chosen}
            seconds = {name: max(self._seconds - validating[name], self._seconds / 2) for name in self.chosen}
            speeds = {name: step_speed(self._trials(name), validating[name]) for name in self.chosen}
            self.plan = replace(plan, cell_flops=float(f"{equal_flops(seconds, speeds):.6g}"))
            self.plan.write(self.cells.folder)
        if self.plan.cell_flops is not None:
            self._say(f"Each cell trains with {self.plan.cell_flops:.3g} floating-point operations.")

    def _train(self) -> bool:
        by_name = {candidate.name: candidate for candidate in self.candidates}
        asked = self.plan.request
        keys = cells_of([name for name in by_name if name in self.chosen], asked.fractions, asked.seeds)
        for number, key in enumerate(keys, start=1):
            candidate = by_name[key.model]
            place = self.cells.place(key, candidate)
            before = is_done(place)
            result = self.cells.train(key, candidate, self.chosen[key.model], self.plan)
            if result is None:
                assert self.plan.measured_images is not None
                cell = diverged_cell(key, place, self.plan.measured_images)
            elif not result.finished:
                return False
            else:
                cell = cell_of(key, result, self.cells.measure(key, candidate, self.plan), place)
            self.done.append(cell)
            if not before:
                self._say(f"cell {number} of {len(keys)} ({_called(cell)}): {_cell_text(cell)}")
        return True


def _called(cell: Cell) -> str:
    return f"{cell.model}, {share_text(cell.fraction)} of the images, seed {cell.seed}"


def _trial_text(trial: Trial) -> str:
    if trial.diverged:
        return "diverged"
    return f"{trial.accuracy:.1%} of {trial.n:,} validation images, {trial.spent.seconds:.0f} s"


def _cell_text(cell: Cell) -> str:
    if cell.spent is None:
        return "diverged"
    return f"{cell.accuracy:.1%} of {cell.n:,} images, {cell.settings['steps']:,} steps, {cell.spent.seconds:.0f} s"
