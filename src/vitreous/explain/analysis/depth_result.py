"""What an analysis by depth measures: the table of its measures, and its numbers as `analysis.json` holds them.

Letters in shapes: L layers, h heads, F frequencies, R singular values. Depth 0 is the embedding, depth l the output of
block l.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

Values = tuple[float, ...]
Table = tuple[Values, ...]


@dataclass(frozen=True)
class AccuracyInterval:
    """The share of right answers."""

    value: float
    interval: tuple[float, float]  # 95 %
    n: int  # how many images were asked about


@dataclass(frozen=True)
class Measures:
    """The means over images of what needs no labels; `vitreous.explain.analysis` has a function for each."""

    attention_distance: Table  # (L, h), in pixels of the input
    mutual_information: Table  # (L, h), of queries and keys
    head_similarity: Values  # (L,)
    query_similarity: Values  # (L,)
    log_amplitude: Table  # (L + 1, F), at `frequencies`
    token_similarity: Values  # (L + 1,)
    token_spectrum: Table  # (L + 1, R), natural logarithms relative to the largest
    token_rank: Values  # (L + 1,)
    depth_similarity: Table  # (L, L), of the layers' attention
    frequencies: Values  # (F,), as shares of the highest along the diagonal of the grid
    image_rank: Values  # (L + 1,), of the images' mean tokens
    representation_rank: float
    representation_spectrum: Values  # (R,), as `token_spectrum`


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
    measures: Measures
    probe: Probes | None  # this and the next are None without labels
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
    share: bool  # whether it is a share, to be shown as per cent
    values: Values  # one per model


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


class Measure(NamedTuple):
    """What a model has at every depth: one number, or one per head."""

    row: str | None  # its name in the table; None where it is not in there
    title: str  # of its plot
    reading: str  # what a high or a low value means
    values: Callable[[ModelNumbers], Values | Table]
    as_percent: bool = False


MEASURES = {
    "attention_distance": Measure(
        "attention distance, of the longer side",
        "attention distance, of the longer side",
        "How far a patch looks on average; a dot is a head. High: it gathers from the whole image, as a shape "
        "needs. Low: from its neighbours, as texture needs.",
        ModelNumbers.relative_distance,
        as_percent=True,
    ),
    "mutual_information": Measure(
        "mutual information of queries and keys",
        "mutual information of queries and keys",
        "Whether where a patch looks depends on which patch it is. 0: all patches look at the same places, the "
        "attention has collapsed into one map. 1: each has a place of its own.",
        lambda m: m.measures.mutual_information,
    ),
    "head_similarity": Measure(
        "likeness of two heads' attention",
        "likeness of heads",
        "Mean cosine similarity of two heads' attention. Near 1: the heads do the same work several times.",
        lambda m: m.measures.head_similarity,
    ),
    "query_similarity": Measure(
        "likeness of two places' attention",
        "likeness of places: attention",
        "Mean cosine similarity of two patches' attention. Near 1 tells of collapse, as mutual information near 0.",
        lambda m: m.measures.query_similarity,
    ),
    "token_similarity": Measure(
        "likeness of two places' tokens",
        "likeness of places: tokens",
        "Mean cosine similarity of two patches' tokens. Near 1: an image's tokens say all the same.",
        lambda m: m.measures.token_similarity,
    ),
    "log_amplitude": Measure(
        "log amplitude of the highest frequency",
        "log amplitude, highest frequency",
        "How much neighbouring tokens differ, against what all have in common (natural logarithm). Higher: more "
        "detail and texture is kept. Falling: the layers smooth it away.",
        lambda m: tuple(amplitudes[-1] for amplitudes in m.measures.log_amplitude),
    ),
    "token_rank": Measure(
        "dimensions in use by an image's tokens",
        "dimensions in use by tokens",
        "Effective rank of one image's tokens. High: tokens are told apart in many ways.",
        lambda m: m.measures.token_rank,
    ),
    "image_rank": Measure(
        None,
        "dimensions in use by images",
        "Effective rank of the images' mean tokens. High: images are told apart in many ways.",
        lambda m: m.measures.image_rank,
    ),
}


def summarise(models: Sequence[ModelNumbers]) -> tuple[SummaryRow, ...]:
    """One row per measure; of what has a depth, the mean of the last third of the layers."""

    def late(values: Values | Table) -> float:
        return float(np.mean(values[-max(1, len(values) // 3) :]))

    def row(measure: str, as_percent: bool, values: Sequence[float]) -> SummaryRow:
        return SummaryRow(measure, as_percent, tuple(round(value, 4) for value in values))

    rows = [row(m.row, m.as_percent, [late(m.values(model)) for model in models]) for m in MEASURES.values() if m.row]
    rows.append(row("dimensions in use by representations", False, [m.measures.representation_rank for m in models]))
    judged = [(m.probe, m.noise) for m in models if m.probe is not None and m.noise is not None]
    if len(judged) == len(models):  # there are labels
        probes, noises = zip(*judged, strict=True)
        rows += [
            row("linear probe of the representation", True, [probe.representation.value for probe in probes]),
            row("linear probe at its best depth", True, [probe.accuracy[probe.best_depth].value for probe in probes]),
            row("accuracy without noise", True, [noise.clean.value for noise in noises]),
            row("accuracy with low-frequency noise", True, [noise.accuracy[0].value for noise in noises]),
            row("accuracy with high-frequency noise", True, [noise.accuracy[-1].value for noise in noises]),
        ]
    return tuple(rows)
