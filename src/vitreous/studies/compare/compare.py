"""A comparison of models: measure speeds, try learning rates, train the cells one by one, say who is ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from vitreous.callbacks import Callbacks
from vitreous.config.fields import from_fields
from vitreous.config.model import with_article
from vitreous.config.train import Training
from vitreous.data.duplicates import note_duplicates
from vitreous.data.opening import open_dataset
from vitreous.data.rng import balanced_order
from vitreous.errors import UserError
from vitreous.explain.analysis.bias_result import Bias
from vitreous.inference.speed import machine_features
from vitreous.inputs import counted
from vitreous.interrupt import Interrupted
from vitreous.model.family import build_network, count_flops, count_parameters
from vitreous.studies.compare.cells import (
    SPLIT_SEED,
    CompareContext,
    is_done,
    learning_rates,
    measure_finished,
    measure_model,
    model_bias,
    open_context,
    step_flops,
    train_cell,
    try_rate,
)
from vitreous.studies.compare.page import comparison_page
from vitreous.studies.compare.plan import (
    MAX_BIAS_IMAGES,
    RATE_FACTORS,
    TRIAL_FRACTION,
    ComparePlan,
    ModelSpeed,
    cells_of,
    check_fits,
    plan_comparison,
    read_candidates,
)
from vitreous.studies.compare.result import Cell, ComparedModel, Comparison, Trial, first_on_most, remarks
from vitreous.studies.folder import (
    StoppedError,
    Study,
    StudyConfig,
    hold_study,
    open_deadline,
    open_study,
    write_result,
)
from vitreous.studies.requests import CompareRequest
from vitreous.studies.timing import seconds_per_image, seconds_per_step
from vitreous.training.deadline import Deadline
from vitreous.training.folder import CONFIG, DataIdentity
from vitreous.training.start import Runtime, split_for
from vitreous.weights.bundle import Bundle

WRITING_SECONDS = 2.0  # what the page takes on two quiet cores
MAX_TIMED_STEP = 0.1
"""The fraction of a budget that a step which is timed may take: a longer one does not fit often enough anyway."""
SHOWN_PLAN_FIELDS = ("evaluations", "val_images", "measured_images")  # fields of the plan that the page shows
GROWING_FIELDS = ("models", "fractions", "repeats")  # fields of a request that may grow when a comparison goes on


def compare(
    request: CompareRequest, folder: Path, runtime: Runtime, callbacks: Callbacks, *, overwrite: bool = False
) -> Comparison:
    """Train every model with every fraction of the images and every seed, or resume that; say who is ahead."""
    candidates = read_candidates(request.models, request.image_size)
    request = replace(request, models=tuple(candidate.name for candidate in candidates))
    if request.budget is None and any(candidate.model is not None for candidate in candidates):
        raise UserError("budget: none given; say how long everything may take, such as 10m or 2h.")
    deadline = open_deadline(request.budget, WRITING_SECONDS, runtime, callbacks)
    data = note_duplicates(open_dataset(request.data))
    config = StudyConfig(request, {"data": DataIdentity.of(data)})
    saved = open_study(folder, config, {"data": str(request.data)}, (*GROWING_FIELDS, "budget"), overwrite=overwrite)
    if saved is not None:
        _check_growth(saved, request, folder)
    context = open_context(Study(folder, runtime, callbacks), request, data, candidates)
    plan = _plan(context, saved, deadline)
    trials, cells, biases = list[Trial](), list[Cell](), dict[str, Bias]()
    complete = False
    with hold_study(folder, "compare", saved, callbacks, overwrite):
        replace(config, plan={} if plan is None else asdict(plan)).write(folder)
        try:
            if plan is not None:
                _train_all(context, plan, trials, cells)
            for name in context.finished:
                cells.append(measure_finished(context, name, _measured_count(context, plan)))
            count = MAX_BIAS_IMAGES if plan is None else plan.bias_images  # 0 if there is no time for any
            chosen = {cell.model: cell for cell in first_on_most(cells)} if count else {}
            images = context.images.subset(balanced_order(context.images.labels, SPLIT_SEED)[:count])
            for name in context.candidates:  # in their order, and so in their colours
                if name in chosen:
                    biases[name] = model_bias(context, chosen[name], images)
            complete = True
        except (StoppedError, Interrupted):  # what is there by then is written
            pass
        result = _result(context, plan, config.data["data"], trials, cells, biases, complete)
        if cells or complete:
            write_result(folder, "compare", result.to_json(), comparison_page(result))
    return result


def _train_all(context: CompareContext, plan: ComparePlan, trials: list[Trial], cells: list[Cell]) -> None:
    """Try learning rates, then train each cell; those that are finished are only read."""
    say = context.callbacks.message
    _say_plan(context, plan)
    total = len(context.trainings) * len(RATE_FACTORS)
    for name, training in context.trainings.items() if plan.tuned else ():
        for rate in learning_rates(training):
            trials.append(try_rate(context, name, rate, plan, f"trial {len(trials) + 1} of {total}"))
    rates = choose_rates(trials, context.trainings, plan)
    for name in context.trainings.keys() - rates.keys():
        say(f"{name}: diverged at every learning rate, so it is not trained further.")
    keys = cells_of([name for name in context.trainings if name in rates], context.request)
    for number, key in enumerate(keys, start=1):
        cells.append(train_cell(context, key, rates[key.model], plan, f"cell {number} of {len(keys)}"))


def _check_growth(saved: StudyConfig, request: CompareRequest, folder: Path) -> None:
    """Refuse to go on with less than was asked for before, or with another budget for what was planned with one."""
    before = saved.request
    assert isinstance(before, CompareRequest)
    if saved.plan:
        saved.check_same(replace(saved, request=replace(before, budget=request.budget)), {}, folder)
    for name in GROWING_FIELDS:
        theirs, ours = getattr(before, name), getattr(request, name)
        if ours < theirs if isinstance(theirs, int) else not set(theirs) <= set(ours):
            raise UserError(
                f"{folder}: holds a comparison with {name}={theirs!r}, not {ours!r}; more may be added, but none left "
                "out: name all, begin anew with --overwrite, or write to another folder (--out)."
            )


def _plan(context: CompareContext, saved: StudyConfig | None, deadline: Deadline | None) -> ComparePlan | None:
    """What every training gets: as it was planned before, or planned now; None if nothing is trained."""
    before = from_fields(ComparePlan, saved.plan, context.folder / CONFIG) if saved is not None and saved.plan else None
    if deadline is None or not context.trainings:
        return before
    known = {} if before is None else before.image_seconds
    limit = MAX_TIMED_STEP * deadline.seconds
    speeds = {name: _measure_speed(context, name, limit) for name in context.candidates if name not in known}
    if before is not None:
        for name in speeds.keys() & context.trainings.keys():
            check_fits(name, speeds[name], before, context.folder)
        return replace(before, image_seconds={**known, **{name: speed.image for name, speed in speeds.items()}})
    any_training = next(iter(context.trainings.values()))
    return plan_comparison(
        context.request,
        speeds,
        deadline,
        val=len(split_for(any_training, context.data).splits["val"]),
        measured=len(context.images),
        evaluations=any_training.evaluations,
    )


def _measure_speed(context: CompareContext, name: str, limit: float) -> ModelSpeed:
    """How long a model takes for an image, and for a step if it is to be trained; see `seconds_per_step`."""
    training, bundle = context.trainings.get(name), context.finished.get(name)
    if training is not None:
        bundle = Bundle(build_network(training.model, seed=0).eval(), training.preprocess, context.data.classes)
    assert bundle is not None
    image = seconds_per_image(lambda some: measure_model(context, bundle, some, workers=0), context.images)
    if training is None:
        return ModelSpeed(image)
    source = split_for(training, context.data).train
    step = seconds_per_step(training, source, context.runtime, limit)
    return ModelSpeed(image, step, step_flops(training, len(source)))


def _say_plan(context: CompareContext, plan: ComparePlan) -> None:
    say, models = context.callbacks.message, list(context.trainings)
    trial = f"{TRIAL_FRACTION * plan.cell_seconds:.3g} s"
    keys = cells_of(models, context.request)
    done = sum(is_done(context.cell_place(key)) for key in keys)
    average = " on average" if context.request.equal == "flops" else ""
    finished = f" ({done} finished)" if done else ""
    say(f"{counted(len(keys), 'cell')} of {plan.cell_seconds:g} s each{average}{finished}.")
    say(
        f"Before them, {len(models) * len(RATE_FACTORS)} trials of {trial} choose learning rates."
        if plan.tuned
        else f"There is no time to try learning rates (a trial of {trial} is too short for the slowest model): every "
        "model has the recipe's own."
    )
    say(
        f"In every training {counted(plan.evaluations, 'evaluation')} of the same "
        f"{plan.val_images:,} validation images; accuracies are of the same {plan.measured_images:,} images."
    )
    if plan.cell_flops is not None:
        say(f"Each cell trains with {plan.cell_flops:.3g} floating-point operations.")


def choose_rates(
    trials: Sequence[Trial], trainings: Mapping[str, Training], plan: ComparePlan | None
) -> dict[str, float]:
    """The learning rate of each model with the best validation accuracy; if equal, with the lower loss.

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


