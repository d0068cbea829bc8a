"""Learning without labels: views, live metrics of features, alarms."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitreous.callbacks import Event
from vitreous.config.overrides import override
from vitreous.data.loader import Loader
from vitreous.data.opening import open_images
from vitreous.data.source import Data, Split
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluation.features import compute_features
from vitreous.evaluation.probe import vote_neighbours
from vitreous.model.family import build_network, count_flops
from vitreous.model.network import Network
from vitreous.model.predictions import is_right
from vitreous.objectives.build import build_objective
from vitreous.objectives.collapse import Alarm
from vitreous.objectives.objective import Objective, Setting
from vitreous.training.deadline import MAX_MEASURING, Deadline, Reserved
from vitreous.training.folder import RunConfig, read_metrics
from vitreous.training.image_plan import MIN_IMAGES, ImageCosts, ImageWork, describe_plan, plan_images
from vitreous.training.loop import Evaluate, Outcome
from vitreous.training.method import Opened, Start, TrainingContext
from vitreous.training.recipes.pretrain import PRETRAINING
from vitreous.training.request import PretrainRequest
from vitreous.training.result import PretrainResult, pretrain_card
from vitreous.training.start import MIN_HELD_OUT, dataset_stats, draw_images, evaluation_loader, hold_out, whiten

NEIGHBOURS = 20  # of the live k-NN accuracy
MAX_KNN_FLOPS = 1e12  # that it may take, with four times as many images known as asked: some ten seconds on two cores
MIN_LIVE_EVALUATIONS = 3  # that a budget makes room for, if it must; more where they are cheap
UNUSED = frozenset(
    {"freeze", "lora", "validation", "probe", "wise_ft_alpha"}
    | {"augment.mixup", "augment.cutmix", "model.patch_dropout"}
)
"""Fields of a training that need labels or initial weights."""

Context = TrainingContext[PretrainRequest]


@dataclass
class Unlabelled:
    """Training without labels, as `pretrain` does it. The last weights are kept: no label chose them."""

    keep_last: bool = True
    writing_seconds: float = 2.5
    page: bool = True

    def open_data(self, context: Context) -> Data:
        return open_images(context.request.data)

    def open(self, context: Context, data: Data, saved: RunConfig | None) -> Opened:
        """The recipe's training for these images, and a small val split."""
        request = context.request
        if saved is not None:
            training = saved.training
        else:
            if unused := sorted(UNUSED & set(request.overrides)):
                raise UserError(f"{unused[0]}: has no part in learning without labels; leave it out.")
            stats = dataset_stats(data.train, 0, request.model, request.image_size)
            training = replace(override(PRETRAINING[request.method](stats), request.overrides), seed=request.seed)
            training = training if request.epochs is None else replace(training, epochs=request.epochs)
        return Opened(f"{request.method}, without labels", hold_out(data, training.seed), training)

    def start(self, context: Context, opened: Opened, loader: Loader, saved: RunConfig | None, resumed: bool) -> Start:
        """From scratch, whitened where the recipe says so."""
        training, data, world, deadline = opened.training, opened.data, context.world, context.deadline
        network = build_network(training.model, seed=training.seed)
        if training.whiten and not resumed:
            whiten(network, training, data.train, context.runtime.workers)
        labels = torch.from_numpy(data.train.labels)
        setting = Setting(training.seed, labels, world, training.preprocess)
        objective = build_objective(network, training.objective, setting)
        objective.to(world.device)
        affordable = int(MAX_KNN_FLOPS / 5 / count_flops(training.model))
        most = min(len(data.splits["val"]), max(50, min(MIN_HELD_OUT, affordable)))
        subsets: dict[Split, int] = {} if saved is None else dict(saved.subsets)
        reserved = None
        if deadline is not None:
            subsets, seconds = _time_evaluation(context, opened, objective, most, deadline)
            # only the page, and the live evaluations
            evaluation = seconds * subsets.get("val", most)
            step = (
                seconds * training.batch_size / 5
            )  # at least: an evaluation looks at five images for each that it counts
            reserved = Reserved(0.0, evaluation, MAX_MEASURING * deadline.seconds, step)
        evaluate = _evaluation(context, opened, subsets.get("val", most))
        return Start(training, loader, objective, evaluate, _watch(context), reserved, subsets=subsets)

    def measure(
        self, context: Context, opened: Opened, start: Start, config: RunConfig, network: Network, outcome: Outcome
    ) -> tuple[PretrainResult, Sequence[str], str]:
        unreadable = context.world.union(start.loader.unreadable)
        alarms = context.world.on_main(lambda: logged_alarm(context.folder).sentences)
        context.loaders.close()  # only when the processes have ended their time is known
        result = PretrainResult(
            run=str(context.folder),
            bundle=str(context.folder / "bundle"),
            method=context.request.method,
            finished=outcome.finished,
            images=len(opened.data.train),
            steps=config.schedule.steps,
            metrics=outcome.best_metrics,
            alarms=alarms,
            spent=context.meter.spent(context.world) + Cost(images=outcome.images),
            remarks=(*outcome.remarks, *(f"{name}: {why}" for name, why in sorted(unreadable.items()))),
        )
        return result, (), pretrain_card(context.folder.name, context.request, opened.training, result)


