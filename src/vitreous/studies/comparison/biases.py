"""Which bias the models of a comparison have: measured on the same images, as many as there is time for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous.data.source import Source
from vitreous.data.subset import balanced_order
from vitreous.errors import UserError
from vitreous.explain.analysis.bias import measure_bias
from vitreous.explain.analysis.bias_numbers import Bias
from vitreous.inference.needs import choose_bias_batch
from vitreous.inputs import read_json
from vitreous.storage.files import write_file
from vitreous.weights.bundle import Bundle, weights_digest

MOST, FEWEST = 200, 16
"""Images; more hardly change a mean, fewer say little."""
LOOKS = 40
"""How often each is looked at, roughly, gradients counted in."""


def count_that_fit(seconds: float | None, looks_per_second: Mapping[str, float]) -> int:
    """So many images can be looked at by every model within the time; without a limit, as many as are useful.

    looks_per_second: images that each model sees in a second.
    """
    if seconds is None:
        return MOST
    each = sum(LOOKS / speed for speed in looks_per_second.values())
    return max(FEWEST, min(MOST, int(seconds / each))) if each else MOST


def some_of_each_class(source: Source, count: int) -> Source:
    """So many images, of all classes alike; the same ones for every model."""
    return source.subset(balanced_order(source.labels, 0)[:count])


def bias_of(bundle: Bundle, images: Source, kept: Path, workers: int) -> Bias:
    """What the model's bias is on these images; read from the file `kept` if it was measured before.

    bundle: opened for this alone, as its network may be moved and follows gradients.
    """
    about = {"weights": weights_digest(bundle.model), "images": [images.key(i) for i in range(len(images))]}
    if (found := _read(kept, about)) is not None:
        return found
    bias = measure_bias(
        bundle.model,
        bundle.preprocess,
        images.relabelled(bundle.labels),
        batch_size=choose_bias_batch(bundle),
        workers=workers,
    )
    write_file(kept, json.dumps({**about, "bias": bias.to_json()}) + "\n")
    return bias


def _read(kept: Path, about: Mapping[str, Any]) -> Bias | None:
    try:
        found = read_json(kept) if kept.exists() else {}
        same = all(found.get(name) == value for name, value in about.items())
        return Bias.from_json(found["bias"]) if same else None
    except (UserError, KeyError, TypeError, ValueError, AttributeError):  # damaged: it is measured again
        return None
