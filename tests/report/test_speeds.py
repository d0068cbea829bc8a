"""The plot of speeds shows every engine that was measured, one added to the table of engines too."""

import re

import numpy as np
import pytest

from vitreous.inference.bench import EngineTiming
from vitreous.report.plots import ACCENT, LINE, QUIET, VARIABLES, figure_style, to_svg
from vitreous.report.speeds import speed_plot
from vitreous.report.weight_plots import distance_figure


@pytest.mark.parametrize("correct", [None, 9])
def test_an_engine_without_a_colour_of_its_own_is_drawn(correct):
    rows = [
        EngineTiming(engine, "fp32", 0, 100.0, 8, (), None, correct=correct, evaluated=10)
        for engine in ("torch", "tensorrt")
    ]
    drawn = speed_plot(rows).decode()
    assert "torch fp32" in drawn
    assert "tensorrt fp32" in drawn


def test_figures_of_weights_and_speeds_have_the_one_style():
    """On a page its variables, for light and dark; in a file the same colours as they are."""
    row = EngineTiming("torch", "fp32", 0, 100.0, 8, (), None, correct=9, evaluated=10)
    with figure_style():
        on_page = to_svg(distance_figure(np.ones((2, 3)), 0.5))
    for colour, variable in VARIABLES.items():
        assert colour not in on_page, variable
    assert {"var(--quiet)", "var(--accent)", "var(--line)"} <= set(re.findall(r"var\(--\w+\)", on_page))
    in_file = speed_plot([row]).decode()
    assert {QUIET, LINE, ACCENT} <= set(re.findall(r"#[0-9a-f]{6}", in_file))
