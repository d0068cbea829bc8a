"""A plot of what a model gives up for speed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Protocol

from matplotlib import rc_context
from matplotlib.figure import Figure

from vitreous.storage.overwrite import GENERATOR

COLOURS = {"torch": "#c8553d", "openvino": "#2a6f97", "onnx": "#6a994e"}
MARKS = {"fp32": "o", "int8": "s"}


class Timed(Protocol):
    """What is needed of a measurement."""

    @property
    def engine(self) -> str:
        """What computed."""

    @property
    def precision(self) -> str:
        """fp32 or int8."""

    @property
    def merge(self) -> int:
        """Tokens merged in each block."""

    @property
    def images_per_second(self) -> float:
        """With as many at once as is fastest."""

    @property
    def accuracy(self) -> float | None:
        """From 0 to 1; None if it was not measured."""


def speed_plot(rows: Sequence[Timed]) -> bytes:
    """An SVG: accuracy against images a second, one mark for each row; without accuracies, bars of the speed."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "vitreous", "font.size": 9}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        if all(row.accuracy is not None for row in rows):
            for row in rows:
                axes.scatter(
                    row.images_per_second,
                    100 * (row.accuracy or 0),
                    color=COLOURS[row.engine],
                    marker=MARKS[row.precision],
                )
                place = (row.images_per_second, 100 * (row.accuracy or 0))
                axes.annotate(name_row(row), place, textcoords="offset points", xytext=(5, 4), fontsize=8)
            axes.margins(x=0.2, y=0.15)
            axes.set_ylabel("accuracy, %")
        else:
            slowest_first = rows[::-1]
            speeds = [row.images_per_second for row in slowest_first]
            axes.barh(list(map(name_row, slowest_first)), speeds, color=[COLOURS[row.engine] for row in slowest_first])
        axes.set_xlabel("images a second")
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": GENERATOR, "Title": GENERATOR})
    return drawn.getvalue()


def name_row(row: Timed) -> str:
    """What a row is called: "openvino int8, 8 merged"."""
    return f"{row.engine} {row.precision}" + (f", {row.merge} merged" if row.merge else "")
