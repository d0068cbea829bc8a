"""A comparison of models: speeds are measured, learning rates tried, cells trained one by one; then who is ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.callbacks import Callbacks
from vitreous.config.fields import from_fields
from vitreous.config.model import with_article
from vitreous.config.train import Training
from vitreous.data.duplicates import note_duplicates
from vitreous.data.opening import open_dataset
from vitreous.data.rng import balanced_order
from vitreous.data.source import Source, Split, random_subset
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.explain.analysis.bias_numbers import Bias
from vitreous.inference.opening import open_classifier
from vitreous.inference.speed import machine_features
from vitreous.interrupt import Interrupted
from vitreous.model.family import build_network, count_flops, count_parameters
from vitreous.studies.compare.cells import (
    SPLIT_SEED,
    CompareContext,
    check_training,
    is_done,
    learning_rates,
    measure_model,
    measured_split,
    model_bias,
    shared_settings,
    step_flops,
    train_cell,
    try_rate,
)
from vitreous.studies.compare.page import comparison_page
from vitreous.studies.compare.plan import (
    GRID,
    MAX_BIAS_IMAGES,
    TRIAL,
    Candidate,
    ComparePlan,
    ModelSpeed,
    cells_of,
    check_fits,
    plan_comparison,
    read_candidates,
)
from vitreous.studies.compare.result import Cell, Compared, Comparison, Trial, first_on_most, fraction_text, remarks
from vitreous.studies.folder import StoppedError, StudyConfig, hold_study, open_deadline, open_study, write_result
from vitreous.studies.requests import CompareRequest
from vitreous.studies.timing import seconds_per_image, seconds_per_step
from vitreous.training.deadline import Deadline
from vitreous.training.folder import CONFIG, DataIdentity
from vitreous.training.start import Runtime, split_for
from vitreous.weights.bundle import Bundle

WRITING_SECONDS = 2.0  # what the page takes on two quiet cores
MAX_TIMED_STEP = 0.1
"""The fraction of a budget that a step which is timed may take: a longer one does not fit often enough anyway."""
SETTLED = ("evaluations", "val_images", "measured_images")  # fields of the plan that the page shows
GROWING = ("models", "fractions", "seeds")  # fields of a request that may grow when a comparison goes on


def compare(
    request: CompareRequest, folder: Path, runtime: Runtime, callbacks: Callbacks, *, overwrite: bool = False
) -> Comparison:
    """Train every model with every fraction of the images and every seed, or go on with that; say who is ahead."""
    candidates = read_candidates(request.models, request.image_size)
    request = replace(request, models=tuple(candidate.name for candidate in candidates))
    if request.budget is None and any(candidate.model is not None for candidate in candidates):
        raise UserError("budget: none given; say how long everything may take, such as 10m or 2h.")
    deadline = open_deadline(request.budget, WRITING_SECONDS, runtime, callbacks)
    data = note_duplicates(open_dataset(request.data))
    config = StudyConfig(request, {"data": DataIdentity.of(data)})
    saved = open_study(folder, config, {"data": str(request.data)}, (*GROWING, "budget"), overwrite=overwrite)
    if saved is not None:
        _check_growth(saved, request, folder)
    context = CompareContext(folder, runtime, callbacks, request, data)
    models = _open_models(context, candidates)
    plan = _settle(context, saved, models, deadline)
    trials, cells, biases = list[Trial](), list[Cell](), dict[str, Bias]()
    complete = False
    with hold_study(folder, "compare", saved, callbacks, overwrite):
        replace(config, plan={} if plan is None else asdict(plan)).write(folder)
        try:
            if plan is not None:
                _say_plan(context, plan, models)
                _try_rates(context, models, plan, trials)
                _train_cells(context, models, plan, choose_rates(trials, models.trainings, plan), cells)
            _measure_finished(context, models, plan, cells)
            _measure_biases(context, models, plan, cells, biases)
            complete = True
        except (StoppedError, Interrupted):  # what is there by then is written
            pass
        result = _result(context, models, plan, config.data["data"], trials, cells, biases, complete)
        if cells or complete:
            write_result(folder, "compare", result.to_json(), comparison_page(result))
    return result


@dataclass(frozen=True)
class ComparedModels:
    """The models of a comparison, opened, and what they are measured on."""

    candidates: tuple[Candidate, ...]
    trainings: dict[str, Training]  # of each model to train, on the most images
    finished: dict[str, Bundle]
    settings: dict[str, Any]  # what all trainings share
    split: Split
    images: Source  # all that accuracies may be of

    @property
    def to_train(self) -> dict[str, Candidate]:
        return {one.name: one for one in self.candidates if one.name in self.trainings}


def _open_models(context: CompareContext, candidates: tuple[Candidate, ...]) -> ComparedModels:
    """Refuse a model that cannot be trained or measured here, before any is."""
    trainings = {one.name: check_training(context, one) for one in candidates if one.model is not None}
    finished = {one.name: open_classifier(one.name) for one in candidates if one.model is None}
    data = context.data
    split, images = measured_split(split_for(next(iter(trainings.values())), data) if trainings else data)
    for bundle in finished.values():
        images.relabelled(bundle.labels)
    return ComparedModels(candidates, trainings, finished, shared_settings(trainings), split, images)


def _check_growth(saved: StudyConfig, request: CompareRequest, folder: Path) -> None:
    """Refuse to go on with less than was asked for before, or with another budget for what was planned with one."""
    before = saved.request
    assert isinstance(before, CompareRequest)
    if saved.plan:
        saved.check_same(replace(saved, request=replace(before, budget=request.budget)), {}, folder)
    for name in GROWING:
        theirs, ours = getattr(before, name), getattr(request, name)
        if ours < theirs if isinstance(theirs, int) else not set(theirs) <= set(ours):
            raise UserError(
                f"{folder}: holds a comparison with {name}={theirs!r}, not {ours!r}; more may be added, but none left "
                "out: name all, begin anew with --overwrite, or write to another folder (--out)."
            )


def _settle(
    context: CompareContext, saved: StudyConfig | None, models: ComparedModels, deadline: Deadline | None
) -> ComparePlan | None:
    """What every training gets: as it was settled before, or planned now; None where nothing is trained."""
    before = from_fields(ComparePlan, saved.plan, context.folder / CONFIG) if saved is not None and saved.plan else None
    if deadline is None or not models.trainings:
        return before
    known = {} if before is None else before.image_seconds
    limit = MAX_TIMED_STEP * deadline.seconds
    speeds = {
        one.name: _measure_speed(context, models, one.name, limit) for one in models.candidates if one.name not in known
    }
    if before is not None:
        for name in speeds.keys() & models.trainings.keys():
            check_fits(name, speeds[name], before, context.folder)
        return replace(before, image_seconds={**known, **{name: speed.image for name, speed in speeds.items()}})
    any_training = next(iter(models.trainings.values()))
    return plan_comparison(
        context.request,
        speeds,
        deadline,
        val=len(split_for(any_training, context.data).splits["val"]),
        measured=len(models.images),
        evaluations=any_training.evaluations,
    )


def _measure_speed(context: CompareContext, models: ComparedModels, name: str, limit: float) -> ModelSpeed:
    """How long a model takes for an image, and for a step if it is to be trained; see `seconds_per_step`."""
    training, bundle = models.trainings.get(name), models.finished.get(name)
    if training is not None:
        bundle = Bundle(build_network(training.model, seed=0).eval(), training.preprocess, context.data.classes)
    assert bundle is not None
    image = seconds_per_image(lambda some: measure_model(context, bundle, some, workers=0), models.images)
    if training is None:
        return ModelSpeed(image)
    source = split_for(training, context.data).train
    step = seconds_per_step(training, source, context.runtime, limit)
    return ModelSpeed(image, step, step_flops(training, len(source)))


def _say_plan(context: CompareContext, plan: ComparePlan, models: ComparedModels) -> None:
    say, request, trial = context.callbacks.message, context.request, f"{TRIAL * plan.cell_seconds:.3g} s"
    keys = cells_of(list(models.to_train), request)
    done = sum(is_done(context.cell_place(key, models.to_train[key.model])) for key in keys)
    average = " on average" if request.equal == "flops" else ""
    say(f"{len(keys)} cells of {plan.cell_seconds:g} s each{average}{f' ({done} are finished)' if done else ''}.")
    say(
        f"Before them, {len(models.to_train) * len(GRID)} trials of {trial} choose learning rates."
        if plan.tuned
        else f"There is no time to try learning rates (a trial of {trial} is too short for the slowest model): every "
        "model has the recipe's own."
    )
    say(
        f"In every training {plan.evaluations} evaluation{'s' * (plan.evaluations > 1)} of the same "
        f"{plan.val_images:,} validation images; accuracies are of the same {plan.measured_images:,} images."
    )
    if plan.cell_flops is not None:
        say(f"Each cell trains with {plan.cell_flops:.3g} floating-point operations.")


def _try_rates(context: CompareContext, models: ComparedModels, plan: ComparePlan, trials: list[Trial]) -> None:
    total = len(models.trainings) * len(GRID)
    for name, candidate in models.to_train.items() if plan.tuned else ():
        for rate in learning_rates(models.trainings[name]):
            trial, before = try_rate(context, candidate, rate, plan)
            trials.append(trial)
            if not before:
                found = f"{trial.accuracy:.1%} of {trial.n:,} validation images, {trial.spent.seconds:.0f} s"
                found = "diverged" if trial.diverged else found
                context.callbacks.message(f"trial {len(trials)} of {total} ({name}, learning rate {rate:g}): {found}")


def choose_rates(
    trials: Sequence[Trial], trainings: Mapping[str, Training], plan: ComparePlan | None
) -> dict[str, float]:
    """Of each model the learning rate with the best validation accuracy, of equal ones that with the lower loss.

    Without trials, the recipe's own. A model that diverged at every rate has none.
    """
    if plan is not None and not plan.tuned:
        return {name: training.optimizer.learning_rate for name, training in trainings.items()}
    chosen = {}
    for name in trainings:
        ended = [trial for trial in trials if trial.model == name and not trial.diverged]
        if ended:
            chosen[name] = max(ended, key=lambda trial: (trial.accuracy, -(trial.loss or 0.0))).learning_rate
    return chosen


def _train_cells(
    context: CompareContext, models: ComparedModels, plan: ComparePlan, rates: Mapping[str, float], cells: list[Cell]
) -> None:
    to_train, say = models.to_train, context.callbacks.message
    for name in to_train.keys() - rates.keys():
        say(f"{name}: diverged at every learning rate, so it is not trained further.")
    keys = cells_of([name for name in to_train if name in rates], context.request)
    for number, key in enumerate(keys, start=1):
        before = is_done(context.cell_place(key, to_train[key.model]))
        cell = train_cell(context, key, to_train[key.model], rates[key.model], plan)
        cells.append(cell)
        if not before:
            what = f"{key.model}, {fraction_text(key.fraction)} of the images, seed {key.seed}"
            found = f"{cell.accuracy:.1%} of {cell.n:,} images, {cell.settings.get('steps', 0):,} steps"
            found = "diverged" if cell.spent is None else f"{found}, {cell.spent.seconds:.0f} s"
            say(f"cell {number} of {len(keys)} ({what}): {found}")


def _measure_finished(
    context: CompareContext, models: ComparedModels, plan: ComparePlan | None, cells: list[Cell]
) -> None:
    images = random_subset(models.images, SPLIT_SEED, len(models.images) if plan is None else plan.measured_images)
    for name, bundle in models.finished.items():
        found = measure_model(context, bundle, images)
        context.callbacks.message(f"{name}: {found.top1:.1%} of {found.n:,} images")
        spent = bundle.info.get("spent")
        cost = Cost(**spent) if isinstance(spent, dict) else None
        cells.append(Cell(name, None, None, name, None, found.top1, found.top1_interval, found.n, None, cost))


def _measure_biases(
    context: CompareContext,
    models: ComparedModels,
    plan: ComparePlan | None,
    cells: Sequence[Cell],
    biases: dict[str, Bias],
) -> None:
    """Of each model's first training on most images, and of the finished ones: on so many images of all classes alike,
    the same for all; none where there is no time for any."""
    count = MAX_BIAS_IMAGES if plan is None else plan.bias_images
    chosen = {cell.model: cell for cell in first_on_most(cells)} if count else {}
    images = models.images.subset(balanced_order(models.images.labels, SPLIT_SEED)[:count])
    for one in models.candidates:  # in their order, and so in their colours
        if one.name in chosen:
            bundle = open_classifier(chosen[one.name].place)  # its network may be moved, and follows gradients
            kept = context.folder / "bias" / f"{one.folder}.json"
            biases[one.name] = model_bias(bundle, images, kept, context.runtime.workers)


def _result(
    context: CompareContext,
    models: ComparedModels,
    plan: ComparePlan | None,
    identity: DataIdentity,
    trials: Sequence[Trial],
    cells: Sequence[Cell],
    biases: dict[str, Bias],
    complete: bool,
) -> Comparison:
    """What there is so far."""
    request, data = context.request, context.data
    rates = choose_rates(trials, models.trainings, plan)
    configs = {name: training.model for name, training in models.trainings.items()}
    configs |= {name: bundle.model.config for name, bundle in models.finished.items()}
    compared = tuple(
        Compared(
            name,
            with_article(configs[name].describe()),
            count_parameters(configs[name]),
            count_flops(configs[name]),
            configs[name].image_size,
            name in models.trainings,
            rates.get(name),
        )
        for name in (one.name for one in models.candidates)
    )
    settled = {} if plan is None else {name: getattr(plan, name) for name in SETTLED}
    found = remarks(
        compared,
        cells,
        trials,
        plan,
        split=models.split,
        held_out=models.split not in data.splits,
        total=len(models.images),
        measured=len(models.images) if plan is None else plan.measured_images,
    )
    return Comparison(
        out=str(context.folder),
        finished=complete,
        data=str(request.data),
        classes=len(data.classes),
        splits=identity.splits,
        digests=identity.digests,
        split=models.split,
        equal=request.equal,
        budget=request.budget,
        cell_seconds=None if plan is None else plan.cell_seconds,
        cell_flops=None if plan is None else plan.cell_flops,
        settings=models.settings and {**models.settings, **settled},
        models=compared,
        cells=tuple(cells),
        tried=tuple(trials),
        machine=machine_features(context.runtime.device),
        remarks=(*data.notes, *found),
        biases=biases,
    )
