"""What a training without labels was asked for and what it came to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.config.change import change
from vitreous.config.pretrain import Method
from vitreous.config.train import Training
from vitreous.errors import UserError
from vitreous.jobs.run import FitResult


@dataclass(frozen=True)
class PretrainRequest:
    """All that a person asked for; the same request in the same run folder goes on where it was."""

    data: str
    method: str
    model: str | None = None
    image_size: int | None = None
    budget: str | None = None
    epochs: float | None = None
    seed: int = 0
    changes: dict[str, str] = field(default_factory=dict)
    """Single fields of the recipe that were set otherwise; those of the method begin with "method."."""


@dataclass(frozen=True)
class PretrainResult:
    """What it came to. The last weights are kept: no label chose them."""

    run: str
    bundle: str
    method: str
    finished: bool
    pictures: int
    """In the training part."""
    steps: int
    figures: dict[str, float]
    """Of the last live evaluation: "knn", an accuracy, where there are labels, else "loss" for mae and "information"
    for dino and dinov2; supervised: "accuracy"."""
    alarms: tuple[str, ...]
    """What was said of a collapse."""
    spent: dict[str, Any]
    remarks: tuple[str, ...] = field(default=())

    @staticmethod
    def of_fit(result: FitResult) -> PretrainResult:
        """The same said of a training with labels."""
        found = result.test or result.validation
        return PretrainResult(
            run=result.run,
            bundle=result.bundle,
            method="supervised",
            finished=result.finished,
            pictures=result.pictures,
            steps=result.steps,
            figures={} if found is None else {"accuracy": found["top1"]},
            alarms=(),
            spent=result.spent,
            remarks=result.remarks,
        )


def read_pretrained(folder: Path) -> PretrainResult:
    """What a finished training came to."""
    path = folder / "result.json"
    try:
        fields = json.loads(path.read_text())
        return PretrainResult(**{**fields, "alarms": tuple(fields["alarms"]), "remarks": tuple(fields["remarks"])})
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged; delete it and repeat the command: the training is not done again.") from None


def pretrain_card(name: str, request: PretrainRequest, training: Training, result: PretrainResult) -> str:
    """The bundle's README.md: how it was made, what it is for, and what it cost."""
    c, o, spent = training.model, training.optimizer, result.spent
    lines = [
        f"# {name}",
        "",
        f"A Vision Transformer (width {c.width}, depth {c.depth}, patch {c.patch}, {c.image_size[0]}x{c.image_size[1]} "
        f"pixels) that learned from pictures without labels, by {request.method}. It has no classifier: it gives a "
        f"representation of {c.width} numbers.",
        "",
        *(f"**{alarm}**\n" for alarm in result.alarms),
        "## How it was made",
        "",
        f"- data: {request.data}, {result.pictures:,} pictures",
        f"- {o.name}, rate {o.rate:g}, batch {training.batch_size}, {training.epochs:.3g} epochs, seed {training.seed}",
        f"- cost: {spent['pictures']:,} pictures seen, {spent['core_hours']:.3g} core-hours, {spent['seconds']:.0f} s",
        *(f"- live {figure} at the end: {value:.3f}" for figure, value in result.figures.items()),
        "",
        "## How to use it",
        "",
        "    vitreous fit DATA --weights FOLDER_OF_THIS_FILE",
        "    vitreous probe FOLDER_OF_THIS_FILE DATA --protocol linear",
        "",
    ]
    return "\n".join(lines)


OWN = "method."
UNUSED = frozenset(
    {"freeze", "lora", "tokens", "label_smoothing", "class_weights", "compile", "validation", "probe", "blend"}
    | {"augment.mixup", "augment.cutmix", "model.patch_dropout"}
)
"""Fields of a training that labels or given weights belong to."""


def changed(training: Training, method: Method, changes: Mapping[str, str]) -> tuple[Training, Method]:
    """The recipe with single fields set otherwise; names of the method's begin with "method."."""
    if unused := sorted(UNUSED & set(changes)):
        raise UserError(f"--set {unused[0]}: has no part in learning without labels; leave it away.")
    own = {name.removeprefix(OWN): text for name, text in changes.items() if name.startswith(OWN)}
    training = change(training, {name: text for name, text in changes.items() if not name.startswith(OWN)})
    try:
        return training, change(method, own)
    except UserError as error:
        raise UserError(str(error).replace("--set ", f"--set {OWN}", 1)) from None
