"""Learning with labels: weights to start from, a classifier on frozen features, accuracy at the end."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.callbacks import Event
from vitreous.config.objective import Distill, TokenLabel
from vitreous.config.train import Training
from vitreous.data.copies import note_copies
from vitreous.data.loader import Loader
from vitreous.data.opening import open_dataset
from vitreous.data.source import Data, Source, Split
from vitreous.data.subset import random_subset
from vitreous.errors import UserError
from vitreous.evaluation.classify import ClassificationResult
from vitreous.evaluation.features import compute_features
from vitreous.evaluation.probe import LabelledFeatures, seconds_per_image
from vitreous.model.family import count_flops, inference_batch
from vitreous.model.network import Network
from vitreous.objectives.answers import Answers
from vitreous.objectives.build import build_objective
from vitreous.objectives.setting import Setting
from vitreous.training.context import Ending, Opened, Start, TrainingContext
from vitreous.training.deadline import MAX_MEASURING, MIN_TIMED_STEPS, Deadline, Reserved
from vitreous.training.folder import ConfigFile, RunConfig
from vitreous.training.image_plan import ImageEstimate, ImageWork, features_in_time, time_images
from vitreous.training.loop import Outcome
from vitreous.training.measure import (
    StartFeatures,
    compute_all,
    fit_classifier,
    measure_split,
    on_device,
    progress_of,
    shared_features,
    work_done,
)
from vitreous.training.request import FitRequest
from vitreous.training.result import NAMES, FitResult, FrozenProbe, accuracy_lines, model_card
from vitreous.training.start import (
    choose_training,
    crop_note,
    evaluation_loader,
    plain_loader,
    split_for,
    starting_network,
    whiten,
)
from vitreous.training.teaching.asking import teacher_predictions
from vitreous.training.teaching.teacher import open_teacher, reopen_teacher
from vitreous.training.teaching.token_labels import label_tokens, write_examples
from vitreous.weights.bundle import Bundle, weights_digest
from vitreous.weights.source import open_weights

PROBE_PASSES = 4
"""Over the validation images after a classifier on frozen features: for its strength, at the start, once between the
steps, and at the end."""
MIN_STEPS_AFTER_PROBE = 10  # fewer steps change little and cost an evaluation

Context = TrainingContext[FitRequest]


@dataclass(frozen=True)
class SharedValidation:
    """The same validation images, as often, for every training of a comparison, however long each takes."""

    seed: int
    count: int
    seconds_per_image: float


@dataclass(frozen=True)
class Labelled:
    """Training with labels, as `fit` does it. A study gives what it has open already."""

    data: Callable[[Context], Data] | None = None  # None opens what the request names
    is_split: bool = False  # whether these data are in their final splits: none is set aside
    typical: Source | None = None  # the images whose sizes count; None for all that are trained on
    weights: Bundle | None = None  # in place of those that the request names
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
        """With labels."""
        return note_copies(open_dataset(context.request.data)) if self.data is None else self.data(context)

    def open(self, context: Context, data: Data, saved: RunConfig | None) -> Opened:
        """The weights, the teacher, what the recipe makes of them and of the data, and its splits."""
        request, device = context.request, context.world.device
        if saved is not None:
            teacher = None
            if request.teacher is not None:
                teacher = reopen_teacher(request.teacher, data.classes, saved, context.folder, device)
            split = self._split(saved.training, data)
            return Opened(split, saved.training, None, saved.weights, teacher, saved.teacher_flops)
        base = self._open_weights(request)
        digest = None if base is None else weights_digest(base.model)
        teacher = None if request.teacher is None else open_teacher(request.teacher, data.classes, device)
        training = choose_training(
            request,
            data,
            base,
            device.type,
            teacher=None if teacher is None else teacher.network.config,
            typical=self.typical,
            is_split=self.is_split,
        )
        flops = None if teacher is None else float(count_flops(teacher.network.config))
        return Opened(self._split(training, data), training, base, digest, teacher, flops)

    def _open_weights(self, request: FitRequest) -> Bundle | None:
        if self.weights is not None or request.weights is None:
            return self.weights
        return open_weights(request.weights, request.preprocess)

    def _split(self, training: Training, data: Data) -> Data:
        split = data if self.is_split else split_for(training, data)
        kept = {name: source for name, source in split.splits.items() if name == "train" or name in self.measured}
        return replace(split, splits=kept)

    def title(self, context: Context, training: Training) -> str:
        """What it learns by."""
        return self.name or training.objective.kind

    # Start

    def start(self, context: Context, opened: Opened, loader: Loader, saved: RunConfig | None, resumed: bool) -> Start:
        """New or from weights; then whitened, or with a classifier on frozen features, where the recipe says so."""
        # the teacher first, so that what it takes is known when the rest of a budget is planned
        answers = self._ask_teacher(context, opened, loader)
        training = opened.training
        subsets = dict(saved.subsets) if saved is not None else self._shared_subset(opened)
        probe, seconds = None if saved is None else saved.probe, 0.0
        validation: Loader | None = None
        if resumed:  # a checkpoint takes the place of all that follows; weights need not be there any more
            self._check_weights_if_there(context, saved)
            network = starting_network(training, None)
        else:
            base = opened.base
            if saved is not None and context.request.weights is not None:  # interrupted before the first checkpoint
                base = self._open_weights(context.request)
                assert base is not None
                saved.check_weights(base.model, context.folder)
            network = starting_network(training, base)
            if base is not None and (note := crop_note(training, base)) is not None:
                context.callbacks.message(note)
            if training.whiten and base is None:
                whiten(network, training, opened.data.train, context.runtime.workers)
            if training.probe:
                found = self._fit_classifier(context, opened, loader, network, subsets)
                probe, subsets, seconds, validation = found
            else:
                subsets, seconds = self._time_images(context, opened, network, subsets)
        if validation is None and "val" in opened.data.splits:
            validation = self._open_validation(context, opened, subsets)
        labels = torch.from_numpy(opened.data.train.labels)
        setting = Setting(training.seed, labels, context.world, training.preprocess, answers=answers)
        objective = build_objective(network, training.objective, setting)
        objective.to(context.world.device)
        evaluate = None
        if validation is not None:
            loaded, device, world = validation, context.world.device, context.world

            def evaluate(objective: object) -> dict[str, float]:
                return objective.evaluate((batch.to(device) for batch in loaded.batches()), world)  # type: ignore[attr-defined, no-any-return]

        return Start(loader, objective, evaluate, validation, probe, subsets, seconds)

    def _ask_teacher(self, context: Context, opened: Opened, loader: Loader) -> Answers | None:
        """What the teacher predicts in every step, or has predicted for every image or for every place in it."""
        objective, teacher = opened.training.objective, opened.teacher
        if teacher is None or not isinstance(objective, Distill | TokenLabel):
            return None
        context.callbacks.message(f"Learning from {teacher.place} too: {objective.way}.")
        images, world = opened.data.train, context.world
        how = (context.runtime.workers, context.deadline, context.callbacks)
        if isinstance(objective, Distill):
            return teacher_predictions(teacher, opened.training, images, *how)
        if world.size > 1:  # each makes its slice, all take about as long, and what is made is kept for all
            own = images.subset(range(len(images))[world.rank_slice(len(images))])
            label_tokens(teacher, opened.training, own, *how)
            world.any_rank(False)  # until all have come so far
        loader.token_labels = label_tokens(teacher, opened.training, images, *how)
        return None

    def _check_weights_if_there(self, context: Context, saved: RunConfig | None) -> None:
        if saved is None or context.request.weights is None:
            return
        try:
            base = self._open_weights(context.request)
        except UserError:  # moved or gone: the checkpoint has all that is needed
            return
        assert base is not None
        saved.check_weights(base.model, context.folder)

    def _shared_subset(self, opened: Opened) -> dict[Split, int]:
        if self.validation is None or self.validation.count >= len(opened.data.splits["val"]):
            return {}
        return {"val": self.validation.count}

    def _subset(self, context: Context, opened: Opened, subsets: dict[Split, int], split: Split) -> Source:
        """The images of a split that are looked at: all, but with a budget a random subset where the time is short.

        With a budget they come in a random order, so that whoever must stop early has seen a random subset too.
        """
        source = opened.data.splits[split]
        if self.validation is not None:
            return random_subset(source, self.validation.seed, subsets.get(split))
        if context.request.budget is None:
            return source
        return random_subset(source, opened.training.seed, subsets.get(split))

    def _open_validation(self, context: Context, opened: Opened, subsets: dict[Split, int]) -> Loader:
        source = self._subset(context, opened, subsets, "val")
        workers, world = context.runtime.workers, context.world
        return context.keep_open(evaluation_loader(source, opened.training, workers, world))

    def _fit_classifier(
        self, context: Context, opened: Opened, loader: Loader, network: Network, subsets: dict[Split, int]
    ) -> tuple[FrozenProbe, dict[Split, int], float, Loader | None]:
        """Fit the classifier to features of the frozen network, computed once: a first answer within seconds."""
        began, data = context.meter.seconds, opened.data
        network.to(context.world.device).eval()
        function = on_device(network.representation, context.world.device)
        validation: Loader | None = None
        if self.features is None:
            known, subsets, seconds = self._features(context, opened, loader, function, subsets)
            held_out = None
            if "val" in data.splits:
                validation = self._open_validation(context, opened, subsets)
                held_out = compute_all(context, function, validation, "val")
        else:
            if "val" in data.splits:
                validation = self._open_validation(context, opened, subsets)
            known, held_out = shared_features(self.features, opened, loader, function, validation)
            seconds = self.features.seconds_per_image
        accuracy = fit_classifier(network, known, held_out, len(data.classes), opened.training.objective)
        taken = round(context.meter.seconds - began, 1)
        if accuracy is not None:
            context.callbacks.message(
                f"A classifier on frozen features, after {taken:.0f} s: {accuracy:.1%} of the validation images right."
            )
        return FrozenProbe(taken, accuracy, subsets.get("train")), subsets, seconds, validation

    def _features(
        self,
        context: Context,
        opened: Opened,
        loader: Loader,
        function: Callable[[Tensor], Tensor],
        subsets: dict[Split, int],
    ) -> tuple[LabelledFeatures, dict[Split, int], float]:
        """Features and labels of the training images; with a budget, of as many as there is time for."""
        training, total = opened.training, len(opened.data.train)
        batch = inference_batch(training.model)
        if context.request.budget is None:
            batches = loader.plain_batches(batch, world=context.world)
            told = progress_of(context, "train", total)
            return compute_features(function, batches, total, told, world=context.world), subsets, 0.0
        estimate = None
        if (deadline := context.deadline) is not None:
            learn = deadline.decide(lambda: seconds_per_image(training.model.features, len(opened.data.classes)))
            work = self._work(opened, passes=PROBE_PASSES)
            estimate = ImageEstimate(work, deadline, context.callbacks.message, learn)
        count = subsets.get("train")
        told = progress_of(context, "train", total if count is None else count)
        found, looked = features_in_time(
            function, loader, batch, training.seed, count=count, estimate=estimate, progress=told, world=context.world
        )
        if estimate is None:
            return found, subsets, 0.0
        subsets = {split: count for split, count in estimate.plan.subsets.items() if split != "train"}
        if looked < total:
            subsets["train"] = looked
        return found, subsets, estimate.seconds_per_image

    def _time_images(
        self, context: Context, opened: Opened, network: Network, subsets: dict[Split, int]
    ) -> tuple[dict[Split, int], float]:
        """With a budget, see what an image costs, and how many there is time for."""
        work = self._work(opened, passes=2)
        if self.validation is not None:  # which was timed before
            return subsets, self.validation.seconds_per_image
        if context.deadline is None or not work.val + work.test:
            return subsets, 0.0
        estimate = ImageEstimate(work, context.deadline, context.callbacks.message)
        timed = copy.deepcopy(network).to(context.world.device).eval()
        source = self._subset(context, opened, subsets, "test" if work.test else "val")
        with closing(self._plain_loader(context, opened, source)) as loader:
            time_images(on_device(timed, context.world.device), loader, estimate, context.world)
        return estimate.plan.subsets, estimate.seconds_per_image

    def _plain_loader(self, context: Context, opened: Opened, source: Source) -> Loader:
        return plain_loader(source, opened.training, context.runtime.workers, context.world)

    def _work(self, opened: Opened, passes: int) -> ImageWork:
        """The images to look at, if there is time."""
        data, training = opened.data, opened.training
        val, test = (len(data.splits[split]) if split in data.splits else 0 for split in ("val", "test"))
        if not training.model.classes:
            test = 0  # there is nothing to be right about
        features = len(data.train) if training.probe else 0
        steps = (MIN_TIMED_STEPS + MIN_STEPS_AFTER_PROBE) * training.batch_size if features else 0
        return ImageWork(features, val, test, passes, fewest=min(features, len(data.classes)), steps=steps)

    # Plan and train

    def reserve(self, opened: Opened, start: Start, deadline: Deadline) -> Reserved:
        """The val split once more, the test split, and the page; judged by the images looked at so far."""
        training, splits, seconds = opened.training, opened.data.splits, start.seconds_per_image
        val, test = (
            start.subsets.get(split, len(splits[split])) if split in splits else 0 for split in ("val", "test")
        )
        evaluation = seconds * val
        measuring = evaluation + seconds * test if training.model.classes else 0.0
        passes = PROBE_PASSES - 2 if training.probe else 0  # beside the last one
        return Reserved(
            ending=measuring + deadline.writing,
            evaluation=evaluation,
            evaluating=MAX_MEASURING * deadline.seconds - measuring - passes * evaluation,
            fewest=MIN_STEPS_AFTER_PROBE if training.probe else 1,
            step=seconds * training.batch_size if training.probe else 0.0,
            fixed=self.validation is not None,
        )

    def describe_start(self, context: Context, opened: Opened, start: Start, steps: int) -> None:
        """What is trained after a classifier on frozen features."""
        if self.on_plan is not None:
            self.on_plan(opened.training, steps)
        if start.probe is None or not steps:
            return
        frozen, layers = opened.training.freeze, opened.training.model.layers
        kept = f"; the first {frozen} of {layers} layers stay as they are" if frozen else ""
        context.callbacks.message(f"Training goes on from there for {steps:,} step{'s' if steps > 1 else ''}{kept}.")

    def watch(self, context: Context) -> Callable[[Event], None]:
        """As it is."""
        return context.callbacks.step

    # Measure

    def measure(
        self,
        context: Context,
        opened: Opened,
        start: Start,
        config: ConfigFile,
        network: Network,
        outcome: Outcome,
    ) -> Ending[FitResult]:
        """How well the kept weights do on the val and the test split."""
        data, training, loader = opened.data, opened.training, start.loader
        if loader.token_labels is not None and context.world.is_main:
            write_examples(context.folder, loader.token_labels.maps, data.train, training.seed)
        network.to(context.world.device)
        labels = data.classes if training.model.classes else ()
        measured: dict[Split, ClassificationResult] = {}
        unreadable = dict(loader.unreadable)
        for split in self.measured if outcome.finished and labels else ():
            if split in data.splits:
                source = self._subset(context, opened, config.config.subsets, split)
                known = split == "val" and not training.objective.evaluates_views
                measured[split], tried = measure_split(
                    context,
                    opened,
                    network,
                    split,
                    source,
                    start.validation if known else None,
                    start.seconds_per_image,
                    unreadable,
                )
                if tried < len(source):  # the machine has become slower than it was when this was planned
                    config.update(subsets={**config.config.subsets, split: tried})
        network.cpu()
        schedule = config.config.schedule
        context.loaders.close()  # only when the processes have ended their time is known
        spent = context.meter.spent(context.world) + work_done(opened, outcome, schedule)
        unreadable = context.world.union(unreadable)
        result = FitResult(
            run=str(context.folder),
            bundle=str(context.folder / "bundle"),
            finished=outcome.finished,
            classes=data.classes,
            images=len(data.train),
            steps=schedule.steps,
            best_step=outcome.best_step,
            validation=measured.get("val"),
            test=measured.get("test"),
            metrics=outcome.best_metrics,
            probe=start.probe,
            spent=spent,
            remarks=(*outcome.remarks, *(f"{name}: {why}" for name, why in sorted(unreadable.items()))),
            subset_of={NAMES[split]: len(data.splits[split]) for split in measured if split in config.config.subsets},
        )
        request = context.request
        card = model_card(
            name=context.folder.name,
            data=request.learned_from,
            training=training,
            recipe=request.recipe,
            weights=None if request.weights is None else str(request.weights),
            teacher=request.teacher,
            labels=labels,
            images=len(data.train),
            accuracies=accuracy_lines(result),
            spent=spent,
        )
        return Ending(result, labels, card)
