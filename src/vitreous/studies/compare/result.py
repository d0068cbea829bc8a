"""What a comparison of models came to: every cell, what follows from them, and what to beware of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from vitreous.data.source import Split
from vitreous.distributed.meter import Cost
from vitreous.evaluation.intervals import Accuracies, Difference, Verdict, difference, gap_change, rank_models
from vitreous.explain.analysis.bias_result import Bias
from vitreous.studies.compare.plan import RATE_FACTORS, ComparePlan
from vitreous.studies.requests import Equal

STEPS_APART = 1.1  # times as many steps as with another seed are worth a remark


@dataclass(frozen=True)
class ComparedModel:
    """One of the models."""

    name: str  # as the person wrote it
    description: str
    parameters: int
    forward_flops: int  # floating-point operations of one image's forward pass
    image_size: tuple[int, int]
    trained: bool  # false for a finished model, which was only measured
    learning_rate: float | None = None  # what tuning chose


@dataclass(frozen=True)
class Cell:
    """One training of one model, or a finished model, and how well it does."""

    model: str
    fraction: float | None  # of the training images; this and `seed` are None for a finished model
    seed: int | None
    place: str  # its run folder, or the finished model
    images: int | None  # distinct ones that it was trained on
    accuracy: float
    interval: tuple[float, float]  # Wilson's 95 %, of the images alone
    n: int  # images that it was measured on
    validation: float | None  # accuracy on the validation images, which chose the weights
    spent: Cost | None
    settings: dict[str, float | int | str] = field(default_factory=dict)
    diverged: bool = False  # whether its loss left the numbers: it has nothing right, and there are no weights


@dataclass(frozen=True)
class Trial:
    """A short training to choose the learning rate."""

    model: str
    learning_rate: float
    accuracy: float  # on validation images
    loss: float | None  # cross-entropy on the same, in nats; None where it diverged
    n: int
    spent: Cost
    diverged: bool = False


@dataclass(frozen=True)
class ComparisonRow:
    """The cells of one model with one fraction of the images, over all seeds."""

    model: str
    fraction: float | None
    images: int | None
    accuracies: Accuracies
    flops: float | None  # of training, mean; this and the next two are None where they are not known
    core_hours: float | None
    seconds: float | None
    ahead: Difference | None  # of the first model with the same fraction; None for that itself

    def to_json(self) -> dict[str, Any]:
        found, ahead = self.accuracies, self.ahead
        return {
            **{name: getattr(self, name) for name in ("model", "fraction", "images", "flops", "core_hours", "seconds")},
            "mean": found.mean,
            "deviation": found.deviation,
            "interval": found.interval,
            "seeds": len(found.by_seed) if found.trained else None,
            "n": found.n,
            "ahead_of_first": None if ahead is None else {**asdict(ahead), "told_apart": ahead.significant},
        }


@dataclass(frozen=True)
class GapChange:
    """Whether how far a model is ahead of another depends on the images."""

    model: str
    first: str
    few: float
    many: float  # fractions of the images: the smallest and the largest
    gap: Difference  # how far it is ahead with few images, less how far with many

    def __str__(self) -> str:
        ahead = f"how far {self.model} is ahead of {self.first}"
        fractions = f"{fraction_text(self.few)} and {fraction_text(self.many)} of the images"
        margin = "" if self.gap.margin is None else f" ± {100 * self.gap.margin:.1f}"
        points = f"{100 * abs(self.gap.value):.1f}{margin} points"
        if not self.gap.significant:
            value = f"{100 * self.gap.value:+.1f}".replace("-", "−")
            return f"{ahead}: no significant change between {fractions} ({value}{margin} points)"
        return f"{ahead}: {'less' if self.gap.value > 0 else 'more'} with more images, by {points} between {fractions}"


@dataclass(frozen=True)
class Comparison:
    """What `vitreous compare` found, and how."""

    out: str
    finished: bool
    data: str
    classes: int
    splits: dict[Split, int]  # images of each split of the data as they were given
    digests: dict[Split, str]  # of the names and labels in each
    split: str  # which one accuracies are measured on
    equal: Equal
    budget: str | None
    cell_seconds: float | None  # what each training may take; with equal FLOPs, what it takes on average
    cell_flops: float | None  # with equal FLOPs, those of each training
    settings: dict[str, Any]  # what all trainings share
    models: tuple[ComparedModel, ...]
    cells: tuple[Cell, ...]
    tried: tuple[Trial, ...]
    machine: dict[str, Any]
    biases: dict[str, Bias] = field(default_factory=dict)
    """Of each model its training on most images with the first seed, all on the same images."""
    remarks: tuple[str, ...] = ()

    @property
    def fractions(self) -> tuple[float, ...]:
        return tuple(sorted({cell.fraction for cell in self.cells if cell.fraction is not None}))

    def accuracies(self, fraction: float | None) -> dict[str, Accuracies]:
        """By model: those trained with this fraction and the finished ones; only the finished ones if None."""
        found = {}
        for model in self.models:
            cells = [c for c in self.cells if c.model == model.name and c.fraction in (fraction, None)]
            if cells:
                by_seed = {cell.seed or 0: cell.accuracy for cell in cells}
                found[model.name] = Accuracies(by_seed, min(cell.n for cell in cells), trained=model.trained)
        return found

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """By fraction, then by model in the order that was given; finished models last."""
        found = [row for fraction in self.fractions for row in self._rows(fraction)]
        return (*found, *self._rows(None))

    def _rows(self, fraction: float | None) -> list[ComparisonRow]:
        accuracies = self.accuracies(fraction)
        first = next(iter(accuracies), None)
        rows = []
        for name, found in accuracies.items():
            cells = [cell for cell in self.cells if cell.model == name and cell.fraction == fraction]
            if not cells:
                continue
            spent = [cell.spent for cell in cells if cell.spent is not None]  # one that diverged has none
            rows.append(
                ComparisonRow(
                    model=name,
                    fraction=fraction,
                    images=next((cell.images for cell in cells if cell.images is not None), None),
                    accuracies=found,
                    flops=fmean(one.flops for one in spent) if spent else None,
                    core_hours=fmean(one.core_hours for one in spent) if spent else None,
                    seconds=fmean(one.seconds for one in spent) if spent else None,
                    ahead=None if name == first or first is None else difference(found, accuracies[first]),
                )
            )
        return rows

    @property
    def verdicts(self) -> dict[float | None, Verdict]:
        """Who is ahead with each fraction; by None where all models are finished ones."""
        return {
            fraction: rank_models(self.accuracies(fraction)) for fraction in self.fractions or (None,) if self.cells
        }

    @property
    def pairs(self) -> int:
        """How many pairs of models were compared, with all fractions."""
        return sum(verdict.pairs for verdict in self.verdicts.values())

    @property
    def closing(self) -> tuple[GapChange, ...]:
        """For each trained model, whether the gap to the first one closes with more images."""
        names = [model.name for model in self.models if model.trained]
        if len(self.fractions) < 2 or len(names) < 2:
            return ()
        smallest, *_, largest = self.fractions
        few, many = self.accuracies(smallest), self.accuracies(largest)
        first, *others = names
        return tuple(
            GapChange(name, first, smallest, largest, gap_change((few[name], few[first]), (many[name], many[first])))
            for name in others
            if all(one in accuracies for one in (name, first) for accuracies in (few, many))
        )

    def to_json(self) -> dict[str, Any]:
        verdicts = [
            {"fraction": f, **asdict(v), "groups": v.groups, "tiers": v.tiers, "pairs": v.pairs, "text": str(v)}
            for f, v in self.verdicts.items()
        ]
        closing = [{**asdict(one), "told_apart": one.gap.significant, "text": str(one)} for one in self.closing]
        summary = [row.to_json() for row in self.rows]
        return {**asdict(self), "summary": summary, "verdicts": verdicts, "closing": closing}


def fraction_text(fraction: float | None) -> str:
    """ "1 %" of 0.01; a finished model has none."""
    return "finished" if fraction is None else f"{100 * fraction:.4g} %"


def first_on_most(cells: Sequence[Cell]) -> list[Cell]:
    """The first training of each model on the most images that did not diverge, or the finished model itself."""
    largest = max((cell.fraction for cell in cells if cell.fraction is not None), default=None)
    found: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed or 0):
        if cell.fraction in (largest, None) and not cell.diverged:
            found.setdefault(cell.model, cell)
    return list(found.values())


def remarks(
    models: Sequence[ComparedModel],
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
        chose = ", which also chose the weights and the learning rates: optimistic for others" * bool(trained)
        learned = " A finished model may have learned from them." * bool(finished)
        yield f"The data have no test split, so accuracies are of {where}{chose}.{learned}"
    yield from _diverged(models, cells, trials)
    if len({model.image_size for model in models}) > 1:
        sizes = ", ".join(f"{model.name} {model.image_size[0]}x{model.image_size[1]}" for model in models)
        yield f"The models look at images of different sizes: {sizes}."
    for model in models:
        rates = [trial.learning_rate for trial in trials if trial.model == model.name and not trial.diverged]
        if len(rates) == len(RATE_FACTORS) and model.learning_rate in (min(rates), max(rates)):
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


def _unequal_steps(models: Sequence[ComparedModel], cells: Sequence[Cell]) -> Iterator[str]:
    """Trainings of different length, as the machine was not equally fast for all seeds: that adds to their spread."""
    for model in models:
        for fraction in sorted({cell.fraction for cell in cells if cell.fraction is not None}):
            own = [cell for cell in cells if (cell.model, cell.fraction) == (model.name, fraction)]
            steps = [int(cell.settings["steps"]) for cell in own if "steps" in cell.settings]
            if steps and max(steps) > STEPS_APART * min(steps):
                yield (
                    f"{model.name}, {fraction_text(fraction)} of the images: {min(steps):,} to {max(steps):,} steps, "
                    "as the machine was not equally fast for all seeds."
                )


def _diverged(models: Sequence[ComparedModel], cells: Sequence[Cell], trials: Sequence[Trial]) -> Iterator[str]:
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
