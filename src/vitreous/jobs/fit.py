"""`vitreous fit`: from a folder of pictures to a trained model, its figures and its report, in a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vitreous.config.saved import training_from_json, training_to_json
from vitreous.data.loader import Loader
from vitreous.data.source import Source, Split
from vitreous.errors import UserError
from vitreous.evaluate.classify import ClassificationResult, score_classes
from vitreous.evaluate.features import compute_features, predict_logits
from vitreous.evaluate.probe import fit_linear
from vitreous.evaluate.sureness import fit_sureness
from vitreous.jobs.accounting import training_work
from vitreous.jobs.budget import TIME_IS_UP, clock_check, first_pace, parse_budget, plan, saved_pace
from vitreous.jobs.card import model_card
from vitreous.jobs.evaluate import names_of
from vitreous.jobs.opening import open_dataset
from vitreous.jobs.report import WRITING, restore_report, write_report
from vitreous.jobs.run import (
    FitResult,
    Listeners,
    Request,
    check_data,
    check_request,
    make_run_folder,
    read_config,
    read_result,
    write_config,
    write_json,
)
from vitreous.jobs.start import choose_training, classifiers_of, starting_model, whiten
from vitreous.jobs.track import tracked
from vitreous.model.cost import inference_batch
from vitreous.model.lora import merge_lora
from vitreous.model.vit import ViT
from vitreous.objectives.supervised import Supervised, balance
from vitreous.train.loop import Loop, Outcome
from vitreous.train.meter import Meter
from vitreous.train.pace import Pace, Timetable
from vitreous.train.state import load_newest
from vitreous.weights.bundle import Bundle, save_bundle
from vitreous.weights.source import open_weights


def fit(
    data: str | Path,
    *,
    weights: str | Path | None = None,
    model: str | None = None,
    image_size: int | None = None,
    budget: str | None = None,
    epochs: float | None = None,
    recipe: str = "auto",
    preprocess: str | None = None,
    seed: int = 0,
    changes: Mapping[str, str] | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    listeners: Listeners | None = None,
) -> FitResult:
    """Train on a dataset, or go on with a training that the same call began; the result says how well it does.

    data: anything `open_data` takes, or "builtin". weights: what to fine-tune: all that `open_weights` takes.
    budget: a time such as "5m" that the whole may take; or epochs. out: the run folder, by default runs/NAME.
    changes: single fields of the recipe's `Training` set otherwise, such as {"freeze": "6", "optimizer.rate": "1e-4"}.
    """
    check_request(budget, epochs, image_size)
    if weights is not None and model is not None:
        raise UserError("--model and --weights: the weights say which model it is; give one of the two.")
    place = None if weights is None else str(weights)
    request = Request(
        str(data), place, model, image_size, budget, epochs, recipe, preprocess, seed, dict(changes or {})
    )
    run = Path(out) if out is not None else Path("runs") / (Path(data).resolve().stem or "data")
    return _Fit(request, run, workers, listeners or Listeners()).run()


class _Fit:
    """One training, from the request to the result."""

    def __init__(self, request: Request, folder: Path, workers: int | None, listeners: Listeners) -> None:
        self.meter = Meter()
        self.request, self.folder, self.listeners = request, folder, listeners
        self.workers = min(4, os.cpu_count() or 1) if workers is None else workers
        self.deadline = None if request.budget is None else parse_budget(request.budget)
        self.probe: dict[str, float] | None = None
        self.look: float | None = None  # seconds that it takes to look at a picture, where that is known
        self.unreadable: dict[str, str] = {}

    def run(self) -> FitResult:
        """Do what is left to do."""
        saved = read_config(self.folder, self.request)
        if saved is not None and (self.folder / "result.json").exists():
            result = read_result(self.folder)
            self.listeners.say(restore_report(self.folder))
            return result
        make_run_folder(self.folder)
        with ExitStack() as self.open:
            return self._run(saved)

    def _run(self, saved: dict[str, Any] | None) -> FitResult:
        opened = open_dataset(self.request.data)
        base = None if self.request.weights is None else open_weights(self.request.weights, self.request.preprocess)
        if saved is None:
            self.training = choose_training(self.request, opened, base)
        else:
            check_data(saved, opened, self.folder)
            self.training = training_from_json(saved["training"], self.folder / "config.json")
        share = self.training.validation
        self.data = opened.with_validation(share, self.training.seed) if share else opened
        self._say_what(saved is not None, base)
        model = starting_model(self.training, base)
        self._loaders()
        whitened = self.training.whiten and base is None
        if (whitened or self.training.probe) and load_newest(self.folder / "checkpoints")[0] is None:
            # also where it was interrupted before the first checkpoint
            if whitened:
                whiten(model, self.training, self.data.train, self.workers)
            if self.training.probe:
                self._fit_classifier(model)
        if saved is None:
            pace, table = self._plan(model)
            write_config(self.folder, self.request, self.training, pace.steps, opened, probe=self.probe)
        else:
            pace, table, self.probe = saved_pace(saved), None, saved["probe"]
        return self._train(model, pace, table)

    def _say_what(self, resumed: bool, base: Bundle | None) -> None:
        parts = ", ".join(f"{len(source):,} {name}" for name, source in self.data.splits.items())
        c = self.training.model
        self.listeners.say(
            f"{'Going on with' if resumed else 'Training'} a ViT of width {c.width}, depth {c.depth}, patch {c.patch} "
            f"at {c.image_size[0]}x{c.image_size[1]} on {len(self.data.classes)} classes: {parts} pictures."
        )
        seen = self.training.preprocess.crop
        if base is not None and seen != base.preprocess.crop:
            self.listeners.say(
                f"The model will look at the middle {seen:.0%} of a picture; the weights came with "
                f"{base.preprocess.crop:.0%}. --set preprocess.crop=SHARE sets it."
            )
        for note in self.data.notes:
            self.listeners.say(note)

    def _loaders(self) -> None:
        t = self.training
        self.loader = Loader(
            self.data.train, t.preprocess, t.augment, batch_size=t.batch_size, seed=t.seed, workers=self.workers
        )
        self.open.callback(self.loader.close)
        self.validation = None
        if "val" in self.data.splits:
            self.validation = self.open.enter_context(self._ordered(self.data.splits["val"]))

    @contextmanager
    def _ordered(self, source: Source) -> Iterator[Loader]:
        """A loader for evaluation; pictures that cannot be read are left out, and reported."""
        t = self.training
        batch = inference_batch(t.model)
        loader = Loader(source, t.preprocess, batch_size=batch, workers=self.workers, unreadable_limit=1.0)
        try:
            yield loader
        finally:
            self.unreadable.update(loader.unreadable)
            loader.close()

    def _fit_classifier(self, model: ViT) -> None:
        """Fit the classifier to features of the frozen model, computed once: a first answer within seconds."""
        meter = Meter()
        with self._ordered(self.data.train) as loader:
            features, labels = compute_features(model.representation, loader.batches())
        self.look = meter.seconds / len(labels)
        held_out = None
        if self.validation is not None:
            held_out = compute_features(model.representation, self.validation.batches())
        classifier = fit_linear(features, labels, len(self.data.classes), validation=held_out)
        with torch.no_grad():
            for layer in classifiers_of(model):
                layer.weight.copy_(classifier.weight)
                layer.bias.copy_(classifier.bias)
        self.probe = {"seconds": round(meter.seconds, 1)}
        if held_out is not None:
            scores = F.linear(held_out[0], classifier.weight, classifier.bias)
            self.probe["accuracy"] = (scores.argmax(1) == held_out[1]).float().mean().item()
            self.listeners.say(
                f"A classifier on frozen features, after {meter.seconds:.0f} s: {self.probe['accuracy']:.1%} of the "
                "validation pictures right. Now everything is trained from there."
            )

    def _plan(self, model: ViT) -> tuple[Pace, Timetable | None]:
        """How many steps to take; with a budget, as many as fit."""
        table = None
        if self.deadline is not None:
            evaluate = None if self.validation is None else lambda: self._figures(model)
            ending = self._ending_seconds(model)
            self.training, table = plan(
                self.training,
                self._objective(model),
                self.loader,
                evaluate,
                meter=self.meter,
                deadline=self.deadline,
                ending=ending,
            )
            if table is None:
                self.listeners.say(TIME_IS_UP)
        return first_pace(self.training, self.loader), table

    def _ending_seconds(self, model: ViT) -> float:
        """What the evaluation of the test part and the report will take, judged by pictures seen so far or by a few."""
        if "test" not in self.data.splits:
            return WRITING
        source = self.data.splits["test"]
        if self.look is not None:
            return WRITING + self.look * (len(source) + len(self.data.splits.get("val", ())))
        some = source.subset(list(range(min(64, len(source)))))
        meter = Meter()
        with self._ordered(some) as loader:
            predict_logits(model, loader.batches())
        return WRITING + meter.seconds * (len(source) / len(some) + 1)

    def _objective(self, model: ViT) -> Supervised:
        if not self.training.class_weights:
            return Supervised(model, self.training)
        labels = torch.from_numpy(self.data.train.labels)
        return Supervised(model, self.training, balance(labels, len(self.data.classes)))

    def _figures(self, model: nn.Module) -> dict[str, float]:
        """Accuracy and loss on the validation part."""
        assert self.validation is not None
        logits, labels = predict_logits(model, self.validation.batches())
        accuracy = (logits.argmax(1) == labels).float().mean().item()
        error = (accuracy * (1 - accuracy) / len(labels)) ** 0.5
        return {"accuracy": accuracy, "error": error, "loss": F.cross_entropy(logits, labels).item()}

    def _train(self, model: ViT, pace: Pace, table: Timetable | None) -> FitResult:
        loop = Loop(
            self._objective(model),
            self.loader,
            self.training,
            pace,
            self.folder,
            evaluate=self._figures if self.validation is not None else None,
            name_of=self.data.train.name,
            meter=self.meter,
            check_clock=clock_check(self.folder, pace, table, self.meter),
        )
        with tracked(self.listeners.step, self.folder) as listener:
            outcome = loop.run(listener, self.listeners.stop)
        for remark in outcome.remarks:
            self.listeners.say(remark)
        return self._finish(outcome, pace)

    def _finish(self, outcome: Outcome, pace: Pace) -> FitResult:
        """Measure the kept weights, and write the bundle, the result and the report."""
        # with a budget, the clock may have changed the steps
        self.training = replace(self.training, epochs=pace.steps / self.loader.steps_per_epoch)
        model = ViT(self.training.model, seed=None)
        model.load_state_dict(merge_lora(outcome.best))
        model.eval()
        if self.training.probe and self.validation is not None and outcome.finished:
            self._make_as_sure_as_right(model)
        measured = {
            part: self._measure(model, part)
            for part in ("val", "test")
            if part in self.data.splits and outcome.finished
        }
        self.open.close()  # a process's time is known when it has ended
        spent = self.meter.spent() + training_work(self.training, outcome.pictures, pace, outcome.steps)
        card = model_card(
            name=self.folder.name,
            data=self.request.data,
            training=self.training,
            recipe=self.request.recipe,
            weights=self.request.weights,
            labels=self.data.classes,
            pictures=len(self.data.train),
            figures={NAMES[part]: describe(result) for part, result in measured.items()},
            spent=spent,
        )
        info = {"request": asdict(self.request), "training": training_to_json(self.training), "spent": asdict(spent)}
        bundle = self.folder / "bundle"
        save_bundle(bundle, model, self.training.preprocess, self.data.classes, card=card, info=info)
        unreadable = {**self.unreadable, **self.loader.unreadable}
        figures = {part: result.to_json() for part, result in measured.items()}
        result = FitResult(
            run=str(self.folder),
            bundle=str(bundle),
            finished=outcome.finished,
            classes=self.data.classes,
            pictures=len(self.data.train),
            steps=pace.steps,
            best_step=outcome.best_step,
            validation=figures.get("val"),
            test=figures.get("test"),
            probe=self.probe,
            spent=asdict(spent),
            remarks=(*outcome.remarks, *(f"{name}: {why}" for name, why in sorted(unreadable.items()))),
        )
        if outcome.finished:
            write_json(self.folder / "result.json", asdict(result))
            write_report(self.folder)
            result = read_result(self.folder)
        return result

    def _make_as_sure_as_right(self, model: ViT) -> None:
        """Scale the scores by one factor; a classifier that was regularised strongly is far less sure than right."""
        assert self.validation is not None
        factor = fit_sureness(*predict_logits(model, self.validation.batches()))
        with torch.no_grad():
            for layer in classifiers_of(model):
                layer.weight.mul_(factor)
                layer.bias.mul_(factor)

    def _measure(self, model: ViT, part: Split) -> ClassificationResult:
        source = self.data.splits[part]
        with self._ordered(source) as loader:
            logits, labels = predict_logits(model, loader.batches())
        return score_classes(logits, labels, self.data.classes, names=names_of(source, loader.unreadable))


NAMES = {"val": "validation", "test": "test"}


def describe(result: ClassificationResult) -> str:
    """ "88.9 % of 1,110 pictures right (95 % interval 86.9 to 90.6)"."""
    low, high = result.top1_interval
    return f"{result.top1:.1%} of {result.n:,} pictures right (95 % interval {low:.1%} to {high:.1%})"
