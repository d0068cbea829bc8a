"""The page of a comparison says what its numbers say, and nothing in it does anything."""

import json
import re

import pytest

from support.comparisons import CONV, DONE, PLAIN, comparison
from vitreous.report.analysis_plots import Line, lines
from vitreous.report.comparison import comparison_page


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_the_numbers_of_the_page():
    found = comparison()
    rows = {(row.model, row.fraction): row for row in found.rows}
    assert rows[CONV, 0.1].ahead.told_apart
    assert not rows[CONV, 1.0].ahead.told_apart
    assert rows[PLAIN, 0.1].ahead is None
    assert rows[DONE, None].accuracies.mean == 0.9
    page = text_of(comparison_page(found))
    assert "With 10 % of the training pictures: ahead: runs/&lt;b&gt;old; then C+P/4@32; then P/4@32" in page
    assert "then P/4@32 and C+P/4@32 (not told apart)" in page
    assert "51.0 ± 1.0" in page  # mean and standard deviation of 50, 52 and 51 %
    assert "+0.0 ± 7.6, not told apart" in page
    assert "2 TFLOP" in page
    assert "6 pairs were compared, each by itself" in page  # three models, two shares
    # ten points with few, none with many; seeds: (10, 10, 10) - (3, -3, 0), so 4.303 x 3 / sqrt(3) and the pictures'
    assert "how far C+P/4@32 is ahead of P/4@32: less with more pictures, by 10.0 ± 7.7 points" in page
    assert "was given 60 s, validation included; they took 57 to 60 s" in page
    assert "Unfinished" not in page
    assert "Unfinished" in comparison_page(comparison(finished=False))
    assert "15m for everything" in page
    assert "learning rate" in page


def test_it_has_plots_a_table_of_biases_and_nothing_from_elsewhere():
    page = comparison_page(comparison())
    before, after = page.split("Which bias?")
    assert before.count("<svg") == 4
    assert "81.2\u00a0%" in after  # predictions kept when moved by pixels
    assert "93.8\u00a0%" in after
    for along in ("training pictures", "floating-point operations of training", "core-hours", "one answer"):
        assert along in page
    assert "<b>old" not in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert 'content="light dark"' in page


def test_without_biases_or_trainings_the_page_leaves_them_out():
    only = comparison(biases={}, tried=(), models=comparison().models[2:], cells=comparison().cells[-1:], budget=None,
                      cell_seconds=None, settings={})  # fmt: skip
    page = text_of(comparison_page(only))
    assert "Which bias" not in page
    assert "Learning rates" not in page
    assert "90.0" in page


def test_everything_is_in_the_json():
    found = json.loads(json.dumps(comparison().to_json(), allow_nan=False))
    assert len(found["cells"]) == 13
    assert found["cells"][0]["spent"]["core_hours"] == 0.03
    row = next(row for row in found["summary"] if row["model"] == CONV and row["fraction"] == 0.1)
    assert round(row["mean"], 6) == 0.51
    assert row["ahead_of_first"]["told_apart"] is True
    assert found["verdicts"][1]["tiers"] == [[DONE], [PLAIN, CONV]]
    assert found["verdicts"][0]["pairs"] == 3
    (closing,) = found["closing"]
    assert (closing["model"], closing["few"], closing["many"], closing["told_apart"]) == (CONV, 0.1, 1.0, True)
    assert round(closing["gap"]["value"], 6) == 0.1
    assert found["biases"][PLAIN]["shifts"]["within"]["same"] == 0.8125
    assert found["digests"]["test"] == "fedcba9876543210"


def test_equal_flops_are_explained():
    page = text_of(comparison_page(comparison(cell_flops=4e12, equal="flops")))
    assert "Every training was given 4 TFLOP" in page
    assert "fill the budget" in page


@pytest.mark.parametrize("x", [(1.0, 2.9), (0.0010, 0.0029), (3e9, 4e9), (5.0, 5.0)])
def test_costs_that_hardly_differ_are_drawn(x):
    """Even steps beside such costs may reach zero, of which there is no logarithm."""
    drawn = lines([Line(model=0, x=x, y=(0.4, 0.5))], "accuracy", "core-hours", scale="log10")
    assert str(drawn).count("<svg") == 1
