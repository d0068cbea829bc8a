"""Numbers of patches over the image they belong to: bright where they are high."""

from __future__ import annotations

import numpy as np
from PIL import Image

from vitreous.explain.steps import Numbers, Steps
from vitreous.report.html import Html, data_uri, join, tag

DARKEST = 210
"""Of 255: how much of the image the lowest number hides."""


def define_view(view: Image.Image) -> Html:
    """The view, once in a page; every map then shows it again."""
    size = {"width": str(view.width), "height": str(view.height)}
    shown = tag("image", id="view", href=data_uri(view), **size)
    return tag("svg", tag("defs", shown), class_="definitions", width="0", height="0", aria_hidden="true")


def patch_grid(s: Steps) -> Html:
    """The view cut into its patches, the followed one outlined."""
    (rows, columns), p = s.grid, s.config.patch
    height, width = rows * p, columns * p
    lines = [
        *(_line(0, row * p, width, row * p) for row in range(rows + 1)),
        *(_line(column * p, 0, column * p, height) for column in range(columns + 1)),
    ]
    return _over(s, *lines, _outline(s))


def patch_map(s: Steps, values: Numbers, *, outlined: bool = True) -> Html:
    """The view, dark where the values (N,) of the patches are low."""
    level = (values - values.min()) / ((values.max() - values.min()) or 1.0)
    pixels = np.zeros((*s.grid, 4), np.uint8)
    pixels[..., 3] = np.rint(DARKEST * (1 - level.reshape(s.grid)))
    rows, columns = (str(side * s.config.patch) for side in s.grid)
    address = data_uri(Image.fromarray(pixels))
    veil = tag("image", href=address, width=columns, height=rows, preserveAspectRatio="none", class_="cells")
    return _over(s, veil, *([_outline(s)] if outlined else []))


def weight_map(s: Steps, weights: Numbers, *, outlined: bool = False) -> Html:
    """The same of attention weights (T,), as square roots: a few patches often have most of it."""
    return patch_map(s, np.sqrt(weights[s.config.prefix :]), outlined=outlined)


def small_map(s: Steps, weights: Numbers, caption: str) -> Html:
    """One of many."""
    return tag("figure", weight_map(s, weights), tag("figcaption", caption))


def _over(s: Steps, *layers: Html) -> Html:
    rows, columns = (side * s.config.patch for side in s.grid)
    return tag("svg", tag("use", href="#view"), join(layers), viewBox=f"0 0 {columns} {rows}", class_="map")


def _line(x1: int, y1: int, x2: int, y2: int) -> Html:
    return tag("line", x1=f"{x1}", y1=f"{y1}", x2=f"{x2}", y2=f"{y2}", class_="cut")


def _outline(s: Steps) -> Html:
    p = s.config.patch
    row, column = divmod(s.cell, s.grid[1])
    return tag("rect", x=f"{column * p}", y=f"{row * p}", width=f"{p}", height=f"{p}", class_="outline")
