"""The measures of an analysis by depth: one row each, with all that reading, JSON, table and page ask of it.

Letters in shapes: B images of a batch, n of all, h heads, L layers, N patches, D width, F frequencies, R singular
values. Depth 0 is the embedding, depth l the output of block l.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitreous.explain.analysis import measures
from vitreous.explain.analysis.depth_result import ModelNumbers, SummaryRow, Table, Values
from vitreous.explain.attention import SINK_RATIO, attention_sinks, cell_distances, mean_distance


@dataclass(frozen=True)
class LayerAttention:
    """What a measure may read of one layer of a batch."""

    weights: Tensor  # (B, h, N, N), among patches; see `vitreous.explain.analysis.measures`
    grid: tuple[int, int]  # rows and columns of patches
    patch: int  # side of a patch, in pixels


@dataclass(frozen=True)
class PatchTokens:
    """What a measure may read of one depth of a batch."""

    patches: Tensor  # (B, N, D)
    grid: tuple[int, int]

    @cached_property
    def singular_values(self) -> Tensor:
        """(B, R)."""
        return measures.singular_values(self.patches)


@dataclass(frozen=True)
class Features:
    """What a measure may read of all images together."""

    depths: Tensor  # (n, L + 1, D), the mean of the patch tokens
    representations: Tensor  # (n, D), what the classifier reads
    grid: tuple[int, int]

    @cached_property
    def singular_values(self) -> Tensor:
        """(R,) of the representations."""
        return measures.singular_values(self.representations)


@dataclass(frozen=True)
class DepthMeasure:
    """What is measured of every model."""

    title: str  # of its plot, and in the table
    reading: str  # what a high or a low value means
    of: Literal["attention", "tokens", "layers", "features"]
    """What `compute` is called with: the `LayerAttention` of each layer; the `PatchTokens` of each depth; the layers'
    attention, each the mean of its heads, (B, L, N, N); or once, when all images were seen, their `Features`."""
    compute: Callable[[Any], Tensor]
    """One number or vector per image, (B, ...), of which the mean is kept; of `Features`, the result itself."""
    section: str = "What tokens hold"  # of the page
    plot: Literal["depth", "spectrum", "matrix", "frequencies"] | None = "depth"
    """depth: over depth, with the heads as dots; spectrum: the numbers of the last depth, one after the other; matrix:
    layers against layers; frequencies: `log_amplitude` of the last depth over these frequencies."""
    row: str | None = None  # its name in the table, if not the title; "" for none
    as_percent: bool = False
    few: bool = False  # costly, and hardly different between images: some are enough
    value: Callable[[ModelNumbers], Values | Table] | None = None  # what is shown; None for the numbers themselves

    def of_model(self, name: str, model: ModelNumbers) -> Any:
        """What plot and table show of a model, of the measure of this name."""
        return model.measures[name] if self.value is None else self.value(model)


ATTENTION_SECTION, REPRESENTATION_SECTION = "Where it looks", "What images' representations hold"

DEPTH_MEASURES: dict[str, DepthMeasure] = {
    "attention_distance": DepthMeasure(
        "attention distance, of the longer side",
        "How far a patch looks on average; a dot is a head. High: it gathers from the whole image, as a shape needs. "
        "Low: from its neighbours, as texture needs.",
        "attention",  # (B, h), in pixels of the input
        lambda a: mean_distance(a.weights, cell_distances(a.grid, a.patch).to(a.weights)),
        ATTENTION_SECTION,
        as_percent=True,
        value=lambda m: tuple(tuple(head / max(m.shape.size) for head in t) for t in m.measures["attention_distance"]),
    ),
    "mutual_information": DepthMeasure(
        "mutual information of queries and keys",
        "Whether where a patch looks depends on which patch it is. 0: all patches look at the same places, the "
        "attention has collapsed into one map. 1: each has a place of its own.",
        "attention",
        lambda a: measures.mutual_information(a.weights),
        ATTENTION_SECTION,
    ),
    "attention_sinks": DepthMeasure(
        "attention sinks per image",
        f"Patches that get more than {SINK_RATIO} times the attention of an average patch, in the median over heads "
        "and patches. The model keeps information about the whole image there; in attention maps they glow wherever "
        "they are (Darcet et al. 2024, Vision Transformers Need Registers).",
        "attention",
        lambda a: attention_sinks(a.weights, 0).sum(dim=1).double(),
        ATTENTION_SECTION,
    ),
    "head_similarity": DepthMeasure(
        "cosine similarity of heads",
        "Mean cosine similarity of two heads' attention. Near 1: the heads do the same work several times.",
        "attention",
        lambda a: measures.head_similarity(a.weights),
        ATTENTION_SECTION,
        row="cosine similarity of two heads' attention",
    ),
    "query_similarity": DepthMeasure(
        "cosine similarity of patches: attention",
        "Mean cosine similarity of two patches' attention. Near 1 tells of collapse, as mutual information near 0.",
        "attention",
        lambda a: measures.query_similarity(a.weights).mean(dim=1),
        ATTENTION_SECTION,
        row="cosine similarity of two patches' attention",
    ),
    "depth_similarity": DepthMeasure(
        "cosine similarity of layers: attention",
        "cosine similarity of two layers' attention. A full block: layers that look at the same places.",
        "layers",
        measures.depth_similarity,
        ATTENTION_SECTION,
        plot="matrix",
        row="",
    ),
    "token_similarity": DepthMeasure(
        "cosine similarity of patches: tokens",
        "Mean cosine similarity of two patches' tokens. Near 1: an image's tokens say all the same.",
        "tokens",
        lambda t: measures.mean_cosine(t.patches),
        row="cosine similarity of two patches' tokens",
    ),
    "log_amplitude": DepthMeasure(
        "log amplitude, highest frequency",
        "How much neighbouring tokens differ, against what all have in common (natural logarithm). Higher: more detail "
        "and texture is kept. Falling: the layers smooth it away.",
        "tokens",  # (B, F), at `frequencies`
        lambda t: measures.log_amplitude(t.patches, t.grid),
        row="log amplitude of the highest frequency",
        value=lambda m: tuple(amplitudes[-1] for amplitudes in m.measures["log_amplitude"]),
    ),
    "frequencies": DepthMeasure(
        "log amplitude after the last layer",
        "The same for all frequencies along the diagonal of the grid, relative to frequency 0.",
        "features",  # (F,), as fractions of the highest
        lambda f: measures.diagonal_fractions(f.grid),
        plot="frequencies",
        row="",
    ),
    "token_rank": DepthMeasure(
        "dimensions in use by tokens",
        "Effective rank of one image's tokens. High: tokens are told apart in many ways.",
        "tokens",
        lambda t: measures.effective_rank(t.singular_values),
        row="dimensions in use by an image's tokens",
        few=True,
    ),
    "token_spectrum": DepthMeasure(
        "singular values of tokens, last layer",
        "Natural logarithm, relative to the largest, mean over images. A steep fall: few directions hold all.",
        "tokens",
        lambda t: measures.log_spectrum(t.singular_values),
        plot="spectrum",
        row="",
        few=True,
    ),
    "image_rank": DepthMeasure(
        "dimensions in use by images",
        "Effective rank of the images' mean tokens. High: images are told apart in many ways.",
        "features",
        lambda f: measures.effective_rank(measures.singular_values(f.depths.transpose(0, 1))),
        REPRESENTATION_SECTION,
        row="",
    ),
    "representation_rank": DepthMeasure(
        "dimensions in use by representations",
        "Effective rank of what a classifier reads.",
        "features",
        lambda f: measures.effective_rank(f.singular_values),
        REPRESENTATION_SECTION,
        plot=None,
    ),
    "representation_spectrum": DepthMeasure(
        "singular values of representations",
        "Of what a classifier reads, natural logarithm, relative to the largest. A cliff: collapsed dimensions.",
        "features",
        lambda f: measures.log_spectrum(f.singular_values),
        REPRESENTATION_SECTION,
        plot="spectrum",
        row="",
    ),
}
"""By the name in the JSON, in the order of the page."""


def as_numbers(values: Tensor) -> Any:
    """As nested tuples, with the digits that mean something."""
    if not values.ndim:
        return torch.round(values.double(), decimals=5).item()
    return tuple(map(as_numbers, values))


def summarise(models: Sequence[ModelNumbers]) -> tuple[SummaryRow, ...]:
    """One row per measure; of what has a depth, the mean of the last third of the layers."""

    def late(values: Any) -> float:
        return float(np.mean(values[-max(1, len(values) // 3) :])) if isinstance(values, tuple) else values

    def row(measure: str, as_percent: bool, values: Sequence[float], note: str = "") -> SummaryRow:
        return SummaryRow(measure, as_percent, tuple(round(value, 4) for value in values), note)

    rows = [
        row(m.title if m.row is None else m.row, m.as_percent, [late(m.of_model(name, model)) for model in models])
        for name, m in DEPTH_MEASURES.items()
        if m.row != "" and all(name in model.measures for model in models)
    ]
    judged = [(m.probe, m.noise) for m in models if m.probe is not None and m.noise is not None]
    if len(judged) == len(models):  # there are labels
        probes, noises = zip(*judged, strict=True)
        n = probes[0].representation.n
        depths = ", ".join(str(probe.best_depth) for probe in probes)
        rows += [
            row(
                f"linear probe of the representation, n = {n}",
                True,
                [probe.representation.value for probe in probes],
                "Of what the model's own classifier reads.",
            ),
            row(
                f"linear probe of the mean patch token, n = {n}",
                True,
                [probe.accuracy[probe.best_depth].value for probe in probes],
                f"At depth {depths}, which was chosen on the images that the probes learn from, by cross-validation, "
                "and then measured on the others. The mean patch token is another vector than the representation, so "
                "this may be below it.",
            ),
            row(f"accuracy without noise, n = {n}", True, [noise.clean.value for noise in noises]),
            row("accuracy with low-frequency noise", True, [noise.accuracy[0].value for noise in noises]),
            row("accuracy with high-frequency noise", True, [noise.accuracy[-1].value for noise in noises]),
        ]
    return tuple(rows)
