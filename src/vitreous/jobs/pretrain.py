"""`vitreous pretrain`: from pictures without labels to a model whose features are worth something, in a run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.config.pretrain import Mae, Method, method_from_json, method_to_json
from vitreous.config.saved import training_from_json, training_to_json
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.knn import vote_neighbours
from vitreous.jobs.budget import TIME_IS_UP, clock_check, first_pace, parse_budget, plan, saved_pace
from vitreous.jobs.fit import fit
from vitreous.jobs.opening import open_pictures
from vitreous.jobs.pretrain_run import PretrainRequest, PretrainResult, changed, pretrain_card, read_pretrained
from vitreous.jobs.report import WRITING, restore_report, write_report
from vitreous.jobs.run import (
    Listeners,
    check_data,
    check_request,
    make_run_folder,
    read_config,
    write_config,
    write_json,
)
from vitreous.jobs.start import ASIDE, set_aside, situation_of, some_of, whiten
from vitreous.jobs.track import tracked
from vitreous.model.cost import count_flops
from vitreous.model.vit import ViT
from vitreous.objectives.collapse import Alarm
from vitreous.objectives.dino import SelfDistillation
from vitreous.objectives.mae import MaskedAutoencoder, save_decoder
from vitreous.recipes.pretrain import PRETRAINING
from vitreous.train.loop import Event, Loop, Outcome
from vitreous.train.meter import Meter, Spent
from vitreous.train.pace import Pace, Timetable
from vitreous.train.state import load_newest
from vitreous.weights.bundle import save_bundle

NEIGHBOURS = 20
"""Of the live k-NN accuracy."""
WORK = 1e12
"""Floating-point operations that it may take, with four times as many pictures known as asked: some ten seconds on two
cores."""


def pretrain(
    data: str | Path,
    *,
    method: str = "mae",
    model: str | None = None,
    image_size: int | None = None,
    budget: str | None = None,
    epochs: float | None = None,
    seed: int = 0,
    changes: Mapping[str, str] | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    listeners: Listeners | None = None,
) -> PretrainResult:
    """Learn features from pictures, or go on with what the same call began; `fit(weights=...)` then takes the run.

    data: anything `fit` takes, or a folder of pictures without class folders; labels are not learned from. method: mae,
    dino, dinov2, or supervised for comparison, which needs labels. out: the run folder, by default runs/NAME-METHOD.
    changes: single fields of the recipe set otherwise, such as {"optimizer.rate": "1e-4", "method.koleo": "0.1"}.
    """
    if method not in (*PRETRAINING, "supervised"):
        raise UserError(f"--method {method!r}: choose one of {', '.join(PRETRAINING)} or supervised.")
    check_request(budget, epochs, image_size)
    run = Path(out) if out is not None else Path("runs") / f"{Path(data).resolve().stem or 'data'}-{method}"
    if method == "supervised":
        done = fit(
            data,
            model=model,
            image_size=image_size,
            budget=budget,
            epochs=epochs,
            seed=seed,
            changes=changes,
            out=run,
            workers=workers,
            listeners=listeners,
        )
        return PretrainResult.of_fit(done)
    request = PretrainRequest(str(data), method, model, image_size, budget, epochs, seed, dict(changes or {}))
    return _Pretraining(request, run, workers, listeners or Listeners()).run()


class _Pretraining:
    """One training without labels, from the request to the result."""

    def __init__(self, request: PretrainRequest, folder: Path, workers: int | None, listeners: Listeners) -> None:
        self.meter = Meter()
        self.request, self.folder, self.listeners = request, folder, listeners
        self.workers = min(4, os.cpu_count() or 1) if workers is None else workers
        self.deadline = None if request.budget is None else parse_budget(request.budget)

    def run(self) -> PretrainResult:
        """Do what is left to do."""
        saved = read_config(self.folder, self.request)
        if saved is not None and (self.folder / "result.json").exists():
            result = read_pretrained(self.folder)
            self.listeners.say(restore_report(self.folder))
            return result
        make_run_folder(self.folder)
        with ExitStack() as self.open:
            return self._run(saved)

    def _run(self, saved: dict[str, Any] | None) -> PretrainResult:
        opened = open_pictures(self.request.data)
        if saved is None:
            self.training, self.method = self._choose(opened.train)
        else:
            check_data(saved, opened, self.folder)
            self.training = training_from_json(saved["training"], self.folder / "config.json")
            self.method = method_from_json(saved["method"], self.folder / "config.json")
        self.data = set_aside(opened, self.training.seed)
        self._say_what(saved is not None)
        self.loader = self._loader(self.data.train)
        self.objective = build_objective(self._model(), self.method, self.training.seed)
        self.evaluate = self._evaluator()
        if saved is None:
            pace, table = self._plan()
            method = method_to_json(self.method)
            write_config(self.folder, self.request, self.training, pace.steps, opened, method=method)
        else:
            pace, table = saved_pace(saved), None
        return self._train(pace, table)

    def _choose(self, pictures: Source) -> tuple[Training, Method]:
        """What the recipe makes of these pictures, with what the person set otherwise."""
        situation = situation_of(pictures, 0, self.request.model, self.request.image_size)
        training, method = PRETRAINING[self.request.method](situation)
        training, method = changed(training, method, self.request.changes)
        training = replace(training, seed=self.request.seed)
        return training if self.request.epochs is None else replace(training, epochs=self.request.epochs), method

    def _say_what(self, resumed: bool) -> None:
        c = self.training.model
        self.listeners.say(
            f"{'Going on' if resumed else 'Learning'} without labels ({self.request.method}): a ViT of width "
            f"{c.width}, depth {c.depth}, patch {c.patch} at {c.image_size[0]}x{c.image_size[1]}, "
            f"{len(self.data.train):,} pictures."
        )
        for note in self.data.notes:
            self.listeners.say(note)

    def _loader(self, source: Source, shuffle: bool = True) -> Loader:
        """Batches with the views that the method wants."""
        t = self.training
        loader = Loader(
            source,
            t.preprocess,
            t.augment,
            batch_size=t.batch_size,
            seed=t.seed,
            workers=self.workers if shuffle else 0,
            shuffle=shuffle,
            crops=None if isinstance(self.method, Mae) else self.method.crops,
        )
        self.open.callback(loader.close)
        return loader

    def _model(self) -> ViT:
        """The model as it starts; a checkpoint, where there is one, then takes its place."""
        model = ViT(self.training.model, seed=self.training.seed)
        if self.training.whiten and load_newest(self.folder / "checkpoints")[0] is None:
            whiten(model, self.training, self.data.train, self.workers)
        return model

    def _evaluator(self) -> Callable[[nn.Module], dict[str, float]]:
        """Live figures: the k-NN accuracy where there are labels, else the objective's for pictures set aside."""
        few = max(50, min(ASIDE, int(WORK / 5 / count_flops(self.training.model))))
        asked = some_of(self.data.splits["val"], few, self.training.seed)
        if not self.data.classes:
            loader = self._loader(asked, shuffle=False)
            return lambda model: _live_figure(self.objective, loader)
        known, asking = (
            Loader(part, self.training.preprocess, batch_size=100, unreadable_limit=1.0)
            for part in (some_of(self.data.train, 4 * few, self.training.seed), asked)
        )
        return lambda model: {"knn": knn_accuracy(model, known, asking, len(self.data.classes))}

    def _plan(self) -> tuple[Pace, Timetable | None]:
        """How many steps to take; with a budget, as many as fit."""
        table = None
        if self.deadline is not None:
            model = self.objective.model
            assert isinstance(model, nn.Module)
            self.training, table = plan(
                self.training,
                self.objective,
                self.loader,
                lambda: self.evaluate(model.eval()),
                meter=self.meter,
                deadline=self.deadline,
                ending=WRITING,
            )
            if table is None:
                self.listeners.say(TIME_IS_UP)
        return first_pace(self.training, self.loader), table

    def _train(self, pace: Pace, table: Timetable | None) -> PretrainResult:
        loop = Loop(
            self.objective,
            self.loader,
            self.training,
            pace,
            self.folder,
            evaluate=self.evaluate,
            keep_last=True,
            name_of=self.data.train.name,
            meter=self.meter,
            check_clock=clock_check(self.folder, pace, table, self.meter),
        )
        with tracked(self.listeners.step, self.folder) as listener:
            outcome = loop.run(self._watched(listener), self.listeners.stop)
        for remark in outcome.remarks:
            self.listeners.say(remark)
        return self._finish(outcome, pace.steps)

    def _watched(self, listener: Callable[[Event], None]) -> Callable[[Event], None]:
        """A listener that also says when the features collapse; `collapsed` then stands in the events."""
        alarm: Alarm | None = None

        def hear(event: Event) -> None:
            nonlocal alarm
            if alarm is None:  # the steps before an interruption were heard by another process
                alarm = heard(self.folder)
                for known in alarm.ringing:
                    self.listeners.say(known)
            elif (sentence := alarm.hear(event.record)) is not None:
                self.listeners.say(sentence)
            listener(replace(event, record={**event.record, "collapsed": 1.0}) if alarm.ringing else event)

        return hear

    def _finish(self, outcome: Outcome, steps: int) -> PretrainResult:
        """Write the bundle, the decoder where there is one, the result and the report."""
        # with a budget, the clock may have changed the steps
        self.training = replace(self.training, epochs=steps / self.loader.steps_per_epoch)
        model = ViT(self.training.model, seed=None)
        model.load_state_dict(outcome.best)
        model.eval()
        if isinstance(self.objective, MaskedAutoencoder):
            save_decoder(self.folder / "decoder", self.objective)
        self.open.close()
        spent = self.meter.spent() + Spent(pictures=outcome.pictures)  # operations of views and decoder: not counted
        result = PretrainResult(
            run=str(self.folder),
            bundle=str(self.folder / "bundle"),
            method=self.request.method,
            finished=outcome.finished,
            pictures=len(self.data.train),
            steps=steps,
            figures=outcome.best_figures,
            alarms=tuple(heard(self.folder).said),
            spent=asdict(spent),
            remarks=(*outcome.remarks, *(f"{name}: {why}" for name, why in sorted(self.loader.unreadable.items()))),
        )
        card = pretrain_card(self.folder.name, self.request, self.training, result)
        info = {
            "request": asdict(self.request),
            "training": training_to_json(self.training),
            "method": method_to_json(self.method),
            "spent": asdict(spent),
        }
        save_bundle(self.folder / "bundle", model, self.training.preprocess, (), card=card, info=info)
        if outcome.finished:
            write_json(self.folder / "result.json", asdict(result))
            write_report(self.folder)
        return result


