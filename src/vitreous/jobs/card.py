"""The model card: what a bundle's README.md says."""

from __future__ import annotations

from collections.abc import Sequence

from vitreous.config.train import Training
from vitreous.train.meter import Spent


def model_card(
    *,
    name: str,
    data: str,
    training: Training,
    recipe: str,
    weights: str | None,
    labels: Sequence[str],
    pictures: int,
    figures: dict[str, str],
    spent: Spent,
) -> str:
    """Markdown: what it tells apart, how well, how it was made, what that cost, and how to use it."""
    model = training.model
    size = f"{model.image_size[0]}x{model.image_size[1]}"
    o = training.optimizer
    lines = [
        f"# {name}",
        "",
        f"A Vision Transformer (width {model.width}, depth {model.depth}, patch {model.patch}) that sorts pictures "
        f"of {size} pixels into {len(labels)} classes: {', '.join(labels[:20])}{', ...' if len(labels) > 20 else ''}.",
        "",
        "## How well it does",
        "",
        *(f"- {part}: {value}" for part, value in figures.items()),
        "",
        "## How it was made",
        "",
        f"- data: {data}, {pictures:,} training pictures",
        f"- start: {weights or 'random weights'}",
        f"- recipe: `{recipe}`: {o.name}, rate {o.rate:g}, batch {training.batch_size}, {training.epochs:.3g} epochs, "
        f"seed {training.seed}{', classifier fitted to frozen features first' if training.probe else ''}",
        f"- cost: {spent.pictures:,} pictures seen, {spent.flops:.3g} floating-point operations, "
        f"{spent.core_hours:.3g} core-hours, {spent.seconds:.0f} s"
        + (f", {spent.joules / 3600:.3g} Wh" if spent.joules is not None else ""),
        "",
        "## How to use it",
        "",
        "    vitreous predict FOLDER_OF_THIS_FILE picture.jpg",
        "",
        "Its preprocessing and class names are in `config.json`, which timm reads too. `manifest.json` has the SHA-256 "
        "of every file; loading checks it.",
        "",
        "It was measured on pictures like those it was trained on. On others it may be wrong and sure of it.",
        "",
    ]
    return "\n".join(lines)
