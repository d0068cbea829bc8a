"""`vitreous compare`: the same data, splits, augmentation and tuning for several models, and who is ahead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.arguments import Budget, Count, Pixels, Workers, checked
from vitreous.callbacks import Callbacks
from vitreous.config.overrides import as_texts
from vitreous.config.train import Training
from vitreous.data.copies import note_copies
from vitreous.data.source import Data, Source, Split
from vitreous.data.subset import random_subset
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.explain.analysis.bias_numbers import Bias
from vitreous.inference.machine import machine_features
from vitreous.inference.opening import open_classifier, open_dataset
from vitreous.interrupt import Interrupted
from vitreous.report.compared import Cell, Comparison, Equal
from vitreous.report.comparison import comparison_page
from vitreous.storage.files import write_output
from vitreous.storage.lock import claim_folder
from vitreous.storage.overwrite import GENERATOR
from vitreous.studies.comparison.biases import bias_of, count_that_fit, some_of_each_class
from vitreous.studies.comparison.candidates import Candidate, read_candidates
from vitreous.studies.comparison.cells import Cells
from vitreous.studies.comparison.comparing import Comparing
from vitreous.studies.comparison.facts import Judged, compared, full_cells, looks_per_second, remarks, shared_settings
from vitreous.studies.comparison.plan import (
    AFTERWARDS,
    BIAS,
    PAGE,
    RESULT,
    SPLIT_SEED,
    ComparePlan,
    CompareRequest,
    check_fractions,
    measured_split,
    open_plan,
)
from vitreous.training.context import local_runtime
from vitreous.training.deadline import parse_budget
from vitreous.training.folder import run_name, run_place
from vitreous.training.request import same_place
from vitreous.training.result import NAMES
from vitreous.weights.bundle import Bundle

OWN = ("optimizer.learning_rate", "share", "split_seed")
"""Fields of a training that a comparison sets itself."""


@checked
def compare(
    data: str | Path,
    models: Sequence[str | Path],
    *,
    budget: Budget | None = None,
    fractions: Sequence[float] = (1.0,),
    seeds: Count = 3,
    equal: Equal = "time",
    image_size: Pixels | None = None,
    overrides: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    workers: Workers | None = None,
    device: str = "auto",
    callbacks: Callbacks | None = None,
) -> Comparison:
    """Train every model with every share of the images and every seed, or go on with that; say who is ahead.

    data: anything `fit` takes. models: names of presets, with fields after colons where they should differ
    ("P/4@32:attention=neighbourhood:window=3"), which are trained; or paths of runs, bundles and foreign weights, which
    are measured as they are. budget: how long everything may take; all trainings get the same share of it.
    seeds: how many. equal: what the trainings of all models have the same of. overrides: fields of every training.
    out: the folder for all runs, `compare.html` and `compare.json`; by default runs/NAME-compare.
    """
    callbacks = callbacks or Callbacks()
    candidates = read_candidates(models, image_size)
    to_train = [candidate for candidate in candidates if candidate.model is not None]
    if to_train and budget is None:
        raise UserError("budget: none given; say how long everything may take, such as 10m or 2h.")
    names = tuple(candidate.name for candidate in candidates)
    request = CompareRequest(
        same_place(data), names, check_fractions(fractions), seeds, budget, equal, image_size, as_texts(overrides)
    )
    if owned := [name for name in OWN if name in request.overrides]:
        raise UserError(f"{owned[0]}: a comparison chooses it itself, for all models alike; leave it out.")
    folder = run_place(out, data, f"{run_name(data)}-compare")
    plan = open_plan(folder)
    opened = note_copies(open_dataset(request.data))
    plan = ComparePlan.of(request, opened) if plan is None else plan.going_on(request, opened, folder)
    plan = plan.timed(len(to_train))
    job = _Job(request, opened, Cells(request, opened, folder, local_runtime(workers, device, False), callbacks))
    job.check(candidates)
    with claim_folder(folder, (RESULT, PAGE), callbacks.message):
        plan.write(folder)
        return job.run(plan)


class _Job:
    """One comparison: what is trained and what is only measured, and the page over both."""

    def __init__(self, request: CompareRequest, data: Data, cells: Cells) -> None:
        self.request, self.data, self.cells = request, data, cells
        self.candidates: Sequence[Candidate] = ()
        self.trainings: dict[str, Training] = {}
        self.finished: dict[str, Bundle] = {}
        self.settings: dict[str, Any] = {}

    def check(self, candidates: Sequence[Candidate]) -> None:
        """Refuse a model that cannot be trained or measured here, before any is."""
        self.candidates = candidates
        for candidate in candidates:
            if candidate.model is not None:
                self.trainings[candidate.name] = self.cells.check(candidate)
            else:
                self.finished[candidate.name] = open_classifier(candidate.name)
        self.settings = shared_settings(self.trainings)
        for bundle in self.finished.values():
            self._images()[1].relabelled(bundle.labels)

    def run(self, plan: ComparePlan) -> Comparison:
        """Do what is left to do; what is there by then is written even where it was stopped."""
        comparing = Comparing(self.cells, [c for c in self.candidates if c.model is not None], plan)
        measured: list[Cell] = []
        biases: dict[str, Bias] = {}
        complete = False
        try:
            if comparing.run():
                measured += (self._measure(name, comparing.plan) for name in self.finished)
                biases = self._biases(self._result(comparing, measured))
                complete = True
        except Interrupted:  # between two trainings; within one, it says that it was stopped
            pass
        result = replace(self._result(comparing, measured), finished=complete, biases=biases)
        if result.cells or complete:
            self._write(result)
        return result

    def _images(self) -> tuple[Split, Source]:
        """What accuracies may be of: the test split; else the images that every training sets aside."""
        if not self.trainings:
            return measured_split(self.data)
        return self.cells.judged_on(next(iter(self.trainings.values())))

    def _judged(self, plan: ComparePlan) -> Judged:
        split, source = self._images()
        count = len(source) if plan.measured_images is None else plan.measured_images
        return Judged(split, split not in self.data.splits, len(source), count)

    def _measure(self, name: str, plan: ComparePlan) -> Cell:
        """How well a finished model does."""
        split, source = self._images()
        bundle = self.finished[name]
        found = self.cells.measure_model(bundle, random_subset(source, SPLIT_SEED, plan.measured_images))
        self.cells.callbacks.message(f"{name}: {found.top1:.1%} of {found.n:,} {NAMES[split]} images")
        spent = bundle.info.get("spent")
        return Cell(
            model=name,
            fraction=None,
            seed=None,
            place=name,
            images=None,
            accuracy=found.top1,
            interval=found.top1_interval,
            n=found.n,
            validation=None,
            spent=Cost(**spent) if isinstance(spent, dict) else None,
        )

    def _result(self, comparing: Comparing, measured: Sequence[Cell]) -> Comparison:
        """What there is so far."""
        plan, request = comparing.plan, self.request
        configs = {name: bundle.model.config for name, bundle in self.finished.items()}
        configs |= {name: training.model for name, training in self.trainings.items()}
        chosen = comparing.chosen
        models = tuple(
            compared(c.name, configs[c.name], trained=c.model is not None, learning_rate=chosen.get(c.name))
            for c in self.candidates
        )
        judged = self._judged(plan)
        cells = (*comparing.done, *measured)
        return Comparison(
            out=str(self.cells.folder),
            finished=False,
            data=request.data,
            classes=len(self.data.classes),
            splits=plan.splits,
            digests=plan.digests,
            split=judged.split,
            equal=request.equal,
            budget=request.budget,
            cell_seconds=plan.cell_seconds,
            cell_flops=plan.cell_flops,
            settings=self.settings
            and {
                **self.settings,
                "evaluations": plan.evaluations,
                "val_images": plan.val_images,
                "measured_images": plan.measured_images,
            },
            models=models,
            cells=cells,
            tried=tuple(comparing.tried),
            machine=machine_features(self.cells.machine.device),
            remarks=(*self.data.notes, *remarks(models, cells, comparing.tried, judged)),
        )

    def _biases(self, result: Comparison) -> dict[str, Bias]:
        """Of each model's first training on most images, and of the finished ones, each opened afresh."""
        folder, places = self.cells.folder, {candidate.name: candidate.folder for candidate in self.candidates}
        speeds = looks_per_second(result.tried, {model.name: model.forward_flops for model in result.models})
        seconds = None if self.request.budget is None else AFTERWARDS * parse_budget(self.request.budget)
        images = some_of_each_class(self._images()[1], count_that_fit(seconds, speeds))
        found = {}
        for cell in full_cells(result.cells):
            kept = folder / BIAS / f"{places[cell.model]}.json"
            found[cell.model] = bias_of(open_classifier(cell.place), images, kept, self.cells.machine.workers)
        # in their order, and so in their colours
        return {model.name: found[model.name] for model in result.models if model.name in found}

    def _write(self, result: Comparison) -> None:
        described, page = (self.cells.folder / name for name in (RESULT, PAGE))
        write_output(described, json.dumps({"generator": GENERATOR, **result.to_json()}, allow_nan=False) + "\n")
        write_output(page, comparison_page(result))
