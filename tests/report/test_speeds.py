"""The plot of speeds shows every engine that was measured, one added to the table of engines too."""

import pytest

from vitreous.inference.bench import EngineTiming
from vitreous.report.speeds import speed_plot


@pytest.mark.parametrize("correct", [None, 9])
def test_an_engine_without_a_colour_of_its_own_is_drawn(correct):
    rows = [
        EngineTiming(engine, "fp32", 0, 100.0, 8, (), None, correct=correct, evaluated=10)
        for engine in ("torch", "tensorrt")
    ]
    drawn = speed_plot(rows).decode()
    assert "torch fp32" in drawn
    assert "tensorrt fp32" in drawn
