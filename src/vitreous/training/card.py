"""The model card: what a bundle's README.md says. Names that came with the data are shown in it, and do nothing."""

from __future__ import annotations

from collections.abc import Sequence

from vitreous.config.train import Training
from vitreous.distributed.meter import Cost
from vitreous.model.family import described
from vitreous.training.request import PretrainRequest
from vitreous.training.result import PretrainResult
from vitreous.weights.markdown import code


def model_card(
    *,
    name: str,
    data: str,
    training: Training,
    recipe: str,
    weights: str | None,
    labels: Sequence[str],
    images: int,
    scores: dict[str, str],
    spent: Cost,
    teacher: str | None = None,
) -> str:
    """Markdown: what it tells apart, how well, how it was made, what that cost, and how to use it."""
    model = training.model
    size = f"{model.image_size[0]}x{model.image_size[1]}"
    o = training.optimizer
    lines = [
        f"# {code(name)}",
        "",
        f"{described(model)} that sorts images of {size} pixels into {len(labels)} classes: "
        f"{', '.join(map(code, labels[:20]))}{', ...' if len(labels) > 20 else ''}.",
        "",
        "## How well it does",
        "",
        *(f"- {split}: {value}" for split, value in scores.items()),
        "",
        "## How it was made",
        "",
        f"- data: {code(data)}, {images:,} training images",
        f"- start: {code(weights) if weights else 'random weights'}",
        *([f"- teacher: {code(teacher)}, {training.objective.way}"] if teacher is not None else []),
        f"- recipe: {code(recipe)}: {o.name}, learning rate {o.learning_rate:g}, batch {training.batch_size}, "
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
        "of every file; loading checks it.",
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
        f"{described(c)} for images of {c.image_size[0]}x{c.image_size[1]} pixels that learned from images "
        f"without labels, by {code(request.method)}. It has no classifier: it gives a representation of {c.features} "
        "numbers.",
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
