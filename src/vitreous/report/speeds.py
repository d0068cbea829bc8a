"""A plot of what a model gives up for speed."""

from __future__ import annotations

import io
from collections.abc import Sequence

from vitreous.inference.bench import EngineTiming
from vitreous.report.plots import COLOURS, draw_axes, figure_style
from vitreous.storage.overwrite import GENERATOR

ENGINES = ("torch", "openvino", "onnx")  # which have a colour of their own
MARKS = {"fp32": "o", "int8": "s"}


def speed_plot(rows: Sequence[EngineTiming]) -> bytes:
    """An SVG: accuracy against images/s, one mark for each row; without accuracies, bars of the speed."""
    with figure_style():
        figure, axes = draw_axes(6.4, 4.0)
        if all(row.accuracy is not None for row in rows):
            for row in rows:
                point = row.images_per_second, 100 * (row.accuracy or 0)
                axes.scatter(*point, color=_colour(row), marker=MARKS[row.precision])
                axes.annotate(name_row(row), point, textcoords="offset points", xytext=(5, 4), fontsize=8)
            axes.margins(x=0.2, y=0.15)
            axes.set_ylabel("accuracy, %")
        else:
            slowest_first = rows[::-1]
            speeds = [row.images_per_second for row in slowest_first]
            colours = [_colour(row) for row in slowest_first]
            axes.barh(list(map(name_row, slowest_first)), speeds, color=colours)
        axes.set_xlabel("images a second")
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": GENERATOR, "Title": GENERATOR})
    return drawn.getvalue()


def _colour(row: EngineTiming) -> str:
    return COLOURS[ENGINES.index(row.engine)] if row.engine in ENGINES else COLOURS[-1]


def name_row(row: EngineTiming) -> str:
    """What a row is called: "openvino int8, 8 merged"."""
    return f"{row.engine} {row.precision}" + (f", {row.merge} merged" if row.merge else "")
