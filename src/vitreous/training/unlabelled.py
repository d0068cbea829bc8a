"""A training without labels: views, live metrics of features, alarms."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from vitreous.callbacks import Event
from vitreous.config.overrides import override
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.knn import vote_neighbours
from vitreous.inference.opening import open_images
from vitreous.model.family import build_network, count_flops
from vitreous.model.network import Network
from vitreous.objectives.collapse import Alarm
from vitreous.objectives.objective import Objective
from vitreous.training.budget.clock import Clock
from vitreous.training.budget.stages import FEW, MEASURING, Costs, Work, describe_plan, plan_stages
from vitreous.training.budget.steps import Afterwards
from vitreous.training.card import pretrain_card
from vitreous.training.ending import Ending
from vitreous.training.folder import records_of
from vitreous.training.loaders import evaluation_loader
from vitreous.training.loop import Evaluate, Outcome
from vitreous.training.pace import Pace
from vitreous.training.recipes.pretrain import PRETRAINING
from vitreous.training.request import PretrainRequest
from vitreous.training.result import PretrainResult, read_result
from vitreous.training.start import ASIDE, dataset_stats, set_aside, some_of, whiten
from vitreous.training.train import TrainingRun

NEIGHBOURS = 20
"""Of the live k-NN accuracy."""
WORK = 1e12
"""Floating-point operations that it may take, with four times as many images known as asked: some ten seconds on two
cores."""
LIVE = 3
"""Live evaluations that a budget makes room for, if it must; more where they are cheap."""
UNUSED = frozenset(
    {"freeze", "lora", "validation", "probe", "wise_ft_alpha"}
    | {"augment.mixup", "augment.cutmix", "model.patch_dropout"}
)
"""Fields of a training that labels or given weights belong to."""


class UnlabelledTraining(TrainingRun[PretrainRequest, PretrainResult]):
    """What `pretrain` is about, beyond what every training in a run folder does."""

    keep_last: ClassVar[bool] = True
    writing: ClassVar[float] = 2.5
    evaluation: float = 0.0  # seconds of one, with a budget

    def read_result(self) -> PretrainResult:
        """With the last live metrics."""
        result = read_result(self.folder)
        assert isinstance(result, PretrainResult)  # as its request is
        return result

    def open_data(self) -> Data:
        """With labels or without."""
        return open_images(self.request.data)

    def choose_training(self, data: Data) -> Training:
        """What the recipe makes of these images."""
        request = self.request
        if unused := sorted(UNUSED & set(request.overrides)):
            raise UserError(f"{unused[0]}: has no part in learning without labels; leave it out.")
        stats = dataset_stats(data.train, 0, request.model, request.image_size)
        training = replace(override(PRETRAINING[request.method](stats), request.overrides), seed=request.seed)
        return training if request.epochs is None else replace(training, epochs=request.epochs)

    def split_data(self, data: Data) -> Data:
        """A few images are set aside."""
        return set_aside(data, self.training.seed)

    def start_network(self) -> Network:
        """From scratch, whitened where the recipe says so."""
        network = build_network(self.training.model, seed=self.training.seed)
        if self.training.whiten and not self.checkpointed:
            whiten(network, self.training, self.data.train, self.machine.workers)
        return network

    def make_evaluate(self) -> Evaluate:
        """The k-NN accuracy where there are labels, else the metric that the objective has watched."""
        most = min(len(self.data.splits["val"]), max(50, min(ASIDE, int(WORK / 5 / count_flops(self.training.model)))))
        if self.clock is not None:
            self._settle(most, self.clock)
        return self._evaluation_of(self.parts.get("val", most))

    def _settle(self, most: int, clock: Clock) -> None:
        """See what a live evaluation costs, on a few images, and ask as many as there is time for."""
        for few in (min(4, most), min(FEW, most)):  # the first warms up
            began = clock.now()
            self._evaluation_of(few)(copy.deepcopy(self.objective).eval())
            look = (clock.now() - began) / few
            if clock.now() - began > clock.deadline / 20:
                break
        plan = plan_stages(Work(0, most, 0, LIVE), Costs(clock.now(), look, clock.writing), clock.deadline)
        if not plan.complete:
            self.callbacks.message(describe_plan(plan, clock.text))
        self.parts, self.evaluation = plan.parts, look * plan.val

    def _evaluation_of(self, few: int) -> Evaluate:
        """Of so many images that were set aside."""
        asked = some_of(self.data.splits["val"], few, self.training.seed)
        device = self.world.device
        if not self.data.classes:
            loader = self.keep_open(evaluation_loader(asked, self.training, self.machine.workers, self.looking))
            return lambda objective: objective.evaluate((batch.to(device) for batch in loader.batches()), self.looking)
        known, asking = (
            Loader(source, self.training.preprocess, batch_size=100, unreadable_limit=1.0, world=self.looking)
            for source in (some_of(self.data.train, 4 * few, self.training.seed), asked)
        )
        return lambda objective: {"knn": knn_accuracy(objective, known, asking, len(self.data.classes))}

    def afterwards(self, clock: Clock) -> Afterwards:
        """Only the report, and the live evaluations."""
        return Afterwards(clock.writing, self.evaluation, MEASURING * clock.deadline)

    def manner(self) -> str:
        """The method; labels are only looked at."""
        return f"{self.request.method}, without labels"

    def watch(self, listener: Callable[[Event], None]) -> Callable[[Event], None]:
        """A listener that also says when the features collapse; `collapsed` then stands in the events."""
        if not self.world.is_main:
            return listener
        alarm: Alarm | None = None

        def hear(event: Event) -> None:
            nonlocal alarm
            if alarm is None:  # the steps before an interruption were heard by another process
                alarm = heard(self.folder)
                for known in alarm.ringing:
                    self.callbacks.message(known)
            elif (sentence := alarm.hear(event.record)) is not None:
                self.callbacks.message(sentence)
            listener(replace(event, record={**event.record, "collapsed": 1.0}) if alarm.ringing else event)

        return hear

    def end(self, network: Network, outcome: Outcome, pace: Pace) -> Ending[PretrainResult]:
        """What the last evaluation and the alarms said."""
        unreadable = self.world.union(self.loader.unreadable)
        result = PretrainResult(
            run=str(self.folder),
            bundle=str(self.folder / "bundle"),
            method=self.request.method,
            finished=outcome.finished,
            images=len(self.data.train),
            steps=pace.steps,
            metrics=outcome.best_metrics,
            alarms=self.world.on_main(lambda: heard(self.folder).sentences),
            spent=self.spent(outcome, pace),
            remarks=(*outcome.remarks, *(f"{name}: {why}" for name, why in sorted(unreadable.items()))),
        )
        return Ending(result, (), pretrain_card(self.folder.name, self.request, self.training, result))


def knn_accuracy(objective: Objective, known: Loader, asked: Loader, classes: int) -> float:
    """The share of asked images whose class the nearest known ones name."""
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
    return (votes.argmax(dim=1) == truth).float().mean().item()


def heard(folder: Path) -> Alarm:
    """The alarm after all steps that a run's metrics tell of."""
    alarm = Alarm()
    for record in records_of(folder):
        alarm.hear(record)
    return alarm
