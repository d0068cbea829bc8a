"""Plots as SVG for a page: their letters are text, and their colours and type are the page's own, light or dark."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup as Html
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from vitreous.evaluation.calibration import Bin
from vitreous.weights.markdown import visible

Series = tuple[Sequence[float], Sequence[float]]  # steps and values

# A file has these, of which the grey can be read on any ground; a page has its own variables, for light and dark.
INK, QUIET, LINE, ACCENT, PAGE = "#1d2124", "#808080", "#e2e2dc", "#0b7285", "#fcfcfa"
VARIABLES = {INK: "--ink", QUIET: "--quiet", LINE: "--line", ACCENT: "--accent", PAGE: "--page"}

# The colour-blind tell them apart (Okabe and Ito 2008), and each has a marker of its own; the first is the page's own.
COLOURS = (ACCENT, "#e69f00", "#cc79a7", "#d55e00", "#56b4e9", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P")

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "vitreous",
    "text.parse_math": False,  # a class may be called "$a$"
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.edgecolor": LINE,
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 4,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    "legend.borderaxespad": 0.2,
}

FULL_MATRIX = 40  # above so many classes a matrix can no longer be read
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
POINTS = 150  # as many as a small plot can show
LARGEST = 1.6  # how many pixels a point of the figure may become; in a narrow page it is fewer


def line_colour(number: int) -> str:
    """The colour of a page's models, as CSS has it."""
    colour = COLOURS[number % len(COLOURS)]
    return f"var({VARIABLES[colour]})" if colour in VARIABLES else colour


@contextmanager
def figure_style() -> Iterator[None]:
    """Figures that are made and written in here have the one style of pages and files."""
    with matplotlib.rc_context(SETTINGS):
        yield


def curves(series: dict[str, Series], title: str, *, percent: bool = False) -> Html:
    """Lines over the steps. The last is the one to look at; percent: values from 0 to 1 are shown as per cent."""
    largest = max(max(values) for _, values in series.values())
    power = math.floor(math.log10(largest)) if 0 < largest < 0.01 else 0
    if power:  # ticks such as 0.00018 are hard to read
        series = {name: (steps, [v / 10.0**power for v in values]) for name, (steps, values) in series.items()}
        title = f"{title}, × 10{str(power).translate(SUPERSCRIPT)}"
    with figure_style():
        figure, axes = _line_axes(3.2, 2.1, title, "step")
        for number, (name, (steps, values)) in enumerate(series.items(), 1):
            few = len(steps) <= 40
            steps, values = _thinned(steps, values)
            colour, width = (ACCENT, 1.6) if number == len(series) else (QUIET, 1.0)
            marker = "o" if few else None
            axes.plot(steps, values, label=name, color=colour, linewidth=width, marker=marker, markersize=3)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if len(only := {step for steps, _ in series.values() for step in steps}) == 1:
            axes.set_xticks([*only])  # the locator has no whole numbers for a single one
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        if len(series) > 1:
            axes.legend(labelcolor=QUIET, fontsize=8)
        return to_svg(figure)


def confusion(counts: Sequence[Sequence[int]], labels: Sequence[str]) -> Html:
    """Rows are the true classes, columns the answers; the fuller the colour, the larger its share of the row."""
    with figure_style():
        side = 1.6 + max(1.6, 0.2 * len(labels))
        figure, axes = draw_axes(side, side)
        size = 8.5 if len(labels) <= 20 else 7.0
        for i, row in enumerate(counts):
            for j, count in enumerate(row):
                if count:
                    share = count / sum(row)
                    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=ACCENT, alpha=share, linewidth=0))
                    colour = PAGE if share > 0.5 else INK
                    axes.text(j, i, str(count), ha="center", va="center", fontsize=size - 1.5, color=colour)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_aspect("equal")
        shown = [shortened(label) for label in labels]
        axes.set_xticks(range(len(labels)), shown, rotation=90, fontsize=size, color=INK)
        axes.set_yticks(range(len(labels)), shown, fontsize=size, color=INK)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xlabel("taken for")
        axes.set_ylabel("it is")
        axes.set_xticks(np.arange(len(labels) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(labels) + 1) - 0.5, minor=True)
        axes.grid(which="minor", linewidth=0.4)
        axes.tick_params(which="minor", size=0)
        axes.spines[:].set_visible(False)
        return to_svg(figure)


