"""The trainings of a comparison: trials of learning rates, and cells, each a run folder of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitreous.callbacks import Callbacks
from vitreous.config.train import Training
from vitreous.data.source import Data, Source, Split
from vitreous.data.subset import random_subset
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluate.classify import ClassificationResult, wilson
from vitreous.inference.choice import in_torch
from vitreous.inference.measuring import measure_classifier
from vitreous.inference.needs import check_training_memory
from vitreous.inference.opening import open_classifier
from vitreous.inputs import read_json
from vitreous.model.family import build_network, inference_batch
from vitreous.report.compared import Cell, Trial
from vitreous.storage.files import write_file
from vitreous.studies.comparison.candidates import Candidate
from vitreous.studies.comparison.plan import (
    CELLS,
    GRID,
    SPLIT_SEED,
    TRYING,
    TUNING,
    CellKey,
    ComparePlan,
    CompareRequest,
    measured_split,
)
from vitreous.training.context import Runtime
from vitreous.training.folder import RESULT, read_config
from vitreous.training.labelled import Labelled, SharedValidation
from vitreous.training.loop import DivergedError
from vitreous.training.measure import training_work
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult
from vitreous.training.start import choose_training, plain_loader, split_for
from vitreous.training.step import StepSchedule
from vitreous.training.train import train
from vitreous.weights.bundle import Bundle

RECIPE = "plain"
"""The one recipe for every model: nothing in it can only be done by some networks."""
MEASURED, DIVERGED = "measured.json", "diverged.json"
"""What a comparison adds to a run folder."""
LOOKED_AT, TELLING = 4, 0.5
"""Batches and seconds, at most, that tell how long an image takes."""
COUNTED = 100
"""Steps over which the cost of one is averaged, as a keep schedule overrides it on the way."""


@dataclass(frozen=True)
class Cells:
    """How every training of a comparison is asked for and done."""

    request: CompareRequest
    data: Data
    folder: Path
    machine: Runtime
    callbacks: Callbacks
    """Of single trainings: what is said of each is not said; its steps are shown."""

    def check(self, candidate: Candidate) -> Training:
        """The training that a model would get, refused now if it cannot be: not when it is its turn, hours later."""
        assert candidate.model is not None
        trainings = [self.choose(candidate, fraction, 0) for fraction in sorted(self.request.fractions)]
        training = trainings[-1]  # on the most images
        if not training.validation and "val" not in self.data.splits:
            raise UserError("validation=0: without validation images no learning rate can be chosen; leave it out.")
        check_training_memory(training, len(split_for(training, self.data).train), self.machine.world)
        return training

    def choose(self, candidate: Candidate, fraction: float, seed: int) -> Training:
        """With the recipe's own learning rate."""
        return choose_training(self._asked(candidate, fraction, seed, {}), self.data, None)

    def learning_rates(self, candidate: Candidate) -> list[float]:
        """Those to be tried."""
        usual = self.choose(candidate, 1.0, 0).optimizer.learning_rate
        return [float(f"{factor * usual:.3g}") for factor in GRID]

    def judged_on(self, training: Training) -> tuple[Split, Source]:
        """All images that accuracies may be of."""
        return measured_split(split_for(training, self.data))

    def seconds_per_look(self, training: Training) -> float:
        """How long a network of this kind takes for an image that it is measured on, decoding included."""
        network = build_network(training.model, seed=0).to(self.machine.device).eval()
        batch = inference_batch(training.model)
        some = random_subset(self.judged_on(training)[1], SPLIT_SEED, LOOKED_AT * batch)
        looked, began = 0, 0.0
        with closing(plain_loader(some, training, self.machine.workers)) as loader, torch.inference_mode():
            for batches in (loader.batches(), loader.batches()):
                for one in batches:
                    network(one.images.to(self.machine.device)).cpu()
                    if not began:  # the first warms up
                        began = time.perf_counter()
                        continue
                    looked += len(one.index)
                    if time.perf_counter() - began > TELLING:
                        return (time.perf_counter() - began) / looked
        return (time.perf_counter() - began) / max(1, looked)

    def try_rate(self, candidate: Candidate, learning_rate: float, plan: ComparePlan) -> FitResult | None:
        """A short training, to be judged by its validation images; None where it diverged."""
        assert plan.cell_seconds is not None
        asked = self._asked(candidate, plan.tuned_on, 0, _same_for_all(learning_rate, plan))
        asked = replace(asked, budget=f"{TRYING * plan.cell_seconds:.2f}s")
        return self._run(asked, self.trial_place(candidate, learning_rate), plan)

    def train(self, key: CellKey, candidate: Candidate, learning_rate: float, plan: ComparePlan) -> FitResult | None:
        """One cell, in its time or, where they are to be equal, with its operations; None where it diverged."""
        asked = self._asked(candidate, key.fraction, key.seed, _same_for_all(learning_rate, plan))
        if plan.cell_flops is None:
            asked = replace(asked, budget=f"{plan.cell_seconds}s")
        else:
            training = self.choose(candidate, key.fraction, key.seed)
            epochs = equal_epochs(training, len(split_for(training, self.data).train), plan.cell_flops)
            asked = replace(asked, epochs=epochs)
        return self._run(asked, self.place(key, candidate), plan)

    def measure(self, key: CellKey, candidate: Candidate, plan: ComparePlan) -> ClassificationResult:
        """How well a finished cell does on the images that all are measured on; it is kept beside its weights."""
        kept = self.place(key, candidate) / MEASURED
        if kept.exists():
            return ClassificationResult.from_json(read_json(kept))
        _, images = self.judged_on(self.choose(candidate, key.fraction, key.seed))
        result = self.measure_model(
            open_classifier(kept.parent), random_subset(images, SPLIT_SEED, plan.measured_images)
        )
        write_file(kept, json.dumps(result.to_json()) + "\n")
        return result

    def measure_model(self, bundle: Bundle, images: Source) -> ClassificationResult:
        """How well any classifier does."""
        deployed = in_torch(bundle, str(self.machine.device))
        return measure_classifier(deployed, images, workers=self.machine.workers)[0]

    def trial_place(self, candidate: Candidate, learning_rate: float) -> Path:
        """The run folder of a trial."""
        return self.folder / TUNING / candidate.folder / f"{learning_rate:g}"

    def place(self, key: CellKey, candidate: Candidate) -> Path:
        """The run folder of a cell."""
        return self.folder / CELLS / candidate.folder / f"{key.fraction:g}" / f"seed-{key.seed}"

    def _asked(self, candidate: Candidate, fraction: float, seed: int, more: Mapping[str, str]) -> FitRequest:
        overrides = {**self.request.overrides, **candidate.overrides, **more}
        if "val" not in self.data.splits:
            overrides["split_seed"] = str(SPLIT_SEED)
        if fraction < 1:
            overrides["share"] = f"{fraction:g}"
        size = None if candidate.model is None or "@" in candidate.model else self.request.image_size
        return FitRequest(
            data=self.request.data,
            model=candidate.model,
            image_size=size,
            recipe=RECIPE,
            seed=seed,
            overrides=overrides,
        )

    def _run(self, asked: FitRequest, place: Path, plan: ComparePlan) -> FitResult | None:
        """What came of a training; None where it diverged, now or before: once more it would do so again."""
        if (place / DIVERGED).exists():
            return None
        assert plan.val_images is not None
        quiet = replace(self.callbacks, message=lambda text: None, started=None)
        method = Labelled(
            data=lambda context: self.data,
            measured=("val",),
            validation=SharedValidation(SPLIT_SEED, plan.val_images),
            page=False,
            writing_seconds=1.0,
        )
        try:
            return train(asked, place, self.machine, quiet, method)
        except DivergedError as error:
            write_file(place / DIVERGED, json.dumps({"diverged": str(error)}) + "\n")
            return None


