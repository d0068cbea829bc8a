"""What a training came to: in memory, as a run folder's result.json, and as the model card of its bundle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vitreous.config.model import with_article
from vitreous.config.train import Training
from vitreous.data.source import Split
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluation.classify import ClassificationResult
from vitreous.inputs import counted
from vitreous.training.deadline import format_budget, parse_budget
from vitreous.training.request import FitRequest, PretrainRequest
from vitreous.weights.markdown import code

SPLIT_NAMES: dict[Split, str] = {"train": "training", "val": "validation", "test": "test"}
"""What a person reads of each split."""


@dataclass(frozen=True)
class FrozenProbe:
    """A classifier on the frozen network's features, with which a training may begin."""

    seconds: float
    accuracy: float | None = None  # share of the validation images that it has right; None without any
    images: int | None = None  # training images that it was fitted to, chosen at random; None for all


@dataclass(frozen=True)
class FitResult:
    """What a training with labels came to."""

    run: str
    bundle: str
    finished: bool
    classes: tuple[str, ...]
    images: int  # in the train split
    steps: int
    best_step: int
    validation: ClassificationResult | None
    """Of the kept weights on the val split, which chose them: optimistic for other images."""
    test: ClassificationResult | None  # the same on the test split, which chose nothing
    metrics: dict[str, float]  # of the last evaluation that counted, as the objective gives them
    probe: FrozenProbe | None
    spent: Cost
    remarks: tuple[str, ...] = ()
    subset_of: dict[str, int] = field(default_factory=dict)
    """Of "validation" and "test", where the time was too short for all of it and a random part was measured: how many
    images there are."""
    start: str | None = None  # the weights that it started from; None from scratch

    def to_json(self) -> dict[str, Any]:
        measured = {"validation": self.validation, "test": self.test}
        found = {**asdict(self), **{name: None if one is None else one.to_json() for name, one in measured.items()}}
        if found["validation"] is not None:
            found["validation"]["chose_the_weights"] = True  # so its interval promises too much
        return found

    def __repr__(self) -> str:
        return result_text(self, accuracy_lines(self))

    def _repr_html_(self) -> str:
        return result_html(self.run, accuracy_lines(self), self.spent)

    def images_seen(self, name: str) -> str:
        """How many images of "validation" or "test" were measured: "1,110 images", "a random 150 of 1,110 images"."""
        found = self.test if name == "test" else self.validation
        assert found is not None
        part = f"a random {found.n:,} of {self.subset_of[name]:,}" if name in self.subset_of else f"{found.n:,}"
        return f"{part} image{'s' * (found.n != 1 or name in self.subset_of)}"

    @staticmethod
    def from_json(fields: dict[str, Any]) -> FitResult:
        measured = {
            name: None if fields[name] is None else ClassificationResult.from_json(fields[name])
            for name in ("validation", "test")
        }
        probe = None if fields["probe"] is None else FrozenProbe(**fields["probe"])
        lists = {name: tuple(fields[name]) for name in ("classes", "remarks")}
        return FitResult(**{**fields, **measured, **lists, "probe": probe, "spent": Cost(**fields["spent"])})


@dataclass(frozen=True)
class PretrainResult:
    """What a training without labels came to. The last weights are kept: no label chose them."""

    run: str
    bundle: str
    method: str
    finished: bool
    images: int  # in the train split
    steps: int
    metrics: dict[str, float]
    """Of the last live evaluation: "knn", an accuracy, where there are labels, else "loss" for mae and
    masked-patch and "information" for dino and dinov2; supervised: "accuracy"."""
    alarms: tuple[str, ...]  # what was said of a collapse
    spent: Cost
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> PretrainResult:
        lists = {name: tuple(fields[name]) for name in ("alarms", "remarks")}
        return PretrainResult(**{**fields, **lists, "spent": Cost(**fields["spent"])})

    def __repr__(self) -> str:
        return result_text(self, {name: f"{value:.4g}" for name, value in self.metrics.items()})

    def _repr_html_(self) -> str:
        return result_html(self.run, {name: f"{value:.4g}" for name, value in self.metrics.items()}, self.spent)

    @staticmethod
    def of_fit(result: FitResult) -> PretrainResult:
        """The same said of a training with labels."""
        found = result.test or result.validation
        return PretrainResult(
            run=result.run,
            bundle=result.bundle,
            method="supervised",
            finished=result.finished,
            images=result.images,
            steps=result.steps,
            metrics={} if found is None else {"accuracy": found.top1, "majority": found.majority[1]},
            alarms=(),
            spent=result.spent,
            remarks=result.remarks,
        )


def result_text(result: FitResult | PretrainResult, found: dict[str, str]) -> str:
    """One line for a notebook and a prompt."""
    numbers = "; ".join(f"{name} {value}" for name, value in found.items())
    state = "" if result.finished else ", not finished"
    work = f"{counted(result.steps, 'step')}, {result.spent.seconds:.0f} s{state}"
    return f"{type(result).__name__}({'; '.join(filter(None, (result.run, numbers, work)))})"


def result_html(run: str, found: dict[str, str], spent: Cost) -> str:
    from html import escape

    rows = {**found, "time": f"{spent.seconds:.0f} s", "run": run, "report": f"{run}/report.html"}
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(cells)}</table>"


