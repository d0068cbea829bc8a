"""Numbers for a reader: one, and many in a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.report.html import Html, join, tag

FIRST = 8
"""So many of a vector's numbers are written out."""
HEIGHT = 48
USUAL = 0.99
"""Bars are scaled to this share of the numbers; the few larger ones are cut."""


def number(value: float) -> str:
    """Three decimals, with a minus that is as wide as a digit."""
    return f"{value:.3f}".replace("-", "−")


def parameters(count: int) -> str:
    """How many parameters a model has, in words that fit its size."""
    return f"{count:,} parameters" if count < 100_000 else f"{count / 1e6:.1f} million parameters"


def vectors(rows: dict[str, tuple[Html, NDArray[np.float32]]], *, shared: bool = True) -> Html:
    """Vectors below each other: all their numbers as bars, the first few written out, and their length.

    rows: what each is, for a program, and then its label and numbers. shared: all bars on one scale.
    """
    largest = max(_usual(values) for _, values in rows.values())
    made = []
    for name, (label, values) in rows.items():
        scale = largest if shared else _usual(values)
        written = " ".join(number(value) for value in values[:FIRST]) + (" …" if len(values) > FIRST else "")
        length = f"{len(values)} numbers, length {number(float(np.linalg.norm(values)))}"
        made.append(
            tag(
                "div",
                tag("div", label, class_="label"),
                _bars(values, scale),
                tag("div", tag("span", written, class_="written"), tag("span", length, class_="length"), class_="said"),
                class_="vector",
                data_name=name,
            )
        )
    return tag("div", *made, class_="vectors")


def _usual(values: NDArray[np.float32]) -> float:
    return float(np.quantile(np.abs(values), USUAL)) or 1.0


def _bars(values: NDArray[np.float32], scale: float) -> Html:
    """A bar for each number, up or down."""
    middle = HEIGHT / 2
    ends = middle - middle * np.clip(values / scale, -1, 1)
    path = join(f"M{i + 0.5} {middle:g}V{end:.1f}" for i, end in enumerate(ends))
    zero = tag("path", d=f"M0 {middle:g}H{len(values)}", class_="zero")
    return tag("svg", zero, tag("path", d=path), viewBox=f"0 0 {len(values)} {HEIGHT}", preserveAspectRatio="none")
