"""A comparison as it was asked for: its cells, the time of each, and the file that keeps both.

A cell is one training: a model, a share of the training images, a seed. All cells get the same time, or the same
floating-point operations; that is settled once, at the start, and kept, so that cells added later are equal too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vitreous.data.source import Data, Source, Split
from vitreous.errors import UserError
from vitreous.inputs import read_json, reason
from vitreous.report.compared import Equal
from vitreous.storage.files import is_unfinished, write_file
from vitreous.storage.lock import LOCK
from vitreous.training.deadline import format_budget, parse_budget
from vitreous.training.folder import count_images, digest_splits
from vitreous.training.image_plan import MIN_IMAGES

CONFIG, RESULT, PAGE = "config.json", "compare.json", "compare.html"
CELLS, TUNING, BIAS = "cells", "tuning", "bias"

GRID = (0.3, 1.0, 3.0)
"""Factors of the recipe's learning rate that are tried for every model."""
TRYING = 0.5
"""What such a trial may take, of a cell's time."""
AFTERWARDS = 0.05
"""The share of the whole time that is kept for what follows the trainings: looking at the models, and the page."""
TESTING = 0.1
"""The share of the whole time in which all trained models are measured, outside the time of each."""
VALIDATING = 0.25
"""What validation images may take of a trial, the shortest training."""
SPLIT_SEED = 0
"""By which images are set aside and parts of them are chosen: the same for all, whatever the seed of a training."""
ASIDE = 0.1
"""The share of the images that finished models are measured on, where the data are in no splits."""
LEAST = 5.0
"""Seconds below which a training teaches nothing that is worth comparing."""


@dataclass(frozen=True)
class CompareRequest:
    """What a person asked for."""

    data: str
    models: tuple[str, ...]
    fractions: tuple[float, ...]
    seeds: int
    budget: str | None
    equal: Equal = "time"
    image_size: int | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    """Single fields of every training that were set otherwise."""


@dataclass(frozen=True)
class CellKey:
    """Which training."""

    model: str
    fraction: float
    seed: int


def cells_of(models: Sequence[str], fractions: Sequence[float], seeds: int) -> list[CellKey]:
    """In the order in which they are done: all models side by side, so that an early end can be compared."""
    return [CellKey(m, fraction, seed) for seed in range(seeds) for fraction in sorted(fractions) for m in models]


def divide_budget(budget: str, models: int, fractions: int, seeds: int) -> float:
    """Seconds of each cell, where all of them and the trials of learning rates together fill the budget."""
    parts = models * (fractions * seeds + TRYING * len(GRID))
    free = 1 - AFTERWARDS - TESTING
    seconds = free * parse_budget(budget) / parts
    if TRYING * seconds < LEAST:
        cells = models * fractions * seeds
        needed = format_budget(LEAST / TRYING * parts / free)
        raise UserError(
            f"budget {budget!r}: too short for {cells} cells ({models} models x {fractions} fractions x {seeds} seeds) "
            f"and {len(GRID)} trials for each model; give at least {needed}, or fewer of them."
        )
    return round(seconds, 1)


def check_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    """The shares in order, each once; none or one twice is refused."""
    if not fractions:
        raise UserError("fractions: none given; give some, such as 0.1 and 1.")
    for fraction in fractions:
        if not 0 < fraction <= 1:
            raise UserError(f"fractions: {fraction:g} is no share of the images; give numbers above 0, at most 1.")
        if list(fractions).count(fraction) > 1:
            raise UserError(f"fractions: {fraction:g} is given twice; give each once.")
    return tuple(sorted(fractions))


