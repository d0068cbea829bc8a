"""The models of a comparison, and their trainings: trials of learning rates, and cells, each in a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from vitreous.explain.analysis.bias_result import Bias
from vitreous.inference.engine import open_in_torch
from vitreous.inference.evaluation import measure_classifier
from vitreous.inference.memory_needs import choose_bias_batch
from vitreous.inference.opening import open_classifier
from vitreous.inputs import counted, read_json
from vitreous.storage.files import write_file
from vitreous.studies.compare.plan import RATE_FACTORS, TRIAL_FRACTION, Candidate, CellKey, ComparePlan
from vitreous.studies.compare.result import Cell, Trial, fraction_text
from vitreous.studies.folder import Study
from vitreous.studies.requests import CompareRequest
from vitreous.training.folder import RESULT, read_config, training_to_json
from vitreous.training.labelled import Labelled, SharedValidation
from vitreous.training.loop import DivergedError
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult
from vitreous.training.start import choose_training, split_for
from vitreous.training.step import StepSchedule, check_training_memory, training_work
from vitreous.weights.bundle import Bundle, weights_digest

RECIPE = "plain"  # the one recipe for every model: nothing in it can only be done by some networks
SPLIT_SEED = 0
"""Of splits and random subsets: the same for all trainings, whatever their own seed."""
HELD_OUT_FRACTION = 0.1  # of the images, on which finished models are measured if the data have no splits
MEASURED_FILE, DIVERGED_FILE = "measured.json", "diverged.json"  # what a comparison adds to a run folder
COUNTED_STEPS = 100  # steps over which the cost of one is averaged, as a keep schedule changes it on the way
SHARED_FIELDS = ("objective", "augment", "optimizer", "batch_size", "ema", "whiten", "validation", "split_seed")
"""Fields of a training that all cells have in common, but for the learning rate."""


@dataclass(frozen=True)
class CompareContext(Study):
    """The models of a comparison, opened, and what they are trained and measured on."""

    request: CompareRequest
    data: Data
    candidates: dict[str, Candidate]
    trainings: dict[str, Training]  # of each model to train, on the most images
    finished: dict[str, Bundle]  # models that are measured as they are
    settings: dict[str, Any]  # what all trainings share
    split: Split
    images: Source  # of this split: all that accuracies may be of

    def cell_place(self, key: CellKey) -> Path:
        return self.folder / "cells" / self.candidates[key.model].folder / f"{key.fraction:g}" / f"seed-{key.seed}"


def open_context(study: Study, request: CompareRequest, data: Data, candidates: Sequence[Candidate]) -> CompareContext:
    """Refuse a model that cannot be trained or measured here now, not when it is its turn, hours later."""
    trainings: dict[str, Training] = {}
    for one in candidates:
        for fraction in sorted(request.fractions) if one.model is not None else ():  # the most images last
            trainings[one.name] = choose_training(_training_request(request, data, one, fraction), data, None)
    for training in trainings.values():
        if not training.validation and "val" not in data.splits:
            raise UserError("validation=0: without validation images no learning rate can be chosen; leave it out.")
        check_training_memory(training, len(split_for(training, data).train), study.runtime.world)
    finished = {one.name: open_classifier(one.name) for one in candidates if one.model is None}
    split: Split = "test" if "test" in data.splits else "val"
    divided = split_for(next(iter(trainings.values())), data) if trainings else data
    images = (divided if split == "test" else divided.with_validation(HELD_OUT_FRACTION, SPLIT_SEED)).splits[split]
    for bundle in finished.values():
        images.relabelled(bundle.labels)  # refused if it does not have the classes of the data
    return CompareContext(
        study.folder,
        study.runtime,
        study.callbacks,
        request,
        data,
        candidates={one.name: one for one in candidates},
        trainings=trainings,
        finished=finished,
        settings=shared_settings(trainings),
        split=split,
        images=images,
    )


def shared_settings(trainings: Mapping[str, Training]) -> dict[str, Any]:
    """How all models are trained; refused where the recipe would make a difference between them."""
    found: dict[str, dict[str, Any]] = {}
    for name, training in trainings.items():
        fields = training_to_json(training)
        fields["optimizer"].pop("learning_rate")
        found[name] = {"recipe": RECIPE, **{field: fields[field] for field in SHARED_FIELDS}}
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


def _training_request(
    request: CompareRequest,
    data: Data,
    candidate: Candidate,
    fraction: float,
    seed: int = 0,
    overrides: Mapping[str, str] | None = None,
    **length: Any,
) -> FitRequest:
    """length: its budget, or its epochs."""
    changed = {**override_texts(request.overrides), **candidate.overrides, **(overrides or {})}
    if "val" not in data.splits:
        changed["split_seed"] = str(SPLIT_SEED)
    if fraction < 1:
        changed["share"] = f"{fraction:g}"
    size = None if candidate.model is None or "@" in candidate.model else request.image_size
    return FitRequest(
        request.data, model=candidate.model, image_size=size, recipe=RECIPE, seed=seed, overrides=changed, **length
    )


def try_rate(context: CompareContext, name: str, rate: float, plan: ComparePlan, number: str) -> Trial:
    """A short training, measured on validation images. number: "trial 1 of 6"."""
    place = context.folder / "tuning" / context.candidates[name].folder / f"{rate:g}"
    was_done = is_done(place)
    result = _train(
        context, CellKey(name, plan.tuned_on, 0), rate, plan, place, budget=f"{TRIAL_FRACTION * plan.cell_seconds:.2f}s"
    )
    if result is None:
        trial, found = Trial(name, rate, 0.0, None, plan.val_images, Cost(), diverged=True), "diverged"
    else:
        judged = result.validation
        assert judged is not None
        trial = Trial(name, rate, judged.top1, judged.loss, judged.n, result.spent)
        found = f"{trial.accuracy:.1%} of {trial.n:,} validation images, {trial.spent.seconds:.0f} s"
    if not was_done:
        context.callbacks.message(f"{number} ({name}, learning rate {rate:g}): {found}")
    return trial


def learning_rates(training: Training) -> list[float]:
    return [float(f"{factor * training.optimizer.learning_rate:.3g}") for factor in RATE_FACTORS]


def train_cell(context: CompareContext, key: CellKey, rate: float, plan: ComparePlan, number: str) -> Cell:
    """One cell, trained for its time or its floating-point operations, and measured. number: "cell 1 of 12"."""
    place, n = context.cell_place(key), plan.measured_images
    was_done = is_done(place)
    length: dict[str, Any] = {"budget": f"{plan.cell_seconds}s"}
    if plan.cell_flops is not None:
        request = _training_request(
            context.request, context.data, context.candidates[key.model], key.fraction, key.seed
        )
        training = choose_training(request, context.data, None)
        length = {"epochs": equal_epochs(training, len(split_for(training, context.data).train), plan.cell_flops)}
    result = _train(context, key, rate, plan, place, **length)
    if result is None:  # it is counted as one that has none of the images right
        cell, found = Cell(*key, str(place), None, 0.0, wilson(0, n), n, None, None, diverged=True), "diverged"
    else:
        cell = _measure_cell(context, key, result, place, n)
        found = f"{cell.accuracy:.1%} of {counted(cell.n, f'{context.split} image')}, {counted(result.steps, 'step')}, "
        found += f"{result.spent.seconds:.0f} s"
    if not was_done:
        what = f"{key.model}, {fraction_text(key.fraction)} of the images, seed {key.seed}"
        context.callbacks.message(f"{number} ({what}): {found}")
    return cell


def _measure_cell(context: CompareContext, key: CellKey, result: FitResult, place: Path, n: int) -> Cell:
    measured = place / MEASURED_FILE
    if measured.exists():
        found = ClassificationResult.from_json(read_json(measured))
    else:
        found = measure_model(context, open_classifier(place), random_subset(context.images, SPLIT_SEED, n))
        write_file(measured, json.dumps(found.to_json()) + "\n")
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


def measure_finished(context: CompareContext, name: str, n: int) -> Cell:
    """A model that is not trained here, on the images that all are measured on."""
    bundle = context.finished[name]
    found = measure_model(context, bundle, random_subset(context.images, SPLIT_SEED, n))
    context.callbacks.message(f"{name}: {found.top1:.1%} of {counted(found.n, f'{context.split} image')}")
    spent = bundle.info.get("spent")
    cost = Cost(**spent) if isinstance(spent, dict) else None
    return Cell(name, None, None, name, None, found.top1, found.top1_interval, found.n, None, cost)


def measure_model(
    context: CompareContext, bundle: Bundle, images: Source, workers: int | None = None
) -> ClassificationResult:
    engine = open_in_torch(bundle, str(context.runtime.device))
    return measure_classifier(engine, images, workers=context.runtime.workers if workers is None else workers)[0]


def _train(
    context: CompareContext, key: CellKey, rate: float, plan: ComparePlan, place: Path, **length: Any
) -> FitResult | None:
    """What came of a training; None if it diverged, now or before: once more it would do so again."""
    if (place / DIVERGED_FILE).exists():
        return None
    overrides = {"optimizer.learning_rate": str(rate), "evaluations": str(plan.evaluations)}
    request = _training_request(
        context.request, context.data, context.candidates[key.model], key.fraction, key.seed, overrides, **length
    )
    method = Labelled(
        data=lambda _: context.data,
        measured=("val",),
        validation=SharedValidation(SPLIT_SEED, plan.val_images, plan.image_seconds[key.model]),
        page=False,
        writing_seconds=1.0,
    )
    try:
        return context.train(request, place, method)
    except DivergedError as error:
        write_file(place / DIVERGED_FILE, json.dumps({"diverged": str(error)}) + "\n")
        return None


def is_done(place: Path) -> bool:
    """Whether nothing is left to train in this folder."""
    return (place / RESULT).exists() or (place / DIVERGED_FILE).exists()


def equal_epochs(training: Training, images: int, flops: float) -> float:
    """Epochs of a training on `images` images that take about `flops` operations, forward and backward."""
    batch = min(training.batch_size, images)
    return max(1, round(flops / step_flops(training, images))) / (images // batch)


def step_flops(training: Training, images: int) -> float:
    """Floating-point operations of one step of a training on `images` images, forward and backward."""
    batch = min(training.batch_size, images)
    return (
        training_work(training, COUNTED_STEPS * batch, StepSchedule(COUNTED_STEPS), COUNTED_STEPS).flops / COUNTED_STEPS
    )


def model_bias(context: CompareContext, cell: Cell, images: Source) -> Bias:
    """The bias of a cell's model on these images; read from its file if it was measured before."""
    bundle = open_classifier(cell.place)  # its network may be moved, and follows gradients
    saved = context.folder / "bias" / f"{context.candidates[cell.model].folder}.json"
    measured = {"weights": weights_digest(bundle.model), "images": [images.key(i) for i in range(len(images))]}
    try:
        found = read_json(saved) if saved.exists() else {}
        if all(found.get(name) == value for name, value in measured.items()):
            return Bias.from_json(found["bias"])
    except (UserError, KeyError, TypeError, ValueError, AttributeError):  # damaged: it is measured again
        pass
    source, workers = images.relabelled(bundle.labels), context.runtime.workers
    batch = choose_bias_batch(bundle)
    bias = measure_bias(bundle.model, bundle.preprocess, source, batch_size=batch, workers=workers)
    write_file(saved, json.dumps({**measured, "bias": bias.to_json()}) + "\n")
    return bias
