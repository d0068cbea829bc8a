"""What there is to say of a comparison beside its accuracies: the models, what all share, and what to beware of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vitreous.data.source import Split
from vitreous.studies.compare.plan import GRID, ComparePlan
from vitreous.studies.compare.result import Cell, Compared, Trial, fraction_text

STEPS_APART = 1.1  # times as many steps as with another seed are worth a remark


def remarks(
    models: Sequence[Compared],
    cells: Sequence[Cell],
    trials: Sequence[Trial],
    plan: ComparePlan | None,
    *,
    split: Split,
    held_out: bool,
    total: int,
    measured: int,
) -> Iterator[str]:
    """What a reader should beware of.

    split: what accuracies are of, a part of what the data have for training if `held_out`; of its `total` images so
        many are `measured`.
    """
    trained, finished = ([m for m in models if m.trained is kind] for kind in (True, False))
    if split != "test":
        where = (
            f"{total:,} of the images that were set aside at random, the same for all"
            if held_out
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
    if measured < total:
        yield (
            f"The time was too short to measure all {total:,} images: all models are measured on the same "
            f"{measured:,}, chosen at random."
        )
    if unread := [cell for cell in cells if not cell.diverged and cell.n < measured]:
        least = min(cell.n for cell in unread)
        yield (
            f"In {len(unread)} of {len(cells)} cells some images could not be read and were left out: {least:,} of "
            f"{measured:,} are left."
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
                    f"{model.name}, {fraction_text(fraction)} of the images: {min(steps):,} to {max(steps):,} steps, "
                    "as the machine was not equally fast for all seeds."
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
                f"{cell.model}, {fraction_text(cell.fraction)} of the images, seed {cell.seed}: the training diverged; "
                "it counts as one with no image right."
            )
