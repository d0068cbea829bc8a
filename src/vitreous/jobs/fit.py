"""`vitreous fit`: from a folder of pictures to a trained model, its metrics and its report, in a run folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from vitreous.arguments import Budget, Epochs, Pixels, Seed, Workers, checked
from vitreous.config.change import as_texts
from vitreous.config.objective import Supervised
from vitreous.config.train import Training
from vitreous.data.copies import note_copies
from vitreous.data.loader import Loader
from vitreous.data.source import Data, Source, Split
from vitreous.errors import UserError
from vitreous.evaluate.classify import ClassificationResult, score_classes
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.probe import fit_linear
from vitreous.evaluate.temperature import fit_temperature
from vitreous.jobs.report import write_report
from vitreous.model.family import classifiers, inference_batch
from vitreous.model.network import Network
from vitreous.objectives.supervised import balance
from vitreous.run.card import model_card
from vitreous.run.cost import training_work
from vitreous.run.folder import run_place, weights_digest
from vitreous.run.opening import names_of, open_dataset
from vitreous.run.request import FitRequest, Listeners, check_request, run_name, same_place
from vitreous.run.result import FitResult, FrozenProbe, read_result
from vitreous.run.start import choose_training, starting_network, whiten
from vitreous.run.training import Ending, TrainingRun, machine_of
from vitreous.train.loop import Evaluate, Outcome
from vitreous.train.meter import Meter, Spent
from vitreous.train.pace import Pace
from vitreous.weights.bundle import Bundle
from vitreous.weights.source import open_weights


@checked
def fit(
    data: str | Path,
    *,
    weights: str | Path | None = None,
    model: str | None = None,
    image_size: Pixels | None = None,
    budget: Budget | None = None,
    epochs: Epochs | None = None,
    recipe: str = "auto",
    preprocess: str | None = None,
    seed: Seed = 0,
    changes: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    workers: Workers | None = None,
    device: str = "auto",
    tensorboard: bool = False,
    listeners: Listeners | None = None,
) -> FitResult:
    """Train on a dataset, or go on with a training that the same call began; the result says how well it does.

    data: anything `open_data` takes, or "builtin". weights: what to fine-tune: all that `open_weights` takes.
    budget: a time such as "5m" that the whole may take; or epochs. out: the run folder, by default runs/NAME.
    changes: single fields of the recipe's `Training`, such as {"freeze": 6, "optimizer.learning_rate": 1e-4}.
    device: where to compute; "auto" takes an accelerator where there is one. tensorboard: write curves for it too.
    """
    check_request(budget, epochs, model, image_size)
    if weights is not None and model is not None:
        raise UserError("model and weights: the weights say which model it is; give one of the two.")
    if weights is None and preprocess is not None:
        raise UserError(
            "preprocess: changes how pictures are prepared for given weights; give weights too, or leave it out."
        )
    request = FitRequest(
        same_place(data),
        None if weights is None else same_place(weights),
        model,
        image_size,
        budget,
        epochs,
        recipe,
        preprocess,
        seed,
        as_texts(changes),
    )
    run = run_place(out, data, run_name(data))
    machine = machine_of(workers, device, tensorboard)
    return _Fit(request, run, machine, listeners or Listeners(), write_report).run()


class _Fit(TrainingRun[FitRequest, FitResult]):
    """What a training with labels is about: weights to start from, a classifier, accuracy."""

    look: float | None = None  # seconds that it takes to look at a picture, where that is known
    base: Bundle | None = None

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
        return choose_training(self.request, data, self.base)

    def split_data(self, data: Data) -> Data:
        """A share of the training pictures is set aside where there is no val split."""
        share = self.training.validation
        return data.with_validation(share, self.training.seed) if share else data

    def start_network(self) -> Network:
        """New or from weights; then whitened, or with a classifier on frozen features, where the recipe says so."""
        if "val" in self.data.splits:
            self.validation = self.keep_open(self.evaluation_loader(self.data.splits["val"]))
        if self.checkpointed:  # what it holds takes the place of all that follows; weights need not be there any more
            self._check_weights_if_there()
            return starting_network(self.training, None)
        if self.saved is not None and self.request.weights is not None:  # interrupted before the first checkpoint
            self.base = self._open_weights()
            self.saved.check_weights(self._given(), self.folder)
        network = starting_network(self.training, self.base)
        self._say_crop()
        if self.training.whiten and self.base is None:
            whiten(network, self.training, self.data.train, self.machine.workers)
        if self.training.probe:
            self._fit_classifier(network)
        return network

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

    def _say_crop(self) -> None:
        seen = self.training.preprocess.crop
        if self.base is not None and seen != self.base.preprocess.crop:
            self.listeners.say(
                f"The model will look at the middle {seen:.0%} of a picture; the weights came with "
                f"{self.base.preprocess.crop:.0%}. Set preprocess.crop to change that."
            )

    def _fit_classifier(self, network: Network) -> None:
        """Fit the classifier to features of the frozen network, computed once: a first answer within seconds."""
        meter, classes = Meter(), len(self.data.classes)
        network.to(self.world.device).eval()
        function = self._on_device(network.representation)
        pictures = self.loader.plain_batches(inference_batch(self.training.model))
        features, labels = compute_features(function, pictures, len(self.data.train))
        self.look = meter.seconds / len(labels)
        held_out = None
        if self.validation is not None:
            held_out = compute_features(function, self.validation.batches(), len(self.data.splits["val"]))
        objective = self.training.objective
        weighted = isinstance(objective, Supervised) and objective.class_weights
        classifier = fit_linear(
            features,
            labels,
            classes,
            validation=held_out,
            class_weights=balance(labels, classes) if weighted else None,
        )
        with torch.no_grad():
            for layer in classifiers(network):
                layer.weight.copy_(classifier.weight)
                layer.bias.copy_(classifier.bias)
        self.probe = FrozenProbe(round(meter.seconds, 1))
        if held_out is not None:
            accuracy = (classifier(held_out[0]).argmax(1) == held_out[1]).float().mean().item()
            self.probe = FrozenProbe(self.probe.seconds, accuracy)
            self.listeners.say(
                f"A classifier on frozen features, after {meter.seconds:.0f} s: {accuracy:.1%} of the validation "
                "pictures right. Training goes on from there."
            )

    def _on_device(self, function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda images: function(images.to(self.world.device)).cpu()

    def make_evaluate(self) -> Evaluate | None:
        """What the objective says of the val split."""
        if self.validation is None:
            return None
        loader, device = self.validation, self.world.device
        return lambda objective: objective.evaluate(batch.to(device) for batch in loader.batches())

    def ending_seconds(self) -> float:
        """What the test split and the report will take, judged by pictures seen so far or by a few."""
        if "test" not in self.data.splits or not self.training.model.classes:
            return self.writing
        source = self.data.splits["test"]
        if self.look is None:
            some = source.subset(list(range(min(64, len(source)))))
            meter = Meter()
            self._answers(copy.deepcopy(self.objective.model), some)
            self.look = meter.seconds / len(some)
        return self.writing + self.look * len(source)

    def end(self, network: Network, outcome: Outcome, pace: Pace) -> Ending[FitResult]:
        """How well the kept weights do on the val and the test split."""
        network.to(self.world.device)
        measured: dict[Split, ClassificationResult] = {}
        labels = self.data.classes if self.training.model.classes else ()
        for split in ("val", "test") if outcome.finished and labels else ():
            if split in self.data.splits:
                measured[split] = self._measure(network, split)
        network.cpu()
        spent = self.spent(outcome, pace)
        unreadable = {**self.unreadable, **self.loader.unreadable}
        result = FitResult(
            run=str(self.folder),
            bundle=str(self.folder / "bundle"),
            finished=outcome.finished,
            classes=self.data.classes,
            pictures=len(self.data.train),
            steps=pace.steps,
            best_step=outcome.best_step,
            validation=measured.get("val"),
            test=measured.get("test"),
            metrics=outcome.best_metrics,
            probe=self.probe,
            spent=spent,
            remarks=(*outcome.remarks, *(f"{name}: {why}" for name, why in sorted(unreadable.items()))),
        )
        card = model_card(
            name=self.folder.name,
            data=self.request.data,
            training=self.training,
            recipe=self.request.recipe,
            weights=self.request.weights,
            labels=labels,
            pictures=len(self.data.train),
            scores=accuracy_lines(result),
            spent=spent,
        )
        return Ending(result, labels, card)

    def work(self, outcome: Outcome, pace: Pace) -> Spent:
        """Of all steps, the keep schedule counted in."""
        return training_work(self.training, outcome.pictures, pace, outcome.steps)

    def _measure(self, network: Network, split: Split) -> ClassificationResult:
        """Of a network that began with a classifier on frozen features, the val split first sets the temperature."""
        source = self.data.splits[split]
        scores, labels, names = self._answers(network, source)
        if split == "val" and self.training.probe:
            factor = 1 / fit_temperature(scores, labels)
            scores = factor * scores
            with torch.no_grad():
                for layer in classifiers(network):
                    layer.weight.mul_(factor)
                    layer.bias.mul_(factor)
        return score_classes(scores, labels, self.data.classes, names=names)

    def _answers(self, network: Network, source: Source) -> tuple[Tensor, Tensor, list[str]]:
        """Scores (n, K), labels (n,) and names of all pictures that can be read."""
        known = source is self.data.splits.get("val") and not self.training.objective.evaluates_views
        loader = self.validation if known and self.validation is not None else self.plain_loader(source)
        network.eval()
        try:
            scores, labels = compute_features(self._on_device(network), loader.batches(), len(source))
        finally:
            self.unreadable.update(loader.unreadable)
            if loader is not self.validation:
                loader.close()
        return scores, labels, names_of(source, loader.unreadable)


def accuracy_lines(result: FitResult) -> dict[str, str]:
    """What to say of each split that was measured; of validation pictures, that they chose the weights."""
    lines = {}
    if (test := result.test) is not None:
        low, high = test.top1_interval
        lines["test"] = f"{test.top1:.1%} of {test.n:,} pictures (95 % interval {low:.1%} to {high:.1%})"
    if (val := result.validation) is not None:
        lines["validation"] = (
            f"{val.top1:.1%} of {val.n:,} pictures; they chose the weights, so expect somewhat less on new ones"
        )
    return lines
