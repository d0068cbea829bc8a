"""What there is to say of a comparison beside its accuracies: the models, what all share, and what to beware of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitreous.config.model import ModelConfig
from vitreous.config.train import Training
from vitreous.errors import UserError
from vitreous.model.family import count_flops, count_parameters, described
from vitreous.report.compared import Cell, Compared, Tried
from vitreous.run.cells import RECIPE
from vitreous.run.comparison import GRID
from vitreous.run.saved import training_to_json

SHARED = ("objective", "augment", "optimizer", "batch_size", "ema", "whiten", "validation", "split_seed")
"""Fields of a training that all cells have in common, but for the learning rate."""


def compared(name: str, config: ModelConfig, *, trained: bool, learning_rate: float | None) -> Compared:
    """A model as the page describes it."""
    return Compared(
        name,
        described(config),
        count_parameters(config),
        count_flops(config),
        config.image_size,
        trained,
        learning_rate,
    )


def shared_settings(trainings: Mapping[str, Training]) -> dict[str, Any]:
    """How all models are trained; refused where the recipe would make a difference between them."""
    found: dict[str, dict[str, Any]] = {}
    for name, training in trainings.items():
        fields = training_to_json(training)
        fields["optimizer"].pop("learning_rate")
        found[name] = {"recipe": RECIPE, **{field: fields[field] for field in SHARED}}
    if not found:
        return {}
    first, *others = found
    for other in others:
        if differing := [field for field in found[first] if found[first][field] != found[other][field]]:
            sides = [trainings[name].model.image_size[0] for name in (first, other)]
            raise UserError(
                f"models: {first} looks at {sides[0]} pixels and {other} at {sides[1]}, for which the recipe has "
                f"another {differing[0]}; give one image_size for all, or the same after each name's @."
            )
    return found[first]


def remarks(
    models: Sequence[Compared], cells: Sequence[Cell], tried: Sequence[Tried], split: str, pictures: int
) -> Iterator[str]:
    """What a reader should beware of."""
    if split != "test":
        yield (
            "The data have no test split, so accuracies are of the validation pictures, which also chose the weights "
            "and the learning rates: expect somewhat less on new ones. A finished model may have learned from them."
        )
    if len({model.image_size for model in models}) > 1:
        sizes = ", ".join(f"{model.name} {model.image_size[0]}x{model.image_size[1]}" for model in models)
        yield f"The models look at pictures of different sizes: {sizes}."
    for model in models:
        rates = [trial.learning_rate for trial in tried if trial.model == model.name]
        if len(rates) == len(GRID) and model.learning_rate in (min(rates), max(rates)):
            end = "lowest" if model.learning_rate == min(rates) else "highest"
            yield f"{model.name}: the {end} learning rate that was tried, {model.learning_rate:g}, was the best."
    fewer = [cell for cell in cells if cell.n < pictures]
    if fewer:
        least = min(cell.n for cell in fewer)
        yield (
            f"In {len(fewer)} of {len(cells)} cells the time was too short to measure all {pictures:,} pictures; a "
            f"random part was, of at least {least:,}."
        )
    if any(model.trained for model in models) and len({cell.seed for cell in cells if cell.seed is not None}) == 1:
        yield "With one seed the spread is not known, so no trained model is said to be ahead."


def full_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Of each model the training on most pictures with the first seed, or the finished model itself."""
    found: dict[str, Cell] = {}
    for cell in cells:
        if cell.seed in (0, None) and (cell.fraction or 0) >= (found.get(cell.model, cell).fraction or 0):
            found[cell.model] = cell
    return list(found.values())


def looks_per_second(trials: Sequence[Tried], forward_flops: Mapping[str, float]) -> dict[str, float]:
    """Pictures that each model sees in a second, judged by its trials; a finished model has none and is left out."""
    return {
        name: max(t.spent.flops / t.spent.seconds for t in trials if t.model == name) / flops
        for name, flops in forward_flops.items()
        if any(trial.model == name for trial in trials)
    }
