"""Numbers as a reader likes them: the filters of the pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BAR_HEIGHT = 48  # of a plot of a vector's numbers


def percent(fraction: float) -> str:
    """0.8886 is 88.9 %."""
    return f"{100 * fraction:.1f}\u00a0%"


def interval(low: float, high: float) -> str:
    """0.8688 and 0.9062 are "86.9 to 90.6 %"."""
    return f"{100 * low:.1f} to {percent(high)}"


def number(value: float) -> str:
    """Three decimals, with a minus that is as wide as a digit."""
    return f"{value:.3f}".replace("-", "−")


def count(value: int) -> str:
    """12345 is 12,345."""
    return f"{value:,}"


def general(value: float, digits: int = 6) -> str:
    """So many significant digits at most, without trailing zeros: 0.0002, 2.5e-05."""
    return f"{value:.{digits}g}"


def joined(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def parameters(count: int) -> str:
    return f"{count:,} parameters" if count < 100_000 else f"{count / 1e6:.1f} million parameters"


def operations(flops: float) -> str:
    for name, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if flops >= size:
            return f"{flops / size:.3g} {name}"
    return f"{flops:.0f} FLOP"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def largest(values: NDArray[np.floating]) -> float:
    """Where the bars of a vector end: the 1 % that is larger is cut."""
    return float(np.quantile(np.abs(values), 0.99)) or 1.0


def bars(values: NDArray[np.floating], scale: float) -> str:
    """The path of an SVG: a bar for each number, up or down."""
    middle = BAR_HEIGHT / 2
    ends = middle - middle * np.clip(values / scale, -1, 1)
    return "".join(f"M{i + 0.5} {middle:g}V{end:.1f}" for i, end in enumerate(ends))


def norm(values: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(values))
