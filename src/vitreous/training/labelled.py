"""A training with labels: weights to start from, a classifier on frozen features, accuracy at the end."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from torch import Tensor

from vitreous.config.objective import Distill, TokenLabel
from vitreous.config.train import Training
from vitreous.data.copies import note_copies
from vitreous.data.loader import Loader
from vitreous.data.source import Data, Source, Split
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluate.classify import ClassificationResult, score_classes
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.probe import Labelled, seconds_per_image
from vitreous.inference.opening import names_of, open_dataset
from vitreous.model.family import count_flops, inference_batch
from vitreous.model.network import Network
from vitreous.objectives.answers import Answers
from vitreous.objectives.setting import Setting
from vitreous.training.budget.clock import Clock, Outlook
from vitreous.training.budget.in_time import answers_in_time, features_in_time, look_around
from vitreous.training.budget.stages import MEASURING, Work
from vitreous.training.budget.steps import MEASURED, Afterwards
from vitreous.training.card import model_card
from vitreous.training.cost import training_work
from vitreous.training.ending import Ending
from vitreous.training.frozen import fit_classifier, set_temperature
from vitreous.training.loaders import evaluation_loader, plain_loader
from vitreous.training.loop import Evaluate, Outcome
from vitreous.training.pace import Pace
from vitreous.training.request import FitRequest
from vitreous.training.result import NAMES, FitResult, FrozenProbe, accuracy_lines, read_result
from vitreous.training.start import choose_training, crop_note, split_for, starting_network, whiten
from vitreous.training.teaching.answers import teacher_answers
from vitreous.training.teaching.teacher import MissingTeacher, Teacher, open_teacher, reopen_teacher
from vitreous.training.teaching.token_labels import label_tokens, write_examples
from vitreous.training.train import TrainingRun
from vitreous.weights.bundle import Bundle, weights_digest
from vitreous.weights.source import open_weights

PASSES = 4
"""Over the validation images after a classifier on frozen features: for its strength, at the start, once between the
steps, and at the end."""
FEWEST = 10
"""Steps that are worth taking after such a classifier: fewer change little and cost an evaluation."""


class LabelledTraining(TrainingRun[FitRequest, FitResult]):
    """What `fit` is about, beyond what every training in a run folder does."""

    look: float = 0.0  # seconds that it takes to look at an image, where that is known
    base: Bundle | None = None
    teacher: Teacher | None = None
    answers: Answers | None = None
    validation: Loader | None = None

    def read_result(self) -> FitResult:
        """With accuracies."""
        result = read_result(self.folder)
        assert isinstance(result, FitResult)  # as its request is
        return result

    def open_data(self) -> Data:
        """With labels."""
        return note_copies(open_dataset(self.request.data))

    def _open_weights(self) -> Bundle | None:
        if self.request.weights is None:
            return None
        opened = open_weights(self.request.weights, self.request.preprocess)
        self.weights = weights_digest(opened.model)
        return opened

    def choose_training(self, data: Data) -> Training:
        """What the recipe makes of the data and the weights."""
        self.base = self._open_weights()
        if self.request.teacher is not None:
            self.teacher = open_teacher(self.request.teacher, data.classes, self.world.device)
            self.taught_by = self.teacher.digest
            self.teacher_flops = float(count_flops(self.teacher.network.config))
        teacher = None if self.teacher is None else self.teacher.network.config
        return choose_training(self.request, data, self.base, self.world.device.type, teacher=teacher)

    def split_data(self, data: Data) -> Data:
        """Some training images are set aside where there is no val split; of the others, its share stays."""
        return split_for(self.training, data)

    def start_network(self) -> Network:
        """New or from weights; then whitened, or with a classifier on frozen features, where the recipe says so."""
        self._ask_teacher()  # first, so that what it takes is known when the rest of a budget is planned
        if self.checkpointed:  # what it holds takes the place of all that follows; weights need not be there any more
            self._check_weights_if_there()
            self._open_validation()
            return starting_network(self.training, None)
        if self.saved is not None and self.request.weights is not None:  # interrupted before the first checkpoint
            self.base = self._open_weights()
            self.saved.check_weights(self._given(), self.folder)
        network = starting_network(self.training, self.base)
        if self.base is not None and (note := crop_note(self.training, self.base)) is not None:
            self.callbacks.message(note)
        if self.training.whiten and self.base is None:
            whiten(network, self.training, self.data.train, self.machine.workers)
        if self.training.probe:
            self._fit_classifier(network)
        else:
            self._look_around(network)
            self._open_validation()
        return network

    def setting(self) -> Setting:
        """With a teacher's answers."""
        return replace(super().setting(), answers=self.answers)

    def _ask_teacher(self) -> None:
        """What the teacher says in every step, or has said of every image or of every place in it."""
        place, objective = self.request.teacher, self.training.objective
        if place is None or not isinstance(objective, Distill | TokenLabel):
            return
        found: Teacher | MissingTeacher | None = self.teacher
        if found is None:  # the run goes on
            assert self.saved is not None
            found = reopen_teacher(place, self.data.classes, self.saved, self.folder, self.world.device)
        self.callbacks.message(f"Learning from {place} too: {objective.way}.")
        images, how = self.data.train, (self.machine.workers, self.clock, self.callbacks)
        if isinstance(objective, TokenLabel):
            if self.world.size > 1:  # each makes its share, all take about as long, and what is made is kept for all
                own = images.subset(range(len(images))[self.world.rank_slice(len(images))])
                label_tokens(found, self.training, own, *how)
                self.world.any_rank(False)  # until all have come so far
            self.loader.token_labels = label_tokens(found, self.training, images, *how)
        else:
            self.answers = teacher_answers(found, self.training, images, *how)

    def _open_validation(self) -> None:
        if "val" in self.data.splits:
            part, workers = self.part("val"), self.machine.workers
            self.validation = self.keep_open(evaluation_loader(part, self.training, workers, self.looking))

    def _given(self) -> Network:
        assert self.base is not None
        return self.base.model

    def _check_weights_if_there(self) -> None:
        if self.saved is None or self.request.weights is None:
            return
        try:
            self.base = self._open_weights()
        except UserError:  # moved or gone: the checkpoint has all that is needed
            return
        self.saved.check_weights(self._given(), self.folder)

    def _fit_classifier(self, network: Network) -> None:
        """Fit the classifier to features of the frozen network, computed once: a first answer within seconds."""
        began = self.meter.seconds
        network.to(self.world.device).eval()
        known, held_out = self.start_features(self._on_device(network.representation))
        accuracy = fit_classifier(network, known, held_out, len(self.data.classes), self.training.objective)
        seconds = round(self.meter.seconds - began, 1)
        if accuracy is not None:
            self.callbacks.message(
                f"A classifier on frozen features, after {seconds:.0f} s: {accuracy:.1%} of the validation images "
                "right."
            )
        self.probe = FrozenProbe(seconds, accuracy, self.parts.get("train"))

    def start_features(self, function: Callable[[Tensor], Tensor]) -> tuple[Labelled, Labelled | None]:
        """What a first classifier is fitted to, and what chooses its strength: training and validation images."""
        known = self._features(function)
        self._open_validation()
        return known, None if self.validation is None else self._seen(function, self.validation, "val")

    def _features(self, function: Callable[[Tensor], Tensor]) -> Labelled:
        """Features and labels of the training images; with a budget, of as many as there is time for."""
        batch = inference_batch(self.training.model)
        if self.request.budget is None:
            total, batches = len(self.data.train), self.loader.plain_batches(batch, world=self.world)
            return compute_features(function, batches, total, self._told("train", total), world=self.world)
        outlook = None
        if self.clock is not None:
            learn = seconds_per_image(self.training.model.features, len(self.data.classes))
            outlook = Outlook(self._work(passes=PASSES), self.clock, self.callbacks.message, learn)
        count, seed = self.parts.get("train"), self.training.seed
        told = self._told("train", len(self.data.train) if count is None else count)
        found, looked = features_in_time(
            function, self.loader, batch, seed, count=count, outlook=outlook, progress=told
        )
        if outlook is not None:
            self._settle(outlook, looked)
        return found

    def _work(self, passes: int) -> Work:
        """The images to look at, if there is time."""
        val, test = (len(self.data.splits[split]) if split in self.data.splits else 0 for split in ("val", "test"))
        if not self.training.model.classes:
            test = 0  # there is nothing to be right about
        features = len(self.data.train) if self.training.probe else 0
        steps = (MEASURED + FEWEST) * self.training.batch_size if features else 0
        return Work(features, val, test, passes, fewest=min(features, len(self.data.classes)), steps=steps)

    def _settle(self, outlook: Outlook, looked: int) -> None:
        """Take what fits into the time as it is known now; from here on it stays so, but for what the end may cut."""
        self.look, self.parts = outlook.look, outlook.plan.parts
        self.parts.pop("train", None)
        if self.training.probe and looked < len(self.data.train):
            self.parts["train"] = looked

    def _look_around(self, network: Network) -> None:
        """With a budget, see what an image costs."""
        work = self._work(passes=2)
        if self.clock is None or not work.val + work.test:
            return
        outlook = Outlook(work, self.clock, self.callbacks.message)
        looking = copy.deepcopy(network).to(self.world.device).eval()
        with closing(self._plain_loader(self.part("test" if work.test else "val"))) as loader:
            look_around(self._on_device(looking), loader, outlook)
        self._settle(outlook, 0)

    def _plain_loader(self, source: Source) -> Loader:
        return plain_loader(source, self.training, self.machine.workers, self.looking)

    def say_start(self, steps: int) -> None:
        """What is trained after a classifier on frozen features."""
        if self.probe is None or not steps:
            return
        frozen, layers = self.training.freeze, self.training.model.layers
        kept = f"; the first {frozen} of {layers} layers stay as they are" if frozen else ""
        self.callbacks.message(f"Training goes on from there for {steps:,} step{'s' if steps > 1 else ''}{kept}.")

    def _told(self, split: Split, total: int) -> Callable[[int], None]:
        """To be called with how many images of a split were looked at."""
        return lambda done: self.callbacks.progress(f"measuring the {NAMES[split]} images", done, total)

    def _seen(self, function: Callable[[Tensor], Tensor], loader: Loader, split: Split) -> Labelled:
        """What a function says of all images of a loader, by all processes, and their labels."""
        count = len(loader.source)
        return compute_features(function, loader.batches(), count, self._told(split, count), world=self.looking)

    def _on_device(self, function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda images: function(images.to(self.world.device)).cpu()

    def make_evaluate(self) -> Evaluate | None:
        """What the objective says of the val split."""
        if self.validation is None:
            return None
        loader, device = self.validation, self.world.device
        return lambda objective: objective.evaluate((batch.to(device) for batch in loader.batches()), self.looking)

    def afterwards(self, clock: Clock) -> Afterwards:
        """The val split once more, the test split, and the report; judged by the images looked at so far."""
        val, test = (len(self.part(split)) if split in self.data.splits else 0 for split in ("val", "test"))
        evaluation = self.look * val
        measuring = evaluation + self.look * test if self.training.model.classes else 0.0
        passes = PASSES - 2 if self.training.probe else 0  # beside the last one
        return Afterwards(
            ending=measuring + clock.writing,
            evaluation=evaluation,
            evaluating=MEASURING * clock.deadline - measuring - passes * evaluation,
            fewest=FEWEST if self.training.probe else 1,
            step=self.look * self.training.batch_size if self.training.probe else 0.0,
        )

    def end(self, network: Network, outcome: Outcome, pace: Pace) -> Ending[FitResult]:
        """How well the kept weights do on the val and the test split."""
        if self.loader.token_labels is not None and self.world.is_main:
            write_examples(self.folder, self.loader.token_labels.maps, self.data.train, self.training.seed)
        network.to(self.world.device)
        measured: dict[Split, ClassificationResult] = {}
        labels = self.data.classes if self.training.model.classes else ()
        for split in ("val", "test") if outcome.finished and labels else ():
            if split in self.data.splits:
                measured[split] = self._measure(network, split)
        network.cpu()
        spent = self.spent(outcome, pace)
        unreadable = self.world.union({**self.unreadable, **self.loader.unreadable})
        result = FitResult(
            run=str(self.folder),
            bundle=str(self.folder / "bundle"),
            finished=outcome.finished,
            classes=self.data.classes,
            images=len(self.data.train),
            steps=pace.steps,
            best_step=outcome.best_step,
            validation=measured.get("val"),
            test=measured.get("test"),
            metrics=outcome.best_metrics,
            probe=self.probe,
            spent=spent,
            remarks=(*outcome.remarks, *(f"{name}: {why}" for name, why in sorted(unreadable.items()))),
            parts_of={NAMES[split]: len(self.data.splits[split]) for split in measured if split in self.parts},
        )
        card = model_card(
            name=self.folder.name,
            data=self.request.learned_from,
            training=self.training,
            recipe=self.request.recipe,
            weights=None if self.request.weights is None else str(self.request.weights),
            teacher=self.request.teacher,
            labels=labels,
            images=len(self.data.train),
            scores=accuracy_lines(result),
            spent=spent,
        )
        return Ending(result, labels, card)

    def work(self, outcome: Outcome, pace: Pace) -> Cost:
        """Of all steps, the keep schedule counted in, and of the teacher's answers."""
        steps = training_work(self.training, outcome.images, pace, outcome.steps)
        if self.teacher_flops is None:
            return steps
        objective = self.training.objective
        every = isinstance(objective, Distill) and objective.answers == "view"
        looks = outcome.images if every else len(self.data.train)
        return steps + Cost(flops=looks * self.teacher_flops)

    def _measure(self, network: Network, split: Split) -> ClassificationResult:
        """Of a network that began with a classifier on frozen features, the val split first sets the temperature."""
        scores, labels, names = self._answers(network, split)
        if split == "val" and self.training.probe:
            scores = set_temperature(network, scores, labels)
        return score_classes(scores, labels, self.data.classes, names=names)

    def _answers(self, network: Network, split: Split) -> tuple[Tensor, Tensor, list[str]]:
        """Scores (n, K), labels (n,) and names of the images that are looked at and can be read."""
        known = split == "val" and not self.training.objective.evaluates_views
        loader = self.validation if known and self.validation is not None else self._plain_loader(self.part(split))
        function = self._on_device(network.eval())
        try:
            if split == "val" or self.clock is None:
                scores, labels = self._seen(function, loader, split)
            else:
                told = self._told(split, len(loader.source))
                (scores, labels), tried = answers_in_time(function, loader, self.clock, self.look, told)
                if tried < len(loader.source):  # the machine has become slower than it was when this was planned
                    self.keep_part(split, tried)
        finally:
            self.unreadable.update(loader.unreadable)
            if loader is not self.validation:
                loader.close()
        return scores, labels, names_of(self.part(split), self.looking.union(loader.unreadable))
