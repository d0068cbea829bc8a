"""The models of a comparison, and their trainings: trials of learning rates, and cells, each in a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.config.overrides import override_texts
from vitreous.config.train import Training
from vitreous.data.source import Data, Source, Split, random_subset
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluation.classify import ClassificationResult
from vitreous.evaluation.intervals import wilson
from vitreous.explain.analysis.bias import measure_bias
from vitreous.explain.analysis.bias_numbers import Bias
from vitreous.inference.engine import open_in_torch
from vitreous.inference.evaluation import measure_classifier
from vitreous.inference.memory_needs import choose_bias_batch
from vitreous.inference.opening import open_classifier
from vitreous.inputs import read_json
from vitreous.storage.files import write_file
from vitreous.studies.compare.plan import GRID, TRIAL, Candidate, CellKey, ComparePlan
from vitreous.studies.compare.result import Cell, Trial
from vitreous.studies.folder import Study
from vitreous.studies.requests import CompareRequest
from vitreous.training.folder import RESULT, read_config, training_to_json
from vitreous.training.labelled import Labelled, SharedValidation
from vitreous.training.loop import DivergedError
from vitreous.training.memory_needs import check_training_memory
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult
from vitreous.training.start import choose_training, split_for
from vitreous.training.step import StepSchedule, training_work
from vitreous.weights.bundle import Bundle, weights_digest

RECIPE = "plain"  # the one recipe for every model: nothing in it can only be done by some networks
SPLIT_SEED = 0
"""By which images are set aside and parts of them are chosen: the same for all, whatever the seed of a training."""
HELD_OUT = 0.1  # the fraction of the images that finished models are measured on, where the data are in no splits
MEASURED, DIVERGED = "measured.json", "diverged.json"  # what a comparison adds to a run folder
COUNTED_STEPS = 100  # steps over which the cost of one is averaged, as a keep schedule changes it on the way
SHARED = ("objective", "augment", "optimizer", "batch_size", "ema", "whiten", "validation", "split_seed")
"""Fields of a training that all cells have in common, but for the learning rate."""


@dataclass(frozen=True)
class CompareContext(Study):
    """What all trainings of a comparison are done with."""

    request: CompareRequest
    data: Data

    def cell_place(self, key: CellKey, candidate: Candidate) -> Path:
        return self.folder / "cells" / candidate.folder / f"{key.fraction:g}" / f"seed-{key.seed}"


def check_training(context: CompareContext, candidate: Candidate) -> Training:
    """The training that a model would get, refused now if it cannot be: not when it is its turn, hours later."""
    requests = (unit_request(context, candidate, fraction, 0) for fraction in sorted(context.request.fractions))
    training = [choose_training(request, context.data, None) for request in requests][-1]  # on the most images
    if not training.validation and "val" not in context.data.splits:
        raise UserError("validation=0: without validation images no learning rate can be chosen; leave it out.")
    check_training_memory(training, len(split_for(training, context.data).train), context.runtime.world)
    return training


def shared_settings(trainings: Mapping[str, Training]) -> dict[str, Any]:
    """How all models are trained; refused where the recipe would make a difference between them."""
    found: dict[str, dict[str, Any]] = {}
    for name, training in trainings.items():
        fields = training_to_json(training)
        fields["optimizer"].pop("learning_rate")
        found[name] = {"recipe": RECIPE, **{field: fields[field] for field in SHARED}}
    if not found:
        return {}
    first, *others = found
    for other in others:
        if differing := [field for field in found[first] if found[first][field] != found[other][field]]:
            sides = [trainings[name].model.image_size[0] for name in (first, other)]
            raise UserError(
                f"models: {first} looks at {sides[0]} pixels and {other} at {sides[1]}, for which the recipe has "
                f"another {differing[0]}; give one image_size for all, or the same after each name's @."
            )
    return found[first]


def unit_request(
    context: CompareContext,
    candidate: Candidate,
    fraction: float,
    seed: int,
    overrides: Mapping[str, str] | None = None,
    **length: Any,
) -> FitRequest:
    """The request of one training. length: its budget, or its epochs."""
    changed = {**override_texts(context.request.overrides), **candidate.overrides, **(overrides or {})}
    if "val" not in context.data.splits:
        changed["split_seed"] = str(SPLIT_SEED)
    if fraction < 1:
        changed["share"] = f"{fraction:g}"
    size = None if candidate.model is None or "@" in candidate.model else context.request.image_size
    return FitRequest(
        context.request.data,
        model=candidate.model,
        image_size=size,
        recipe=RECIPE,
        seed=seed,
        overrides=changed,
        **length,
    )


def measured_split(data: Data) -> tuple[Split, Source]:
    """What accuracies are measured on: the test split, else the validation images, else some that are set aside."""
    data = data if "test" in data.splits else data.with_validation(HELD_OUT, SPLIT_SEED)
    split: Split = "test" if "test" in data.splits else "val"
    return split, data.splits[split]


def try_rate(context: CompareContext, candidate: Candidate, rate: float, plan: ComparePlan) -> tuple[Trial, bool]:
    """A short training, judged by its validation images; and whether it was done before."""
    budget = f"{TRIAL * plan.cell_seconds:.2f}s"
    request = unit_request(context, candidate, plan.tuned_on, 0, _shared_overrides(rate, plan), budget=budget)
    place = context.folder / "tuning" / candidate.folder / f"{rate:g}"
    before = is_done(place)
    result = _train_unit(context, candidate, request, place, plan)
    if result is None:
        return Trial(candidate.name, rate, 0.0, None, plan.val_images, Cost(), diverged=True), before
    found = result.validation
    assert found is not None
    return Trial(candidate.name, rate, found.top1, found.loss, found.n, result.spent), before


def learning_rates(training: Training) -> list[float]:
    return [float(f"{factor * training.optimizer.learning_rate:.3g}") for factor in GRID]


def train_cell(
    context: CompareContext, key: CellKey, candidate: Candidate, learning_rate: float, plan: ComparePlan
) -> Cell:
    """One cell, in its time or, where they are to be equal, with its operations; measured as all are."""
    place = context.cell_place(key, candidate)
    training = choose_training(unit_request(context, candidate, key.fraction, key.seed), context.data, None)
    split = split_for(training, context.data)
    length: dict[str, Any] = {"budget": f"{plan.cell_seconds}s"}
    if plan.cell_flops is not None:
        length = {"epochs": equal_epochs(training, len(split.train), plan.cell_flops)}
    overrides = _shared_overrides(learning_rate, plan)
    request = unit_request(context, candidate, key.fraction, key.seed, overrides, **length)
    result = _train_unit(context, candidate, request, place, plan)
    n = plan.measured_images
    if result is None:  # it is counted as one that has none of the images right
        return Cell(*key, str(place), None, 0.0, wilson(0, n), n, None, None, diverged=True)
    kept = place / MEASURED
    if kept.exists():
        found = ClassificationResult.from_json(read_json(kept))
    else:
        images = random_subset(measured_split(split)[1], SPLIT_SEED, n)
        found = measure_model(context, open_classifier(place), images)
        write_file(kept, json.dumps(found.to_json()) + "\n")
    saved = read_config(place)
    assert saved is not None
    optimizer = saved.training.optimizer
    return Cell(
        *key,
        place=str(place),  # where it lies now; the folder may have been moved since
        images=result.images,
        accuracy=found.top1,
        interval=found.top1_interval,
        n=found.n,
        validation=None if result.validation is None else result.validation.top1,
        spent=result.spent,
        settings={
            "optimizer": optimizer.name,
            "learning_rate": optimizer.learning_rate,
            "weight_decay": optimizer.weight_decay,
            "batch_size": min(saved.training.batch_size, result.images),
            "steps": result.steps,
            "best_step": result.best_step,
        },
    )


def measure_model(
    context: CompareContext, bundle: Bundle, images: Source, workers: int | None = None
) -> ClassificationResult:
    engine = open_in_torch(bundle, str(context.runtime.device))
    return measure_classifier(engine, images, workers=context.runtime.workers if workers is None else workers)[0]


def _shared_overrides(learning_rate: float, plan: ComparePlan) -> dict[str, str]:
    return {"optimizer.learning_rate": str(learning_rate), "evaluations": str(plan.evaluations)}


def _train_unit(
    context: CompareContext, candidate: Candidate, request: FitRequest, place: Path, plan: ComparePlan
) -> FitResult | None:
    """What came of a training; None where it diverged, now or before: once more it would do so again."""
    if (place / DIVERGED).exists():
        return None
    method = Labelled(
        data=lambda _: context.data,
        measured=("val",),
        validation=SharedValidation(SPLIT_SEED, plan.val_images, plan.image_seconds[candidate.name]),
        page=False,
        writing_seconds=1.0,
    )
    try:
        return context.train(request, place, method)
    except DivergedError as error:
        write_file(place / DIVERGED, json.dumps({"diverged": str(error)}) + "\n")
        return None


def is_done(place: Path) -> bool:
    """Whether nothing is left to be trained there."""
    return (place / RESULT).exists() or (place / DIVERGED).exists()


def equal_epochs(training: Training, images: int, flops: float) -> float:
    """Epochs after which a training on so many images has done about so many operations, forward and backward."""
    batch = min(training.batch_size, images)
    return max(1, round(flops / step_flops(training, images))) / (images // batch)


def step_flops(training: Training, images: int) -> float:
    """Floating-point operations of one step of a training on so many images, forward and backward."""
    batch = min(training.batch_size, images)
    return (
        training_work(training, COUNTED_STEPS * batch, StepSchedule(COUNTED_STEPS), COUNTED_STEPS).flops / COUNTED_STEPS
    )


def model_bias(bundle: Bundle, images: Source, saved: Path, workers: int) -> Bias:
    """The bias of a model on these images; read from the file `saved` if it was measured before."""
    measured = {"weights": weights_digest(bundle.model), "images": [images.key(i) for i in range(len(images))]}
    try:
        found = read_json(saved) if saved.exists() else {}
        if all(found.get(name) == value for name, value in measured.items()):
            return Bias.from_json(found["bias"])
    except (UserError, KeyError, TypeError, ValueError, AttributeError):  # damaged: it is measured again
        pass
    batch = choose_bias_batch(bundle)
    source = images.relabelled(bundle.labels)
    bias = measure_bias(bundle.model, bundle.preprocess, source, batch_size=batch, workers=workers)
    write_file(saved, json.dumps({**measured, "bias": bias.to_json()}) + "\n")
    return bias
