"""An analysis in a table: one row per measure, one column per model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vitreous.explain.analysis.numbers import ModelNumbers, Probes, SummaryRow, Table, UnderNoise, Values


class _Measure(NamedTuple):
    name: str
    share: bool
    value: Callable[[ModelNumbers], float]


def _late(values: Values | Table) -> float:
    """The mean over the last third of the layers."""
    return float(np.mean(values[-max(1, len(values) // 3) :]))


def _probe(model: ModelNumbers) -> Probes:
    assert model.probe is not None
    return model.probe


def _noise(model: ModelNumbers) -> UnderNoise:
    assert model.noise is not None
    return model.noise


_ALWAYS = (
    _Measure(
        "attention distance, of the longer side",
        True,
        lambda m: _late(m.measures.attention_distance) / max(m.shape.size),
    ),
    _Measure("mutual information of queries and keys", False, lambda m: _late(m.measures.mutual_information)),
    _Measure("likeness of two heads' attention", False, lambda m: _late(m.measures.head_similarity)),
    _Measure("likeness of two places' attention", False, lambda m: _late(m.measures.query_similarity)),
    _Measure("likeness of two places' tokens", False, lambda m: _late(m.measures.token_similarity)),
    _Measure(
        "log amplitude of the highest frequency",
        False,
        lambda m: _late(tuple(depth[-1] for depth in m.measures.log_amplitude)),
    ),
    _Measure("dimensions in use by an image's tokens", False, lambda m: _late(m.measures.token_rank)),
    _Measure("dimensions in use by representations", False, lambda m: m.measures.representation_rank),
)
_LABELLED = (
    _Measure("linear probe of the representation", True, lambda m: _probe(m).representation.value),
    _Measure("linear probe at its best depth", True, lambda m: max(one.value for one in _probe(m).accuracy)),
    _Measure("accuracy without noise", True, lambda m: _noise(m).clean.value),
    _Measure("accuracy with low-frequency noise", True, lambda m: _noise(m).accuracy[0].value),
    _Measure("accuracy with high-frequency noise", True, lambda m: _noise(m).accuracy[-1].value),
)
"""What needs labels."""


def summarise(models: Sequence[ModelNumbers]) -> tuple[SummaryRow, ...]:
    """One row per measure; of what has a depth, the mean of the last third of the layers."""
    labelled = all(model.probe is not None for model in models)
    return tuple(
        SummaryRow(name, share, tuple(round(value(model), 4) for model in models))
        for name, share, value in (*_ALWAYS, *(_LABELLED if labelled else ()))
    )
