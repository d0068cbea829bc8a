"""What a comparison of models came to: every cell, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from vitreous.data.source import Split
from vitreous.distributed.meter import Cost
from vitreous.evaluation.intervals import Accuracies, Difference, Verdict, difference, gap_change, judge
from vitreous.explain.analysis.bias_numbers import Bias
from vitreous.studies.requests import Equal


@dataclass(frozen=True)
class Compared:
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
class Closing:
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
            return f"{ahead}: no change between {fractions} can be told ({value}{margin} points)"
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
    models: tuple[Compared, ...]
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
        """Of each model trained with this fraction, and of the finished ones; None: of the finished ones alone."""
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
        return {fraction: judge(self.accuracies(fraction)) for fraction in self.fractions or (None,) if self.cells}

    @property
    def pairs(self) -> int:
        """How many pairs of models were compared, with all fractions."""
        return sum(verdict.pairs for verdict in self.verdicts.values())

    @property
    def closing(self) -> tuple[Closing, ...]:
        """Of each trained model and the first one, whether their gap closes with more images."""
        names = [model.name for model in self.models if model.trained]
        if len(self.fractions) < 2 or len(names) < 2:
            return ()
        smallest, *_, largest = self.fractions
        few, many = self.accuracies(smallest), self.accuracies(largest)
        first, *others = names
        return tuple(
            Closing(name, first, smallest, largest, gap_change((few[name], few[first]), (many[name], many[first])))
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
    """Of each model the first training on most images that did not diverge, or the finished model itself."""
    largest = max((cell.fraction for cell in cells if cell.fraction is not None), default=None)
    found: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.seed or 0):
        if cell.fraction in (largest, None) and not cell.diverged:
            found.setdefault(cell.model, cell)
    return list(found.values())
