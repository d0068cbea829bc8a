"""Plots as SVG text, for a page that opens anywhere and prints well."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

# Letters stay text, so that they can be selected and searched; the colour follows the page, light or dark.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vitreous", "font.size": 9})
INK = "#808080"
COLOURS = ("#2a78d6", "#eb6834")


def curves(series: dict[str, tuple[Sequence[float], Sequence[float]]], ylabel: str) -> str:
    """Lines over the steps, each (steps, values)."""
    figure, axes = _figure(4.6, 2.6)
    for (name, (steps, values)), colour in zip(series.items(), COLOURS, strict=False):
        axes.plot(steps, values, label=name, color=colour, linewidth=1.4, marker="o" if len(steps) < 30 else None, ms=3)
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    if len(series) > 1:
        axes.legend(frameon=False, labelcolor=INK)
    return _svg(figure)


def confusion(counts: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    """Rows are the truth, columns the answer; darker is a larger share of the row."""
    side = max(3.0, min(8.0, 0.32 * len(labels) + 1.2))
    figure, axes = _figure(side, side)
    shares = [[value / max(1, sum(row)) for value in row] for row in counts]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels, rotation=90)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("answer")
    axes.set_ylabel("truth")
    if len(labels) <= 20:
        for i, row in enumerate(counts):
            for j, value in enumerate(row):
                if value:
                    colour = "white" if shares[i][j] > 0.5 else INK
                    axes.text(j, i, str(value), ha="center", va="center", fontsize=7, color=colour)
    return _svg(figure)


def _figure(width: float, height: float):  # type: ignore[no-untyped-def]
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    for spine in axes.spines.values():
        spine.set_color(INK)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    return figure, axes


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    return text[text.index("<svg") :]
