"""What an analysis measures, as values with names; `Numbers.to_json` is what `analysis.json` holds.

Letters in shapes: L layers, h heads, F frequencies, R singular values. Depth 0 is the embedding, depth l the output of
block l.
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
    interval: tuple[float, float]
    """95 %."""
    n: int
    """How many images were asked about."""


@dataclass(frozen=True)
class Measures:
    """The means over images of what needs no labels; `vitreous.explain.analysis` has a function for each."""

    attention_distance: Table
    """(L, h), in pixels of the input."""
    mutual_information: Table
    """(L, h), of queries and keys."""
    head_similarity: Values
    """(L,)."""
    query_similarity: Values
    """(L,)."""
    log_amplitude: Table
    """(L + 1, F), at `frequencies`."""
    token_similarity: Values
    """(L + 1,)."""
    token_spectrum: Table
    """(L + 1, R), natural logarithms relative to the largest."""
    token_rank: Values
    """(L + 1,)."""
    depth_similarity: Table
    """(L, L), of the layers' attention."""
    frequencies: Values
    """(F,), as shares of the highest along the diagonal of the grid."""
    image_rank: Values
    """(L + 1,), of the images' mean tokens."""
    representation_rank: float
    representation_spectrum: Values
    """(R,), as `token_spectrum`."""


@dataclass(frozen=True)
class Shape:
    """How large a model is, and what images it takes."""

    width: int
    depth: int
    heads: int
    patch: int
    size: tuple[int, int]
    """Height and width of its input, in pixels."""
    classes: int
    parameters: int


@dataclass(frozen=True)
class Probes:
    """What linear probes make of a model's features."""

    accuracy: tuple[AccuracyInterval, ...]
    """(L + 1,): on the mean of the patch tokens at each depth."""
    representation: AccuracyInterval


@dataclass(frozen=True)
class UnderNoise:
    """How well a model answers when images carry noise of some frequencies."""

    clean: AccuracyInterval
    """Without noise."""
    bands: tuple[tuple[float, float], ...]
    """The frequencies, as shares of the highest."""
    accuracy: tuple[AccuracyInterval, ...]
    """One per band."""


@dataclass(frozen=True)
class ModelNumbers:
    """All that was measured of one model."""

    name: str
    shape: Shape
    grid: tuple[int, int]
    """Rows and columns of patches."""
    measures: Measures
    probe: Probes | None
    """This and the next are None without labels."""
    noise: UnderNoise | None

    def relative_distance(self) -> Table:
        """(L, h): the attention distance as a share of the longer side of the input."""
        longer = max(self.shape.size)
        return tuple(tuple(value / longer for value in heads) for heads in self.measures.attention_distance)

    def to_json(self) -> dict[str, Any]:
        """The measures beside the rest; what needs labels is left out where there are none."""
        found = {"name": self.name, "shape": asdict(self.shape), "grid": self.grid, **asdict(self.measures)}
        if self.probe is not None and self.noise is not None:
            found |= {"probe": asdict(self.probe), "noise": asdict(self.noise)}
        return found


@dataclass(frozen=True)
class SummaryRow:
    """One measure of all models."""

    measure: str
    share: bool
    """Whether it is a share, to be shown as per cent."""
    values: Values
    """One per model."""


@dataclass(frozen=True)
class Likeness:
    """CKA of two models' depths."""

    models: tuple[int, int]
    """Which of the analysis' models; the same twice for a model with itself."""
    values: Table
    """(L1 + 1, L2 + 1)."""


@dataclass(frozen=True)
class MeasuredOn:
    """The images of an analysis."""

    source: str
    """Where they are from; "from" in JSON."""
    split: str
    images: int
    learned_from: int | None
    """Images that the probes learned from. This and the next are None without labels."""
    classes: int | None
    seed: int

    def to_json(self) -> dict[str, Any]:
        """As dicts, texts and numbers."""
        fields = asdict(self)
        return {"from": fields.pop("source"), **fields}


@dataclass(frozen=True)
class Numbers:
    """All that an analysis measured."""

    data: MeasuredOn
    summary: tuple[SummaryRow, ...]
    models: tuple[ModelNumbers, ...]
    cka: tuple[Likeness, ...]
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
