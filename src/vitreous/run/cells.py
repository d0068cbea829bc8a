"""The trainings of a comparison: trials of learning rates, and cells, each a run folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vitreous.config.train import Training
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.report.compared import Cell, Tried
from vitreous.run.candidates import Candidate
from vitreous.run.comparison import CELLS, GRID, TRYING, TUNING, CellKey, ComparePlan, CompareRequest
from vitreous.run.cost import training_work
from vitreous.run.folder import read_config
from vitreous.run.labelled import LabelledTraining
from vitreous.run.needs import check_training_memory
from vitreous.run.request import FitRequest, Listeners, Machine
from vitreous.run.result import FitResult
from vitreous.run.start import choose_training, split_for
from vitreous.train.pace import Pace

RECIPE = "plain"
"""The one recipe for every model: nothing in it can only be done by some networks."""
SPLIT_SEED = 0
"""Where the data have no val split, all trainings set the same pictures aside."""
COUNTED = 100
"""Steps over which the cost of one is averaged, as a keep schedule changes it on the way."""


class CellTraining(LabelledTraining):
    """A training without a page of its own, on data that are open already: what all share is not paid for by each."""

    writing = 1.0
    shared: Data

    def open_data(self) -> Data:
        """Those of the comparison."""
        return self.shared


@dataclass(frozen=True)
class Cells:
    """How every training of a comparison is asked for and done."""

    request: CompareRequest
    data: Data
    folder: Path
    machine: Machine
    listeners: Listeners
    """Of single trainings: what is said of each is not said; its steps are shown."""

    def check(self, candidate: Candidate) -> Training:
        """The training that a model would get, refused now if it cannot be: not when it is its turn, hours later."""
        assert candidate.model is not None
        for fraction in self.request.fractions:
            training = self.choose(candidate, fraction, 0)
        if not training.validation and "val" not in self.data.splits:
            raise UserError("validation=0: without validation pictures no learning rate can be chosen; leave it out.")
        check_training_memory(training, len(split_for(training, self.data).train))
        return training

    def choose(self, candidate: Candidate, fraction: float, seed: int) -> Training:
        """With the recipe's own learning rate."""
        return choose_training(self._asked(candidate, fraction, seed, {}), self.data, None)

    def learning_rates(self, candidate: Candidate) -> list[float]:
        """Those to be tried."""
        usual = self.choose(candidate, 1.0, 0).optimizer.learning_rate
        return [float(f"{factor * usual:.3g}") for factor in GRID]

    def try_rate(self, candidate: Candidate, learning_rate: float, fraction: float, cell_seconds: float) -> FitResult:
        """A short training, to be judged by its validation pictures."""
        asked = self._asked(candidate, fraction, 0, {"optimizer.learning_rate": str(learning_rate)})
        asked = replace(asked, budget=f"{TRYING * cell_seconds:.2f}s")
        return self._run(asked, self.trial_place(candidate, learning_rate))

    def train(self, key: CellKey, candidate: Candidate, learning_rate: float, plan: ComparePlan) -> FitResult:
        """One cell, within its time or, where they are to be equal, with its floating-point operations."""
        changes = {"optimizer.learning_rate": str(learning_rate)}
        if plan.cell_flops is None:
            asked = replace(self._asked(candidate, key.fraction, key.seed, changes), budget=f"{plan.cell_seconds}s")
        else:
            if "evaluations" not in self.request.changes:
                changes["evaluations"] = str(plan.cell_evaluations)
            training = self.choose(candidate, key.fraction, key.seed)
            epochs = equal_epochs(training, len(split_for(training, self.data).train), plan.cell_flops)
            asked = replace(self._asked(candidate, key.fraction, key.seed, changes), epochs=epochs)
        return self._run(asked, self.place(key, candidate))

    def trial_place(self, candidate: Candidate, learning_rate: float) -> Path:
        """The run folder of a trial."""
        return self.folder / TUNING / candidate.folder / f"{learning_rate:g}"

    def place(self, key: CellKey, candidate: Candidate) -> Path:
        """The run folder of a cell."""
        return self.folder / CELLS / candidate.folder / f"{key.fraction:g}" / f"seed-{key.seed}"

    def _asked(self, candidate: Candidate, fraction: float, seed: int, more: Mapping[str, str]) -> FitRequest:
        changes = {**self.request.changes, **candidate.changes, **more}
        if "val" not in self.data.splits:
            changes["split_seed"] = str(SPLIT_SEED)
        if fraction < 1:
            changes["share"] = f"{fraction:g}"
        size = None if candidate.model is None or "@" in candidate.model else self.request.image_size
        return FitRequest(
            data=self.request.data,
            model=candidate.model,
            image_size=size,
            recipe=RECIPE,
            seed=seed,
            changes=changes,
        )

    def _run(self, asked: FitRequest, place: Path) -> FitResult:
        quiet = replace(self.listeners, say=lambda text: None, began=None)
        training = CellTraining(asked, place, self.machine, quiet, lambda folder, seconds=None: None)
        training.shared = self.data
        return training.run()


def equal_epochs(training: Training, pictures: int, flops: float) -> float:
    """Epochs after which a training on so many pictures has done about so many operations, forward and backward."""
    batch = min(training.batch_size, pictures)
    each = training_work(training, COUNTED * batch, Pace(COUNTED), COUNTED).flops / COUNTED
    return max(1, round(flops / each)) / (pictures // batch)


def equal_flops(cell_seconds: float, speeds: Mapping[str, float]) -> float:
    """Operations of each cell, so that those of all models take `cell_seconds` on average.

    speeds: operations per second of each model, as its trials had them. A slow model takes longer, a fast one less.
    """
    return cell_seconds * len(speeds) / sum(1 / speed for speed in speeds.values())


def cell_of(key: CellKey, result: FitResult, place: Path) -> Cell:
    """What a finished training came to, on the test split or else on the validation pictures.

    place: where it lies now; the folder may have been moved since.
    """
    found = result.test or result.validation
    assert found is not None
    t = _training_of(place)
    settings: dict[str, float | int | str] = {
        "optimizer": t.optimizer.name,
        "learning_rate": t.optimizer.learning_rate,
        "weight_decay": t.optimizer.weight_decay,
        "batch_size": min(t.batch_size, result.pictures),
        "steps": result.steps,
        "best_step": result.best_step,
    }
    return Cell(
        model=key.model,
        fraction=key.fraction,
        seed=key.seed,
        place=str(place),
        pictures=result.pictures,
        accuracy=found.top1,
        interval=found.top1_interval,
        n=found.n,
        validation=None if result.validation is None else result.validation.top1,
        spent=result.spent,
        settings=settings,
    )


def trial_of(model: str, learning_rate: float, result: FitResult) -> Tried:
    """What a trial came to."""
    found = result.validation
    assert found is not None
    return Tried(model, learning_rate, found.top1, found.loss, found.n, result.spent)


def evaluations_of(place: Path) -> int:
    """How often a training looked at its validation pictures on the way."""
    return _training_of(place).evaluations


def _training_of(place: Path) -> Training:
    saved = read_config(place)
    assert saved is not None
    return saved.training
