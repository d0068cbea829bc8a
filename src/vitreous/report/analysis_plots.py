"""Plots of an analysis: one line or one field per model, in the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from vitreous.report.html import Html, tag
from vitreous.report.plots import ACCENT, COLOURS, INK, QUIET, SUPERSCRIPT, line_colour, page_style, shortened, to_svg

MARKERS = ("o", "s", "^", "D", "v", "P")


TWO = "grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr))"
"""Two plots in a row, or one on a phone: three are too small to be compared."""


class Line(NamedTuple):
    """One model's line."""

    model: int  # which of the page's models it is: it has the same colour in every plot
    x: Sequence[float]
    y: Sequence[float]
    dots: Sequence[Sequence[float]] = ()  # for each x the single values of which y is the mean, if they should be seen
    band: Sequence[tuple[float, float]] = ()  # for each x the ends of an interval


def colour_key(names: Sequence[str]) -> Html:
    """Which colour is whose."""
    parts = []
    for number, name in enumerate(names):
        parts.append(tag("span", tag("span", "●", style=f"color: {line_colour(number)}"), f"\u00a0{name}\u2003"))
    return tag("p", *parts)


def side_by_side(*plots: tuple[Html, str]) -> Html:
    """Plots, each with how to read it."""
    made = (tag("figure", tag("div", plot, class_="plot"), tag("figcaption", words)) for plot, words in plots)
    return tag("div", *made, class_="figures", style=TWO)


def lines(
    series: Sequence[Line],
    title: str,
    along: str,
    *,
    share: bool = False,
    whole: bool = False,
    scale: Literal["linear", "log2", "log10"] = "linear",
) -> Html:
    """Lines over depth, frequency or cost.

    share: values from 0 to 1 are shown as per cent. whole: all from 0 to 1 is shown, so that plots can be compared.
    scale: of x, by doublings or by powers of ten.
    """
    with page_style():
        figure = Figure(figsize=(3.5, 2.3), layout="constrained")
        axes = figure.add_subplot()
        for line in series:
            _draw(axes, line)
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set_xlabel(along)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        if scale == "log10":
            _make_logarithmic(axes, series)
        else:
            counts = all(float(x).is_integer() for line in series for x in line.x)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=counts))
        if scale == "log2":
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if whole:
            least = min((value for line in series for value in line.y), default=0.0)
            axes.set_ylim(min(0.0, 1.05 * least), 1.03)
        if share:
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        return to_svg(figure)


def _make_logarithmic(axes: Axes, series: Sequence[Line]) -> None:
    """Of the x axis, with more ticks where all x are within two powers of ten, and few where they hardly differ."""
    xs = [x for line in series for x in line.x]
    spread = max(xs) / min(xs)
    if spread == 1:  # matplotlib may round both limits to the same power of ten
        axes.set_xlim(xs[0] / 3, xs[0] * 3)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    powers = LogLocator(subs=(1, 2, 5) if spread < 100 else (1,))
    axes.xaxis.set_major_locator(MaxNLocator(3) if 1 < spread < 3 else powers)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: _power(value))


def _power(value: float) -> str:
    """A number of a logarithmic axis as a reader likes it: 0.01, 100, 10,000, 2·10¹²; zero is not on it."""
    if value <= 0:  # a locator of even steps looks a step further than is shown
        return ""
    if 0.0009 < value < 1e6:
        return f"{value:.3g}" if value < 1 else f"{value:,.0f}"
    power = math.floor(math.log10(value) + 1e-9)
    digits = f"{value / 10.0**power:.2g}"
    return f"{'' if digits == '1' else f'{digits}·'}10{str(power).translate(SUPERSCRIPT)}"


def _draw(axes: Axes, line: Line) -> None:
    colour = COLOURS[line.model % len(COLOURS)]
    for x, values in zip(line.x, line.dots, strict=False):
        axes.plot([x] * len(values), values, linestyle="", marker=".", markersize=3.5, color=colour, alpha=0.35)
    if line.band:
        low, high = zip(*line.band, strict=True)
        axes.fill_between(line.x, low, high, color=colour, alpha=0.13, linewidth=0)
    marker = MARKERS[line.model % len(MARKERS)] if len(line.x) <= 40 else None
    axes.plot(line.x, line.y, color=colour, linewidth=1.5, marker=marker, markersize=3.5)


def field(values: Sequence[Sequence[float]], across: str, up: str, start: tuple[int, int]) -> Html:
    """A table of values from 0 to 1, the fuller the colour the larger; the first row is at the bottom.

    start: the depths of the first row and of the first column.
    """
    rows, columns = len(values), len(values[0])
    with page_style():
        figure = Figure(figsize=(2.9, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                box = (j + start[1] - 0.5, i + start[0] - 0.5)
                axes.add_patch(Rectangle(box, 1, 1, facecolor=ACCENT, alpha=min(1.0, max(0.0, value)), linewidth=0))
        axes.set_xlim(start[1] - 0.5, start[1] + columns - 0.5)
        axes.set_ylim(start[0] - 0.5, start[0] + rows - 0.5)
        axes.set_aspect(columns / rows)
        axes.set_xlabel(shortened(across, 40))
        axes.set_ylabel(shortened(up, 40))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.spines[:].set_color(QUIET)
        axes.spines[:].set_visible(True)
        axes.spines[:].set_linewidth(0.5)
        return to_svg(figure)