def accuracy_lines(result: FitResult) -> dict[str, str]:
    """By split, its accuracy beside that of always predicting the most frequent class."""
    lines = {}
    for name, found in (("test", result.test), ("validation", result.validation)):
        if found is None:
            continue
        (low, high), (label, majority) = found.top1_interval, found.majority
        reliable = f"95 % confidence interval {low:.1%} to {high:.1%}"
        if name == "validation":
            reliable += ", optimistic: these images selected the weights"
        beside = f"always predicting {code(label)}: {majority:.1%}"
        notes = "; ".join(filter(None, (reliable, beside)))
        lines[name] = f"{found.top1:.1%} of {result.images_seen(name)} ({notes})"
    return lines


def guessing_advice(result: FitResult, request: FitRequest) -> str | None:
    """What to do about a model that may be no better than always predicting the most frequent class; else None."""
    found = result.test or result.validation
    if found is None or not found.is_guessing:
        return None
    if request.budget is not None:
        length = f"--budget {format_budget(4 * parse_budget(request.budget))}"
    else:
        length = f"--epochs {4 * request.epochs:g}" if request.epochs is not None else "--budget 1h"
    weights = result.start or "ti16"
    better = "more images" if result.start else "start from trained weights (a download), or give more images"
    command = f"vitreous fit {request.data_description} --weights {weights} {length}"
    return (
        f"This may be guessing: after {counted(result.steps, 'step')}, {found.top1:.1%} is not significantly more "
        f"than the {found.majority[1]:.1%} of always predicting {code(found.majority[0])}. Train longer, "
        f"{'and give' if result.start else 'and'} {better}: {code(command)}."
    )


def read_result(folder: Path) -> FitResult | PretrainResult:
    """What a finished training came to, wherever its folder is now."""
    path = folder / "result.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        found = PretrainResult.from_json(fields) if "method" in fields else FitResult.from_json(fields)
        return replace(found, run=str(folder), bundle=str(folder / Path(found.bundle).name))
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path}: damaged, or of an older vitreous; delete it and repeat the command: what is trained is kept."
        ) from None


def model_card(name: str, request: FitRequest, training: Training, labels: Sequence[str], result: FitResult) -> str:
    """Markdown: what it tells apart, how well, how it was made, what that cost, and how to use it."""
    model, o, spent, objective = training.model, training.optimizer, result.spent, training.objective
    size = f"{model.image_size[0]}x{model.image_size[1]}"
    lines = [
        f"# {code(name)}",
        "",
        f"{with_article(model.describe())} that sorts images of {size} pixels into {len(labels)} classes: "
        f"{', '.join(map(code, labels[:20]))}{', ...' if len(labels) > 20 else ''}.",
        "",
        "## How well it does",
        "",
        *(f"- {split}: {value}" for split, value in accuracy_lines(result).items()),
        *([] if (advice := guessing_advice(result, request)) is None else ["", advice]),
        "",
        "## How it was made",
        "",
        f"- data: {code(request.data_description)}, {result.images:,} training images",
        f"- start: {code(result.start) if result.start else 'random weights'}",
        *([] if request.teacher is None else [f"- teacher: {code(request.teacher)}, {objective.description}"]),
        f"- recipe: {code(request.recipe)}: {o.name}, learning rate {o.learning_rate:g}, batch {training.batch_size}, "
        f"{training.epochs:.3g} epochs, seed {training.seed}"
        + (", classifier fitted to frozen features first" if training.probe else ""),
        f"- cost: {spent.images:,} images seen, {spent.flops:.3g} floating-point operations, "
        f"{spent.core_hours:.3g} core-hours, {spent.seconds:.0f} s"
        + (f", {spent.joules / 3600:.3g} Wh" if spent.joules is not None else ""),
        "",
        "## How to use it",
        "",
        "    vitreous predict FOLDER_OF_THIS_FILE image.jpg",
        "",
        "Its preprocessing and class names are in `config.json`, which timm reads too. `manifest.json` has the SHA-256 "
        "of every file; loading checks it. `seen-images.json` has hashes of the images that trained and selected it.",
        "",
        "It was measured on images like those it was trained on. On others it may be wrong and sure of it.",
        "",
    ]
    return "\n".join(lines)


def pretrain_card(name: str, request: PretrainRequest, training: Training, result: PretrainResult) -> str:
    """The same of a model that learned without labels."""
    c, o, spent = training.model, training.optimizer, result.spent
    lines = [
        f"# {code(name)}",
        "",
        f"{with_article(c.describe())} for images of {c.image_size[0]}x{c.image_size[1]} pixels that learned from "
        f"images without labels, by {code(request.method)}. It has no classifier: it gives a representation "
        f"of {c.features} numbers.",
        "",
        *(f"**{alarm}**\n" for alarm in result.alarms),
        "## How it was made",
        "",
        f"- data: {code(str(request.data))}, {result.images:,} images",
        f"- {o.name}, learning rate {o.learning_rate:g}, batch {training.batch_size}, {training.epochs:.3g} epochs, "
        f"seed {training.seed}",
        f"- cost: {spent.images:,} images seen, {spent.core_hours:.3g} core-hours, {spent.seconds:.0f} s",
        *(f"- live {code(metric)} at the end: {value:.3f}" for metric, value in result.metrics.items()),
        "",
        "## How to use it",
        "",
        "    vitreous fit DATA --weights FOLDER_OF_THIS_FILE",
        "    vitreous probe FOLDER_OF_THIS_FILE DATA --protocol linear",
        "",
    ]
    return "\n".join(lines)
