"""What is measured at every depth of a model, and an analysis in a table: one row per measure, one column per model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vitreous.explain.analysis.numbers import ModelNumbers, SummaryRow, Table, Values


class Measure(NamedTuple):
    """What a model has at every depth: one number, or one per head."""

    row: str | None  # its name in the table; None where it is not in there
    title: str  # of its plot
    reading: str  # what a high or a low value means
    values: Callable[[ModelNumbers], Values | Table]
    share: bool = False  # shown as per cent


MEASURES = {
    "attention_distance": Measure(
        "attention distance, of the longer side",
        "attention distance, of the longer side",
        "How far a patch looks on average; a dot is a head. High: it gathers from the whole image, as a shape "
        "needs. Low: from its neighbours, as texture needs.",
        ModelNumbers.relative_distance,
        share=True,
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

    def row(measure: str, share: bool, values: Sequence[float]) -> SummaryRow:
        return SummaryRow(measure, share, tuple(round(value, 4) for value in values))

    rows = [row(m.row, m.share, [late(m.values(model)) for model in models]) for m in MEASURES.values() if m.row]
    rows.append(row("dimensions in use by representations", False, [m.measures.representation_rank for m in models]))
    judged = [(m.probe, m.noise) for m in models if m.probe is not None and m.noise is not None]
    if len(judged) == len(models):  # there are labels
        probes, noises = zip(*judged, strict=True)
        rows += [
            row("linear probe of the representation", True, [probe.representation.value for probe in probes]),
            row("linear probe at its best depth", True, [max(one.value for one in probe.accuracy) for probe in probes]),
            row("accuracy without noise", True, [noise.clean.value for noise in noises]),
            row("accuracy with low-frequency noise", True, [noise.accuracy[0].value for noise in noises]),
            row("accuracy with high-frequency noise", True, [noise.accuracy[-1].value for noise in noises]),
        ]
    return tuple(rows)