def _time_evaluation(
    context: Context, opened: Opened, objective: Objective, most: int, deadline: Deadline
) -> tuple[dict[Split, int], float]:
    """Subsets of the splits that fit into the time, and the seconds per image of an evaluation."""
    for few in (min(4, most), min(MIN_IMAGES, most)):  # the first warms up
        began = deadline.now()
        _evaluation(context, opened, few)(copy.deepcopy(objective).eval())
        seconds = (deadline.now() - began) / few
        if deadline.now() - began > deadline.seconds / 20:
            break
    costs = ImageCosts(deadline.now(), seconds, deadline.writing)
    plan = plan_images(ImageWork(0, most, 0, MIN_LIVE_EVALUATIONS), costs, deadline.seconds)
    if not plan.complete:
        context.callbacks.message(describe_plan(plan, deadline.text))
    return plan.subsets, seconds


def _evaluation(context: Context, opened: Opened, count: int) -> Evaluate:
    """On `count` images that were set aside: the k-NN accuracy where there are labels, else the objective's own."""
    data, training, world = opened.data, opened.training, context.world
    asked, device = draw_images(data.splits["val"], count, training.seed), context.world.device
    if not data.classes:
        loader = context.loaders.enter_context(
            closing(evaluation_loader(asked, training, context.runtime.workers, world))
        )
        return lambda objective: objective.evaluate((batch.to(device) for batch in loader.batches()), world)
    known, asking = (
        Loader(source, training.preprocess, batch_size=100, unreadable_limit=1.0, world=world)
        for source in (draw_images(data.train, 4 * count, training.seed), asked)
    )
    return lambda objective: {"knn": knn_accuracy(objective, known, asking, len(data.classes))}


def _watch(context: Context) -> Callable[[Event], None]:
    """The step callback, with a message when the features collapse; events then have the metric `collapsed`."""
    step, message = context.callbacks.step, context.callbacks.message
    if not context.world.is_main:
        return step
    alarm: Alarm | None = None

    def on_step(event: Event) -> None:
        nonlocal alarm
        if alarm is None:  # with the steps before an interruption
            alarm = logged_alarm(context.folder)
            for known in alarm.ringing:
                message(known)
        elif (sentence := alarm.update(event.record)) is not None:
            message(sentence)
        step(replace(event, record={**event.record, "collapsed": 1.0}) if alarm.ringing else event)

    return on_step


def knn_accuracy(objective: Objective, known: Loader, asked: Loader, classes: int) -> float:
    """The accuracy on `asked` of a vote of the nearest neighbours in `known`."""
    network = objective.model.eval()
    device = network.device

    def features_of(loader: Loader) -> tuple[Tensor, Tensor]:
        return compute_features(
            lambda images: network.representation(images.to(device)).cpu(),
            loader.batches(),
            len(loader.source),
            world=loader.world,
        )

    features, labels = features_of(known)
    wanted, truth = features_of(asked)
    k = min(NEIGHBOURS, len(features))
    votes = vote_neighbours(features, labels, wanted, classes, (k,))[k]
    return is_right(votes, truth).float().mean().item()


def logged_alarm(folder: Path) -> Alarm:
    """The alarm after all logged steps of a run."""
    alarm = Alarm()
    for record in read_metrics(folder):
        alarm.update(record)
    return alarm