def _same_for_all(learning_rate: float, plan: ComparePlan) -> dict[str, str]:
    return {"optimizer.learning_rate": str(learning_rate), "evaluations": str(plan.evaluations)}


def is_done(run: Path) -> bool:
    """Whether nothing is left to be trained there."""
    return (run / RESULT).exists() or (run / DIVERGED).exists()


def equal_epochs(training: Training, images: int, flops: float) -> float:
    """Epochs after which a training on so many images has done about so many operations, forward and backward."""
    batch = min(training.batch_size, images)
    each = training_work(training, COUNTED * batch, StepSchedule(COUNTED), COUNTED).flops / COUNTED
    return max(1, round(flops / each)) / (images // batch)


def equal_flops(seconds: Mapping[str, float], speeds: Mapping[str, float]) -> float:
    """Operations of each cell, so that one of each model together take as long as `seconds` together.

    seconds: of each model what a cell has for its steps. speeds: operations per second of its steps. A slow model takes
    longer, a fast one less.
    """
    return sum(seconds[name] for name in speeds) / sum(1 / speed for speed in speeds.values())


def step_speed(trials: Sequence[Trial], validating: float) -> float:
    """Operations per second of a model's steps, in the fastest of its trials; validating: seconds that were not steps.

    At least half of a trial counts as steps, however badly the rest was foreseen.
    """
    return max(t.spent.flops / max(t.spent.seconds - validating, t.spent.seconds / 2) for t in trials if not t.diverged)


def diverged_cell(key: CellKey, place: Path, n: int) -> Cell:
    """A training whose loss left the numbers: it is counted as one that has none of the images right."""
    return Cell(
        model=key.model,
        fraction=key.fraction,
        seed=key.seed,
        place=str(place),
        images=None,
        accuracy=0.0,
        interval=wilson(0, n),
        n=n,
        validation=None,
        spent=None,
        diverged=True,
    )


def cell_of(key: CellKey, result: FitResult, found: ClassificationResult, place: Path) -> Cell:
    """What a finished training came to; found: on the images that all are measured on.

    place: where it lies now; the folder may have been moved since.
    """
    saved = read_config(place)
    assert saved is not None
    t = saved.training
    settings: dict[str, float | int | str] = {
        "optimizer": t.optimizer.name,
        "learning_rate": t.optimizer.learning_rate,
        "weight_decay": t.optimizer.weight_decay,
        "batch_size": min(t.batch_size, result.images),
        "steps": result.steps,
        "best_step": result.best_step,
    }
    return Cell(
        model=key.model,
        fraction=key.fraction,
        seed=key.seed,
        place=str(place),
        images=result.images,
        accuracy=found.top1,
        interval=found.top1_interval,
        n=found.n,
        validation=None if result.validation is None else result.validation.top1,
        spent=result.spent,
        settings=settings,
    )


def trial_of(model: str, learning_rate: float, result: FitResult | None, plan: ComparePlan) -> Trial:
    """What a trial came to; None: it diverged."""
    if result is None:
        assert plan.val_images is not None
        return Trial(model, learning_rate, 0.0, None, plan.val_images, Cost(), diverged=True)
    found = result.validation
    assert found is not None
    return Trial(model, learning_rate, found.top1, found.loss, found.n, result.spent)