@dataclass(frozen=True)
class ComparePlan:
    """What is settled at the start and kept in the folder: the request, the data, and what each cell may take."""

    request: CompareRequest
    classes: tuple[str, ...]
    splits: dict[Split, int]
    digests: dict[Split, str]
    cell_seconds: float | None
    """None where nothing is trained."""
    tuned_on: float
    """The share of the images on which learning rates are tried: the largest that was asked for at first."""
    looks: dict[str, float] = field(default_factory=dict)
    """Seconds in which each model looks at an image."""
    evaluations: int | None = None
    """How often each training looks at its validation images; this and the next two hold for every training, and are
    None until one is to be done."""
    val_images: int | None = None
    """The validation images that choose weights and learning rates, a random part of all."""
    measured_images: int | None = None
    """The images that accuracies are of, a random part of all."""
    cell_flops: float | None = None
    """With equal FLOPs; it is known when the trials have shown how fast each model is."""

    @staticmethod
    def of(request: CompareRequest, data: Data) -> ComparePlan:
        """With what the data are now, and no time settled yet."""
        counts, digests = count_images(data), digest_splits(data)
        return ComparePlan(request, data.classes, counts, digests, None, max(request.fractions))

    def timed(self, models: int) -> ComparePlan:
        """With the time of each cell, if it is not settled yet and so many models are to be trained."""
        request = self.request
        if self.cell_seconds is not None or not models:
            return self
        assert request.budget is not None
        seconds = divide_budget(request.budget, models, len(request.fractions), request.seeds)
        return replace(self, cell_seconds=seconds, tuned_on=max(request.fractions))

    def looking(self, looks: dict[str, float], evaluations: int, val: int, measured: int) -> ComparePlan:
        """With the images that every training is validated and measured on: as many as there is time for.

        looks: seconds for one image of each model to train. val, measured: how many images there are.
        """
        assert self.cell_seconds is not None
        request, passes = self.request, evaluations + 1  # once more at the end
        assert request.budget is not None
        cells = len(request.fractions) * request.seeds
        fit = int(VALIDATING * TRYING * self.cell_seconds / (passes * max(looks.values())))
        fit_measured = int(TESTING * parse_budget(request.budget) / (cells * sum(looks.values())))
        return replace(
            self,
            looks=looks,
            evaluations=evaluations,
            val_images=min(val, max(MIN_IMAGES, fit)),
            measured_images=min(measured, max(MIN_IMAGES, fit_measured)),
        )

    def validating(self, model: str) -> float:
        """Seconds that a training of this model spends on its validation images."""
        assert self.evaluations is not None
        assert self.val_images is not None
        look = self.looks.get(model, max(self.looks.values()))  # one that was added since
        return (self.evaluations + 1) * self.val_images * look

    def write(self, folder: Path) -> None:
        """Keep it."""
        write_file(folder / CONFIG, json.dumps({"comparison": asdict(self)}, indent=2) + "\n")

    def going_on(self, request: CompareRequest, data: Data, folder: Path) -> ComparePlan:
        """The same comparison, with what was added to it; refused where anything else differs."""
        ours, theirs = asdict(request), asdict(self.request)
        for name in ("data", "budget", "equal", "image_size", "overrides"):
            if ours[name] != theirs[name] and not (name == "budget" and self.cell_seconds is None):
                raise UserError(
                    f"{folder}: holds a comparison with {name.replace('_', '-')}={theirs[name]!r}, not {ours[name]!r}; "
                    "repeat its command to go on with it, or write to another folder."
                )
        for name in ("models", "fractions"):
            if missing := [one for one in theirs[name] if one not in ours[name]]:
                raise UserError(
                    f"{folder}: holds a comparison with {missing[0]} among its {name}; name it too (more may be "
                    "added), or write to another folder."
                )
        if request.seeds < self.request.seeds:
            raise UserError(
                f"{folder}: holds a comparison with seeds={self.request.seeds}, not {request.seeds}; give as many or "
                "more, or write to another folder."
            )
        if data.classes != self.classes or digest_splits(data) != self.digests:
            raise UserError(
                f"{request.data}: has other images, or other labels, than when {folder} began; bring those back to "
                "go on with it, or write to another folder."
            )
        return replace(self, request=request)


def measured_split(data: Data) -> tuple[Split, Source]:
    """What accuracies are measured on: the test split, else the validation images, else some that are set aside."""
    data = data if "test" in data.splits else data.with_validation(ASIDE, SPLIT_SEED)
    split: Split = "test" if "test" in data.splits else "val"
    return split, data.splits[split]


def open_plan(folder: Path) -> ComparePlan | None:
    """The comparison that was begun here; None if the folder is new or empty. What holds other things is refused."""
    path = folder / CONFIG
    try:
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        others = [one.name for one in inside if one.name != LOCK and not is_unfinished(one)]
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: cannot be read ({reason(error)}); write to another folder.") from None
    if not others and not (folder.exists() and not folder.is_dir()):
        return None
    found: Any = read_json(path) if CONFIG in others else {}
    if not isinstance(found, dict) or "comparison" not in found:
        what = f"is not empty (it holds {', '.join(others[:3])})" if others else "is a file"
        raise UserError(
            f"{folder}: {what}, and no comparison of vitreous began it; write to a folder that is new or empty."
        )
    try:
        return _plan(found["comparison"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: damaged, or of another vitreous; write to another folder.") from None


def _plan(fields: dict[str, Any]) -> ComparePlan:
    asked = fields["request"]
    lists = {name: tuple(asked[name]) for name in ("models", "fractions")}
    request = CompareRequest(**{**asked, **lists})
    return ComparePlan(**{**fields, "request": request, "classes": tuple(fields["classes"])})
