"""The page of a comparison says what its numbers say, and nothing in it does anything."""

import json
import re
from html import unescape

from support.comparisons import CONV, DONE, PLAIN, comparison
from vitreous.report.plots import Line, lines
from vitreous.studies.compare.page import comparison_page


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_the_numbers_of_the_page():
    found = comparison()
    rows = {(row.model, row.fraction): row for row in found.rows}
    assert rows[CONV, 0.1].ahead.significant
    assert not rows[CONV, 1.0].ahead.significant
    assert rows[PLAIN, 0.1].ahead is None
    assert rows[DONE, None].accuracies.mean == 0.9
    html = comparison_page(found)
    verdicts = [
        re.findall(r"runs/<b>old|(?:C\+)?P/4@32", unescape(one)) for one in re.findall("<strong>(.*?)</strong>", html)
    ]
    assert verdicts == [[DONE, CONV, PLAIN], [DONE, PLAIN, CONV]]  # with few images, with all
    page = text_of(html)
    assert "51.0 ± 1.0" in page  # mean and standard deviation of 50, 52 and 51 %
    assert "+0.0 ± 7.6" in page
    assert "2 TFLOP" in page
    assert re.search(r"\b6 \D+0\.3 ", page)  # pairs of three models with two shares; so many are told apart by chance
    # ten points with few, none with many; seeds: (10, 10, 10) - (3, -3, 0), so 4.303 x 3 / sqrt(3) and the images'
    assert re.search(r"C\+P/4@32 \D+ P/4@32\D+10\.0 ± 7\.7 ", page)
    assert re.search(r"60 s\b\D+57 to 60 s\b", page)
    assert comparison_page(comparison(finished=False)).count("<strong>") == 3
    assert "15m" in page
    assert "0.003" in page  # a learning rate that was tried


def sections(page):
    return re.findall("<section>.*?</section>", page, re.DOTALL)


def test_it_has_plots_a_table_of_biases_and_nothing_from_elsewhere():
    page = comparison_page(comparison())
    ahead, plots, biases, *_ = sections(page)
    assert (ahead + plots).count("<svg") == 4
    assert "81.2\u00a0%" in biases  # predictions kept when moved by pixels
    assert "93.8\u00a0%" in biases
    assert "<b>old" not in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert 'content="light dark"' in page


def test_without_biases_or_trainings_the_page_leaves_them_out():
    only = comparison(biases={}, tried=(), models=comparison().models[2:], cells=comparison().cells[-1:], budget=None,
                      cell_seconds=None, settings={})  # fmt: skip
    page = comparison_page(only)
    assert len(sections(page)) == len(sections(comparison_page(comparison()))) - 1
    assert "0.003" not in page
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
    assert "4 TFLOP" in comparison_page(comparison(cell_flops=4e12, equal="flops"))
    assert "4 TFLOP" not in comparison_page(comparison())


def test_costs_that_hardly_differ_are_drawn(subtests):
    """Even steps beside such costs may reach zero, which has no logarithm; of equal limits matplotlib warns."""
    for x in [(1.0, 2.9), (0.0010, 0.0029), (3e9, 4e9), (5.0, 5.0), (9.999999999999999e-05,) * 2]:
        with subtests.test(x=x):
            drawn = lines([Line(model=0, x=x, y=(0.4, 0.5))], "accuracy", "core-hours", scale="log10")
            assert str(drawn).count("<svg") == 1
