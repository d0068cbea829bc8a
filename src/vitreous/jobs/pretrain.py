"""`vitreous pretrain`: from pictures without labels to a model whose features are worth something, in a run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitreous.config.pretrain import Mae, Method, method_from_json, method_to_json
from vitreous.config.saved import training_from_json, training_to_json
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Data, Source
from vitreous.errors import UserError
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.knn import vote_neighbours
from vitreous.explain.reconstruct import draw_reconstructions
from vitreous.jobs.budget import parse_budget, plan
from vitreous.jobs.fit import fit
from vitreous.jobs.opening import open_pictures
from vitreous.jobs.pretrain_run import PretrainRequest, PretrainResult, changed, pretrain_card, read_pretrained
from vitreous.jobs.run import Listeners, check_request, make_run_folder, read_config, write_json
from vitreous.jobs.start import situation_of, whiten
from vitreous.jobs.track import tracked
from vitreous.model.cost import count_flops
from vitreous.model.vit import ViT
from vitreous.objectives.collapse import Alarm
from vitreous.objectives.dino import SelfDistillation
from vitreous.objectives.mae import MaskedAutoencoder, save_decoder
from vitreous.recipes.pretrain import PRETRAINING
from vitreous.report.pretraining import write_pretraining_report
from vitreous.train.loop import Event, Loop, Outcome
from vitreous.train.meter import Meter, Spent
from vitreous.train.state import load_newest
from vitreous.weights.bundle import save_bundle

ASKED = 500
"""Pictures of the live k-NN accuracy: at most so many are asked, and four times as many vote."""
WORK = 1e12
"""Floating-point operations that it may take: some ten seconds on two cores."""
NEIGHBOURS = 20


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
            self.listeners.say(f"{self.folder} is finished; nothing to do.")
            return read_pretrained(self.folder)
        make_run_folder(self.folder)
        with ExitStack() as self.open:
            return self._run(saved)

    def _run(self, saved: dict[str, Any] | None) -> PretrainResult:
        self.data = open_pictures(self.request.data)
        if saved is None:
            self.training, self.method = self._choose()
        else:
            self.training = training_from_json(saved["training"], self.folder / "config.json")
            self.method = method_from_json(saved["method"])
        self.data = set_aside(self.data, self.training.seed)
        self._say_what(saved is not None)
        self.loader = self._loader(self.data.train)
        self.objective = build_objective(self._model(), self.method, self.training.seed)
        self.evaluate = self._evaluator()
        steps = self._plan() if saved is None else saved["steps"]
        if saved is None:
            config = {
                "request": asdict(self.request),
                "training": training_to_json(self.training),
                "method": method_to_json(self.method),
                "steps": steps,
                "classes": list(self.data.classes),
            }
            write_json(self.folder / "config.json", config)
        return self._train(steps)

    def _choose(self) -> tuple[Training, Method]:
        """What the recipe makes of these pictures."""
        situation = situation_of(self.data.train, 0, self.request.model, self.request.image_size)
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
        few = max(50, min(ASKED, int(WORK / 5 / count_flops(self.training.model))))
        asked = _some(self.data.splits["val"], few, self.training.seed)
        if not self.data.classes:
            loader = self._loader(asked, shuffle=False)
            return lambda model: _live_figure(self.objective, loader)
        known, asking = (
            Loader(part, self.training.preprocess, batch_size=100, unreadable_limit=1.0)
            for part in (_some(self.data.train, 4 * few, self.training.seed), asked)
        )
        return lambda model: {"knn": knn_accuracy(model, known, asking, len(self.data.classes))}

    def _plan(self) -> int:
        """How many steps to take; with a budget, as many as fit, which the configuration then keeps."""
        if self.deadline is not None:
            left = self.deadline - self.meter.seconds - 2.0
            model = self.objective.model
            assert isinstance(model, nn.Module)
            self.training = plan(self.training, self.objective, self.loader, lambda: self.evaluate(model.eval()), left)
        return max(1, round(self.training.epochs * self.loader.steps_per_epoch))

    def _train(self, steps: int) -> PretrainResult:
        if isinstance(self.objective, MaskedAutoencoder):
            self.objective.steps = steps
        loop = Loop(
            self.objective,
            self.loader,
            self.training,
            steps,
            self.folder,
            evaluate=self.evaluate,
            keep_last=True,
            name_of=self.data.train.name,
            meter=self.meter,
        )
        with tracked(self.listeners.step, self.folder) as listener:
            outcome = loop.run(self._watched(listener), self.listeners.stop)
        for remark in outcome.remarks:
            self.listeners.say(remark)
        return self._finish(outcome, steps)

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
            write_pretraining_report(self.folder, self._rebuilt())
        return result

    def _rebuilt(self, rows: int = 4) -> Image.Image | None:
        """What a masked autoencoder makes of some pictures that were set aside."""
        if not isinstance(self.objective, MaskedAutoencoder):
            return None
        some = _some(self.data.splits["val"], rows, self.training.seed)
        loader = Loader(some, self.training.preprocess, batch_size=rows, unreadable_limit=1.0)
        batch = next(iter(loader.batches()), None)
        return None if batch is None else draw_reconstructions(self.objective.eval(), batch, self.training.preprocess)


def build_objective(model: ViT, method: Method, seed: int) -> MaskedAutoencoder | SelfDistillation:
    """The model to train and what it learns by."""
    return MaskedAutoencoder(model, method, seed) if isinstance(method, Mae) else SelfDistillation(model, method, seed)


def set_aside(data: Data, seed: int) -> Data:
    """The data with a small validation part; without labels where a class is too small to be split, or on the way."""
    train = data.train
    _, counts = np.unique(train.labels, return_counts=True)
    if data.classes and counts.min() < 2:
        data = Data({"train": train.with_labels(np.full(len(train), -1), ())}, (), data.notes)
    return data.with_validation(min(0.1, max(ASKED, 2 * len(data.classes)) / len(train)), seed)


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


def _some(source: Source, most: int, seed: int) -> Source:
    """At most so many pictures, from all over the source."""
    if len(source) <= most:
        return source
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    return source.subset(sorted(order[:most].tolist()))
