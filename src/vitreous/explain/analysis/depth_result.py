"""The numbers of an analysis by depth, as `analysis.json` holds them.

Letters in shapes: L layers. Depth 0 is the embedding, depth l the output of block l.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Values = tuple[float, ...]
Table = tuple[Values, ...]


@dataclass(frozen=True)
class AccuracyInterval:
    """The share of right answers."""

    value: float
    interval: tuple[float, float]  # 95 %
    n: int  # how many images were asked about


@dataclass(frozen=True)
class Shape:
    """How large a model is, and what images it takes."""

    width: int
    depth: int
    heads: int
    patch: int
    size: tuple[int, int]  # height and width of its input, in pixels
    classes: int
    parameters: int


@dataclass(frozen=True)
class Probes:
    """What linear probes make of a model's features."""

    accuracy: tuple[AccuracyInterval, ...]  # (L + 1,): on the mean of the patch tokens at each depth
    representation: AccuracyInterval
    best_depth: int
    """Where probes do best in a two-fold cross-validation on the images that they learn from, none of them measured."""


@dataclass(frozen=True)
class UnderNoise:
    """How well a model answers when images carry noise of some frequencies."""

    clean: AccuracyInterval  # without noise
    bands: tuple[tuple[float, float], ...]  # the frequencies, as shares of the highest
    accuracy: tuple[AccuracyInterval, ...]  # one per band


@dataclass(frozen=True)
class ModelNumbers:
    """All that was measured of one model."""

    name: str
    shape: Shape
    grid: tuple[int, int]  # rows and columns of patches
    measures: dict[str, Any]  # by name what each row of `DEPTH_MEASURES` found, as nested tuples
    probe: Probes | None  # this and the next are None without labels
    noise: UnderNoise | None

    def to_json(self) -> dict[str, Any]:
        """The measures beside the rest; what needs labels is left out where there are none."""
        found = {"name": self.name, "shape": asdict(self.shape), "grid": self.grid, **self.measures}
        if self.probe is not None and self.noise is not None:
            found |= {"probe": asdict(self.probe), "noise": asdict(self.noise)}
        return found


@dataclass(frozen=True)
class SummaryRow:
    """One measure of all models."""

    measure: str
    share: bool  # whether it is a share, to be shown as per cent
    values: Values  # one per model
    note: str = ""  # what must be known to read it


@dataclass(frozen=True)
class Cka:
    """CKA of two models' depths."""

    models: tuple[int, int]  # which of the analysis' models; the same twice for a model with itself
    values: Table  # (L1 + 1, L2 + 1)


@dataclass(frozen=True)
class MeasuredOn:
    """The images of an analysis."""

    source: str  # where they are from; "from" in JSON
    split: str
    images: int
    data_description: int | None  # images that the probes learned from. This and the next are None without labels.
    classes: int | None
    seed: int

    def to_json(self) -> dict[str, Any]:
        """As dicts, texts and numbers."""
        fields = asdict(self)
        return {"from": fields.pop("source"), **fields}


@dataclass(frozen=True)
class DepthAnalysis:
    """All that an analysis measured."""

    data: MeasuredOn
    summary: tuple[SummaryRow, ...]
    models: tuple[ModelNumbers, ...]
    cka: tuple[Cka, ...]
    noise_strength: float
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """What `analysis.json` holds."""
        return {
            "data": self.data.to_json(),
            "summary": [asdict(row) for row in self.summary],
            "models": [model.to_json() for model in self.models],
            "cka": [asdict(pair) for pair in self.cka],
            "noise_strength": self.noise_strength,
            "remarks": list(self.remarks),
        }