def _measured_count(context: CompareContext, plan: ComparePlan | None) -> int:
    return len(context.images) if plan is None else plan.measured_images


def _result(
    context: CompareContext,
    plan: ComparePlan | None,
    identity: DataIdentity,
    trials: Sequence[Trial],
    cells: Sequence[Cell],
    biases: dict[str, Bias],
    complete: bool,
) -> Comparison:
    """What there is so far."""
    request, data = context.request, context.data
    rates = choose_rates(trials, context.trainings, plan)
    compared = []
    for name in context.candidates:
        is_trained = name in context.trainings
        config = context.trainings[name].model if is_trained else context.finished[name].model.config
        description, sizes = with_article(config.describe()), (count_parameters(config), count_flops(config))
        compared.append(ComparedModel(name, description, *sizes, config.image_size, is_trained, rates.get(name)))
    settled = {} if plan is None else {name: getattr(plan, name) for name in SHOWN_PLAN_FIELDS}
    found = remarks(
        compared,
        cells,
        trials,
        plan,
        split=context.split,
        held_out=context.split not in data.splits,
        total=len(context.images),
        measured=_measured_count(context, plan),
    )
    return Comparison(
        out=str(context.folder),
        finished=complete,
        data=str(request.data),
        classes=len(data.classes),
        splits=identity.splits,
        digests=identity.digests,
        split=context.split,
        equal=request.equal,
        budget=request.budget,
        cell_seconds=None if plan is None else plan.cell_seconds,
        cell_flops=None if plan is None else plan.cell_flops,
        settings=context.settings and {**context.settings, **settled},
        models=tuple(compared),
        cells=tuple(cells),
        tried=tuple(trials),
        machine=machine_features(context.runtime.device),
        remarks=(*data.notes, *found),
        biases=biases,
    )