def reliability(bins: Sequence[Bin]) -> Html:
    """Of each bin of confidence how much was right, which should be on the diagonal, and how many images it has."""
    with figure_style():
        figure = Figure(figsize=(3.6, 3.6), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        width = 1 / len(bins)
        left = np.arange(len(bins)) * width
        top.bar(left, [entry.accuracy or 0.0 for entry in bins], width, align="edge", color=ACCENT, alpha=0.25)
        top.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8, linestyle=(0, (3, 3)))
        points = [(one.confidence, one.accuracy) for one in bins if one.images]
        top.plot(*zip(*points, strict=True), color=ACCENT, linewidth=1.4, marker="o", markersize=3.5)
        top.set_ylim(0, 1.02)
        top.set_xlim(0, 1)
        top.set_ylabel("right")
        bottom.bar(left, [entry.images for entry in bins], width * 0.86, align="edge", color=QUIET, alpha=0.6)
        bottom.set_ylabel("images")
        bottom.set_xlabel("how sure it was")
        bottom.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        for axis in (top.yaxis, bottom.xaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        for axes in (top, bottom):
            axes.grid(axis="y")
            axes.set_axisbelow(True)
        return to_svg(figure)


def shortened(label: str, most: int = 28) -> str:
    """A label that leaves a plot room, on one line."""
    label = visible(label)
    return label if len(label) <= most else label[: most - 1] + "…"


def to_svg(figure: Figure) -> Html:
    """The figure as an element that scales with the page."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts draw the letters, not ours
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    made = buffer.getvalue()
    made = made[made.index("<svg") :]
    for colour, variable in VARIABLES.items():
        made = made.replace(f": {colour}", f": var({variable})")
    made = re.sub(r"font: ((?:\w+ )*)([\d.]+px) [^;\"]+", r"font-size: \2", made)  # matplotlib 3.9 writes this,
    made = re.sub(r"font-family: [^;\"]+; ", "", made)  # later ones this: the page's type is meant
    made = re.sub(r' id="[\w.]+_\d+"', "", made)  # every figure counts its parts from 1
    made = re.sub(r"<defs>\s*<style.*?</defs>", "", made, count=1, flags=re.DOTALL)  # it would style the whole page
    width = figure.get_figwidth() * 72 * LARGEST
    return Html(re.sub(r'width="[^"]+" height="[^"]+"', f'style="max-width: {width:.0f}px"', made, count=1))


def draw_axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _line_axes(width: float, height: float, title: str, along: str) -> tuple[Figure, Axes]:
    figure, axes = draw_axes(width, height)
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    axes.set_xlabel(along)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    return figure, axes


def _thinned(steps: Sequence[float], values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Means over neighbouring steps, as many as a plot can show."""
    every = -(-len(steps) // POINTS)
    if every == 1:
        return steps, values
    starts = range(0, len(steps), every)
    return (
        [float(np.mean(steps[start : start + every])) for start in starts],
        [float(np.mean(values[start : start + every])) for start in starts],
    )


class Line(NamedTuple):
    """One model's line."""

    model: int  # which of the page's models it is: it has the same colour in every plot
    x: Sequence[float]
    y: Sequence[float]
    dots: Sequence[Sequence[float]] = ()  # for each x the single values of which y is the mean, if they should be seen
    band: Sequence[tuple[float, float]] = ()  # for each x the ends of an interval


def lines(
    series: Sequence[Line],
    title: str,
    along: str,
    *,
    percent: bool = False,
    unit_range: bool = False,
    scale: Literal["linear", "log2", "log10"] = "linear",
) -> Html:
    """Lines over depth, frequency or cost.

    percent: values from 0 to 1 are shown as per cent. unit_range: all from 0 to 1 is shown, so that plots can be
        compared. scale: of x, by doublings or by powers of ten.
    """
    with figure_style():
        figure, axes = _line_axes(3.5, 2.3, title, along)
        for line in series:
            _plot_line(axes, line)
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
        if unit_range:
            least = min((value for line in series for value in line.y), default=0.0)
            axes.set_ylim(min(0.0, 1.05 * least), 1.03)
        if percent:
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


def _plot_line(axes: Axes, line: Line) -> None:
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
    with figure_style():
        figure, axes = draw_axes(2.9, 2.9)
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