def build_objective(model: ViT, method: Method, seed: int) -> MaskedAutoencoder | SelfDistillation:
    """The model to train and what it learns by."""
    return MaskedAutoencoder(model, method, seed) if isinstance(method, Mae) else SelfDistillation(model, method, seed)


def knn_accuracy(model: nn.Module, known: Loader, asked: Loader, classes: int) -> float:
    """The share of asked pictures whose class the nearest known ones name."""
    assert isinstance(model, ViT)
    features, labels = compute_features(model.representation, known.batches())
    wanted, truth = compute_features(model.representation, asked.batches())
    k = min(NEIGHBOURS, len(features))
    votes = vote_neighbours(features, labels, wanted, classes, (k,))[k]
    return (votes.argmax(dim=1) == truth).float().mean().item()


def heard(folder: Path) -> Alarm:
    """The alarm after all steps that a run's metrics tell of."""
    alarm = Alarm()
    path = folder / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        alarm.hear(json.loads(line))
    return alarm


@torch.inference_mode()
def _live_figure(objective: MaskedAutoencoder | SelfDistillation, loader: Loader) -> dict[str, float]:
    """The loss of a masked autoencoder; the information of self-distillation, whose loss a collapse lowers too."""
    objective.eval()
    name = "loss" if isinstance(objective, MaskedAutoencoder) else "information"
    total, pictures = 0.0, 0
    for batch in loader.batches():
        loss, figures = objective(batch, 1.0)
        total += len(batch.index) * {"loss": loss.item(), **figures}[name]
        pictures += len(batch.index)
    return {name: total / max(1, pictures)}
