"""Learning with labels: weights to start from, a classifier on frozen features, accuracy at the end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace

import torch

from vitreous.config.objective import Distill
from vitreous.config.train import Training
from vitreous.data.duplicates import note_duplicates
from vitreous.data.loader import Loader
from vitreous.data.opening import open_dataset
from vitreous.data.source import Data, Source, Split, random_subset
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluation.classify import ClassificationResult
from vitreous.inputs import counted
from vitreous.model.family import count_flops, inference_batch
from vitreous.model.network import Network
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Objective, Setting
from vitreous.training.deadline import Deadline
from vitreous.training.folder import RunConfig
from vitreous.training.image_plan import ImageEstimate, image_work, reserve
from vitreous.training.loop import Outcome
from vitreous.training.measuring import (
    StartFeatures,
    compute_all,
    compute_start_features,
    measure_split,
    on_device,
    time_images,
)
from vitreous.training.method import Opened, Start, TrainingContext
from vitreous.training.request import FitRequest
from vitreous.training.result import SPLIT_NAMES, FitResult, FrozenProbe, model_card
from vitreous.training.start import (
    are_photographs,
    choose_training,
    crop_message,
    evaluation_loader,
    fit_classifier,
    plain_loader,
    split_for,
    starting_network,
    whiten,
)
from vitreous.training.starting_weights import choose_weights, open_chosen
from vitreous.training.step import training_work
from vitreous.training.teaching.teacher import open_teacher, reopen_teacher
from vitreous.training.teaching.token_labels import prepare_teacher_targets, write_examples
from vitreous.weights.bundle import Bundle, weights_digest
from vitreous.weights.source import open_weights

Context = TrainingContext[FitRequest]


@dataclass(frozen=True)
class SharedValidation:
    """The same validation images, as often, for every training of a comparison, however long each takes."""

    seed: int
    count: int
    seconds_per_image: float


@dataclass
class Labelled:
    """Training with labels, as `fit` does it. A study gives what it has open already."""

    data: Callable[[Context], Data] | None = None  # None opens what the request names
    is_split: bool = False  # whether these data are in their final splits: none is set aside
    typical: Source | None = None  # the images whose sizes count; None for all that are trained on
    weights: Bundle | None = None  # in place of those that the request names
    chooses_weights: bool = False  # start photographs from published weights where the request does not say
    measured: tuple[Split, ...] = ("val", "test")  # the splits that it may look at
    validation: SharedValidation | None = None
    features: StartFeatures | None = None
    name: str = ""  # what it learns by; empty for the objective's kind
    on_plan: Callable[[Training, int], None] | None = None  # told the training and its number of steps before the first
    page: bool = True
    writing_seconds: float = 4.5
    keep_last: bool = False

    # Open

    def open_data(self, context: Context) -> Data:
        return note_duplicates(open_dataset(context.request.data)) if self.data is None else self.data(context)

    def open(self, context: Context, data: Data, saved: RunConfig | None) -> Opened:
        """The weights, the teacher, what the recipe makes of them and of the data, and its splits."""
        request, device, teacher = context.request, context.world.device, None
        if saved is not None:
            training, base, digest, flops = saved.training, None, saved.weights, saved.teacher_flops
            start = saved.start
            if request.teacher is not None:
                teacher = reopen_teacher(request.teacher, data.classes, saved, context.folder, device)
        else:
            start, base = self._starting_weights(context, data)
            digest = None if base is None else weights_digest(base.model)
            known = flops = None
            if request.teacher is not None:
                teacher = open_teacher(request.teacher, data.classes, device)
                known = teacher.network.config
                flops = float(count_flops(known))
            training = choose_training(
                request, data, base, device.type, teacher=known, typical=self.typical, is_split=self.is_split
            )
        split = data if self.is_split else split_for(training, data)
        kept = {name: source for name, source in split.splits.items() if name == "train" or name in self.measured}
        title = self.name or training.objective.kind
        return Opened(title, replace(split, splits=kept), training, base, digest, teacher, flops, start)

    def _starting_weights(self, context: Context, data: Data) -> tuple[str | None, Bundle | None]:
        """The name of the weights, if there is one, and the weights."""
        request = context.request
        if self.weights is not None:
            return request.start, self.weights
        if request.start is not None:
            return request.start, open_weights(request.start, request.preprocess)
        if not self.chooses_weights or not request.may_choose_weights or not are_photographs(data):
            return None, None
        seconds = None if context.deadline is None else context.deadline.left()
        images = sum(len(source) for source in data.splits.values())
        name = context.world.on_main(lambda: choose_weights(images, seconds, context.world.device.type))
        base = open_chosen(name, context.callbacks.message)
        return (None, None) if base is None else (name, base)

    # Start

    def start(self, context: Context, opened: Opened, loader: Loader, saved: RunConfig | None, resumed: bool) -> Start:
        """New or from weights; then whitened, or with a classifier on frozen features, where the recipe says so."""
        # the teacher first, so that what it takes is known when the rest of a budget is planned
        context.meter.end_stage("start")
        teacher_targets = None
        if opened.teacher is not None:
            how = (context.runtime.workers, context.deadline, context.callbacks)
            teacher_targets = prepare_teacher_targets(opened.teacher, opened.training, loader, *how)
            context.meter.end_stage("teacher")
        training, data, world, base = opened.training, opened.data, context.world, opened.base
        subsets, probe = ({}, None) if saved is None else (dict(saved.subsets), saved.probe)
        if saved is None and self.validation is not None and self.validation.count < len(data.splits["val"]):
            subsets["val"] = self.validation.count
        if saved is not None and (self.weights is not None or saved.start is not None):
            # a checkpoint has all that is needed, so weights that are gone since are not missed
            with suppress(UserError) if resumed else nullcontext():
                base = self.weights or open_weights(str(saved.start), context.request.preprocess)
            if base is not None:
                saved.check_digest("weights", weights_digest(base.model), saved.start, context.folder)
        network = starting_network(training, None if resumed else base)
        validation: Loader | None = None
        if not resumed:
            if training.whiten and base is None:
                whiten(network, training, data.train, context.runtime.workers)
            if training.probe:
                training, probe, subsets, validation = self._fit_classifier(context, opened, loader, network, subsets)
                opened = replace(opened, training=training)
                context.meter.end_stage("classifier")
            elif context.deadline is not None:
                subsets = self._time_images(context, opened, network, subsets, context.deadline)
            if (
                base is not None
                and (note := crop_message(training, base, opened.start if context.request.start is None else None))
                is not None
            ):
                context.callbacks.message(note)
        if validation is None and "val" in data.splits:
            validation = self._open_validation(context, opened, subsets)
        labels = torch.from_numpy(data.train.labels)
        setting = Setting(training.seed, labels, world, training.preprocess, teacher_targets=teacher_targets)
        objective = build_objective(network, training.objective, setting)
        objective.to(world.device)

        def evaluate(objective: Objective) -> dict[str, float]:
            assert validation is not None
            return objective.evaluate((batch.to(world.device) for batch in validation.batches()), world)

        reserved = None
        if context.deadline is not None and training.epochs:
            reserved = reserve(data, training, subsets, context.deadline, fixed=self.validation is not None)
        step, measured = context.callbacks.step, None if validation is None else evaluate
        return Start(training, loader, objective, measured, step, reserved, self.on_plan, validation, probe, subsets)

    def _subset(self, context: Context, opened: Opened, subsets: dict[Split, int], split: Split) -> Source:
        """The images of a split that are looked at: all, but with a budget a random subset where the time is short.
        With a budget they come in a random order, so that whoever must stop early has seen a random subset too."""
        source = opened.data.splits[split]
        if self.validation is None and context.request.budget is None:
            return source
        seed = opened.training.seed if self.validation is None else self.validation.seed
        return random_subset(source, seed, subsets.get(split))

    def _open_validation(self, context: Context, opened: Opened, subsets: dict[Split, int]) -> Loader:
        source = self._subset(context, opened, subsets, "val")
        loader = evaluation_loader(source, opened.training, context.runtime.workers, context.world)
        return context.loaders.enter_context(closing(loader))

    def _fit_classifier(
        self, context: Context, opened: Opened, loader: Loader, network: Network, subsets: dict[Split, int]
    ) -> tuple[Training, FrozenProbe, dict[Split, int], Loader | None]:
        """Fit the classifier to features of the frozen network, computed once: a first answer within seconds. The
        training has no epochs if there is no time for steps after it."""
        began, data = context.meter.seconds, opened.data
        function = on_device(network.to(context.world.device).eval().representation, context.world.device)
        validation, held_out, batch = None, None, inference_batch(opened.training.model)
        if self.features is None:
            training, known, subsets = compute_start_features(context, opened, loader, batch, function, subsets)
            opened = replace(opened, training=training)
        if "val" in data.splits:
            validation = self._open_validation(context, opened, subsets)
            if self.features is None:
                held_out = compute_all(context, function, validation, "val")
        if self.features is not None:
            known, held_out = self.features.compute(data, loader, batch, function, validation)
            if context.deadline is not None:
                context.deadline.seconds_per_image = self.features.seconds_per_image
        accuracy = fit_classifier(network, known, held_out, len(data.classes), opened.training.objective)
        taken = round(context.meter.seconds - began, 1)
        if accuracy is not None and held_out is not None:
            context.callbacks.message(
                f"A classifier on frozen features, after {taken:.0f} s: {accuracy:.1%} of "
                f"{counted(len(held_out[1]), 'validation image')} right."
            )
        return opened.training, FrozenProbe(taken, accuracy, subsets.get("train")), subsets, validation

    def _time_images(
        self, context: Context, opened: Opened, network: Network, subsets: dict[Split, int], deadline: Deadline
    ) -> dict[Split, int]:
        """See what an image costs, and how many there is time for."""
        work, device = image_work(opened.data, opened.training), context.world.device
        if self.validation is not None:  # which was timed before
            deadline.seconds_per_image = self.validation.seconds_per_image
            return subsets
        if not work.val + work.test:
            return subsets
        estimate = ImageEstimate(work, deadline, context.callbacks.message)
        function = on_device(copy.deepcopy(network).to(device).eval(), device)
        source = self._subset(context, opened, subsets, "test" if work.test else "val")
        with closing(plain_loader(source, opened.training, context.runtime.workers, context.world)) as loader:
            time_images(function, loader, estimate)
        return estimate.plan.subsets

    # Measure

    def measure(
        self, context: Context, opened: Opened, start: Start, config: RunConfig, network: Network, outcome: Outcome
    ) -> tuple[FitResult, Sequence[str], str]:
        data, training, loader, world = opened.data, opened.training, start.loader, context.world
        if loader.token_labels is not None and world.is_main:
            write_examples(context.folder, loader.token_labels.maps, data.train, training.seed)
        network.to(world.device)
        labels = data.classes if training.model.classes else ()
        measured: dict[Split, ClassificationResult] = {}
        unreadable, subsets = dict(loader.unreadable), dict(config.subsets)
        splits = [split for split in self.measured if split in data.splits and outcome.finished and labels]
        for split in splits:
            known = start.validation if split == "val" and not training.objective.evaluates_views else None
            planned, after = subsets.get(split, len(data.splits[split])), 0
            source = self._subset(context, opened, subsets, split)
            if context.deadline is not None and self.validation is None and (split == "test" or not config.steps):
                # with a budget, as many images as there is time for
                known, source = None, self._subset(context, opened, {}, split)
                after = subsets.get("test", len(data.splits["test"])) if split == "val" and "test" in splits else 0
            how = (source, known, unreadable, planned, after)
            measured[split], tried = measure_split(context, opened, network, split, *how)
            if tried != planned:
                subsets = {**subsets, split: tried}
                if tried == len(data.splits[split]):
                    del subsets[split]
                if world.is_main:
                    replace(config, subsets=subsets).write(context.folder)
            context.meter.end_stage(SPLIT_NAMES[split])
        network.cpu()
        context.loaders.close()  # only when the processes have ended their time is known
        spent = context.meter.spent(world)
        work = training_work(training, outcome.images, config.schedule, outcome.steps)
        if opened.teacher_flops is not None:
            every = isinstance(training.objective, Distill) and training.objective.answers == "view"
            work += Cost(flops=(outcome.images if every else len(data.train)) * opened.teacher_flops)
        if start.probe is not None and self.features is None:  # computed once, of these training and validation images
            counts = {split: config.subsets.get(split, len(source)) for split, source in data.splits.items()}
            work += Cost(flops=float(count_flops(training.model)) * (counts["train"] + counts.get("val", 0)))
        unreadable = world.union(unreadable)
        result = FitResult(
            run=str(context.folder),
            bundle=str(context.folder / "bundle"),
            finished=outcome.finished,
            classes=data.classes,
            images=len(data.train),
            steps=config.schedule.steps,
            best_step=outcome.best_step,
            validation=measured.get("val"),
            test=measured.get("test"),
            metrics=outcome.best_metrics,
            probe=start.probe,
            spent=spent + work,
            remarks=(*outcome.remarks, *(f"{name}: {why}" for name, why in sorted(unreadable.items()))),
            subset_of={SPLIT_NAMES[split]: len(data.splits[split]) for split in measured if split in subsets},
            start=config.start,
        )
        return result, labels, model_card(context.folder.name, context.request, training, labels, result)
