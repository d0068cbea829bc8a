"""The way of one image through the model on one page, step by step, with this image's own numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitreous.config.data import Preprocess
from vitreous.explain.steps import Numbers, Steps
from vitreous.report.html import render

TOP = 5  # tokens and classes that are listed
DARKEST = 210  # of 255: how much of the image the lowest number of a map hides


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
        """A pixel for each of the patches (N,): the darker, the lower its value."""
        level = (values - values.min()) / ((values.max() - values.min()) or 1.0)
        pixels = np.zeros((*s.grid, 4), np.uint8)
        pixels[..., 3] = np.rint(DARKEST * (1 - level.reshape(s.grid)))
        return Image.fromarray(pixels)

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
        most_attended=np.argsort(-s.weights, kind="stable")[:TOP],
        classes=[] if s.probabilities is None else np.argsort(-s.probabilities, kind="stable")[:TOP],
    )
