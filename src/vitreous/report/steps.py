"""The way of one image through the model on one page, step by step, with this image's own numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.config.data import Preprocess
from vitreous.explain.attention import describe_sinks
from vitreous.explain.overlay import COLOURS, COVER, colour_levels, draw_below
from vitreous.explain.steps import Numbers, Steps
from vitreous.report.html import render

TOP = 5  # tokens and classes that are listed


@dataclass(frozen=True)
class WalkthroughContent:
    """An image and its way."""

    name: str
    image: Image.Image  # upright and whole
    view: Image.Image  # what the model was given of it
    preprocess: Preprocess
    labels: tuple[str, ...]
    steps: Steps


def steps_page(walk: WalkthroughContent) -> str:
    s, c = walk.steps, walk.steps.config
    row, column = divmod(s.cell, s.grid[1])
    top, left = row * c.patch, column * c.patch
    square = walk.view.crop((left, top, left + c.patch, top + c.patch))

    def veil(values: Numbers) -> Image.Image:
        """A pixel for each of the patches (N,), in the colours of the maps."""
        levels = colour_levels(values.reshape(s.grid))
        return Image.fromarray(np.dstack([COLOURS[levels], COVER[levels]]))

    def sinks(layers: NDArray[np.bool_]) -> str:
        """What to know of the attention sinks in some layers (L, N)."""
        return describe_sinks(np.flatnonzero(layers.any(axis=0)).tolist(), layers.shape[1])

    return render(
        "steps.html",
        walk=walk,
        s=s,
        c=c,
        row=row,
        column=column,
        top=top,
        left=left,
        height=s.grid[0] * c.patch,
        width=s.grid[1] * c.patch,
        square=square.resize((160, 160), Image.Resampling.NEAREST),
        byte=int(np.atleast_1d(np.asarray(square)[0, 0])[0]),
        veil=veil,
        sinks=sinks,
        grey=draw_below(walk.view),
        most_attended=np.argsort(-s.weights, kind="stable")[:TOP],
        classes=[] if s.probabilities is None else np.argsort(-s.probabilities, kind="stable")[:TOP],
    )
