"""Budgets that nothing fits into: a model all the same, and a sentence at the start."""

import json

import pytest

from support.commands import MB, check_ended_well
from support.greys import draw_pictures, make_weights


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budgets")
    draw_pictures(folder / "pictures")
    make_weights(folder / "weights")
    return folder


@pytest.mark.parametrize("budget", ["0.001s", "1s"])
@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (("fit", "--weights", "weights"), 0),
        (("fit", "--model", "P/4@16"), 1),
        (("pretrain", "--method", "mae", "--model", "P/4@16"), 1),
    ],
    ids=["weights", "scratch", "mae"],
)
def test_too_short_for_anything(processes, place, tmp_path, words, steps, budget):
    verb, *more = words
    ways = ("--budget", budget, "--out", tmp_path / "run", "--workers", "0")
    outcome = processes(verb, "pictures", *more, *ways, cwd=place, limit=300)
    check_ended_well(outcome, seconds=60, memory=1500 * MB)
    assert outcome.status == 0, outcome.stderr
    assert f"A budget of {budget} is too short" in outcome.stderr
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] == steps
    assert (tmp_path / "run/bundle/model.safetensors").exists()
    assert (tmp_path / "run/report.html").exists()
