"""What there is to say of a comparison beside its accuracies: the models, what all share, and what to beware of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.config.model import ModelConfig, with_article
from vitreous.config.train import Training
from vitreous.data.source import Split
from vitreous.errors import UserError
from vitreous.model.family import count_flops, count_parameters
from vitreous.report.compared import Cell, Compared, Trial, share_text
from vitreous.studies.compare.cells import RECIPE
from vitreous.studies.compare.plan import GRID, ComparePlan
from vitreous.training.folder import training_to_json

SHARED = ("objective", "augment", "optimizer", "batch_size", "ema", "whiten", "validation", "split_seed")
"""Fields of a training that all cells have in common, but for the learning rate."""

STEPS_APART = 1.1  # times as many steps as with another seed are worth a remark


@dataclass(frozen=True)
class Judged:
    """What accuracies are of."""

    split: Split
    held_out: bool  # whether they are part of what the data have for training
    there: int  # images of the split
    images: int  # of these, how many are measured


def describe_model(name: str, config: ModelConfig, trained: bool, learning_rate: float | None) -> Compared:
    counts = count_parameters(config), count_flops(config)
    return Compared(name, with_article(config.describe()), *counts, config.image_size, trained, learning_rate)


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
    models: Sequence[Compared],
    cells: Sequence[Cell],
    trials: Sequence[Trial],
    judged: Judged,
    plan: ComparePlan | None,
) -> Iterator[str]:
    trained, finished = ([m for m in models if m.trained is kind] for kind in (True, False))
    if judged.split != "test":
        where = (
            f"{judged.there:,} of the images that were set aside at random, the same for all"
            if judged.held_out
            else "the validation images"
        )
        chose = ", which also chose the weights and the learning rates: expect somewhat less on new ones" * bool(
            trained
        )
        learned = " A finished model may have learned from them." * bool(finished)
        yield f"The data have no test split, so accuracies are of {where}{chose}.{learned}"
    yield from _diverged(models, cells, trials)
    if len({model.image_size for model in models}) > 1:
        sizes = ", ".join(f"{model.name} {model.image_size[0]}x{model.image_size[1]}" for model in models)
        yield f"The models look at images of different sizes: {sizes}."
    for model in models:
        rates = [trial.learning_rate for trial in trials if trial.model == model.name and not trial.diverged]
        if len(rates) == len(GRID) and model.learning_rate in (min(rates), max(rates)):
            end = "lowest" if model.learning_rate == min(rates) else "highest"
            yield f"{model.name}: the {end} learning rate that was tried, {model.learning_rate:g}, was the best."
    if judged.images < judged.there:
        yield (
            f"The time was too short to measure all {judged.there:,} images: all models are measured on the same "
            f"{judged.images:,}, chosen at random."
        )
    if unread := [cell for cell in cells if not cell.diverged and cell.n < judged.images]:
        least = min(cell.n for cell in unread)
        yield (
            f"In {len(unread)} of {len(cells)} cells some images could not be read and were left out: {least:,} of "
            f"{judged.images:,} are left."
        )
    if plan is not None and not plan.tuned:
        yield "The time was too short to try learning rates: every model was trained with the recipe's own."
    if plan is not None and not plan.bias_images:
        yield "The time was too short to measure the inductive bias of the models."
    yield from _unequal_steps(models, cells)
    if trained and len({cell.seed for cell in cells if cell.seed is not None}) == 1:
        yield "With one seed the spread is not known, so no trained model is said to be ahead."


def _unequal_steps(models: Sequence[Compared], cells: Sequence[Cell]) -> Iterator[str]:
    """Where the machine was not equally fast for all seeds, which adds to their spread."""
    for model in models:
        for fraction in sorted({cell.fraction for cell in cells if cell.fraction is not None}):
            own = [cell for cell in cells if (cell.model, cell.fraction) == (model.name, fraction)]
            steps = [int(cell.settings["steps"]) for cell in own if "steps" in cell.settings]
            if steps and max(steps) > STEPS_APART * min(steps):
                yield (
                    f"{model.name}, {share_text(fraction)} of the images: {min(steps):,} to {max(steps):,} steps, as "
                    "the machine was not equally fast for all seeds."
                )


def _diverged(models: Sequence[Compared], cells: Sequence[Cell], trials: Sequence[Trial]) -> Iterator[str]:
    for model in models:
        own = [trial for trial in trials if trial.model == model.name]
        lost = [trial.learning_rate for trial in own if trial.diverged]
        if lost and len(lost) == len(own) and not model.learning_rate:
            yield f"{model.name}: failed: the training diverged at every learning rate that was tried."
        elif lost:
            yield f"{model.name}: the trial diverged at learning rate {', '.join(f'{rate:g}' for rate in lost)}."
    for cell in cells:
        if cell.diverged:
            yield (
                f"{cell.model}, {share_text(cell.fraction)} of the images, seed {cell.seed}: the training diverged; "
                "it counts as one with no image right."
            )


def first_on_most(cells: Sequence[Cell]) -> list[Cell]:
    """Of each model the first training on most images that did not diverge, or the finished model itself."""
    largest = max((cell.fraction for cell in cells if cell.fraction is not None), default=None)
    found: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed or 0):
        if cell.fraction in (largest, None) and not cell.diverged:
            found.setdefault(cell.model, cell)
    return list(found.values())
