"""What is settled before a comparison trains anything: its cells, their time, their operations, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.config.train import Training
from vitreous.data.packed import ArraySource
from vitreous.data.source import Data
from vitreous.distributed.meter import Cost
from vitreous.model.family import count_flops, named_config
from vitreous.report.compared import Cell, Compared, Trial
from vitreous.studies.comparison.biases import count_that_fit
from vitreous.studies.comparison.candidates import read_candidates
from vitreous.studies.comparison.cells import equal_epochs, equal_flops, step_speed
from vitreous.studies.comparison.facts import Judged, full_cells, remarks
from vitreous.studies.comparison.plan import (
    CellKey,
    ComparePlan,
    CompareRequest,
    cells_of,
    check_fractions,
    divide_budget,
    open_plan,
)

REQUEST = CompareRequest("d.npz", ("P/4@32", "C+P/4@32"), (0.1, 1.0), 2, "1h")


def data(count=6):
    images, labels = torch.zeros(count, 3, 4, 4, dtype=torch.uint8), np.arange(count) % 2
    return Data({"train": ArraySource("d.npz", images, labels, ("a", "b"))}, ("a", "b"))


def test_time_is_settled_once():
    new = ComparePlan.of(REQUEST, data())
    assert new.timed(0).cell_seconds is None  # only finished models
    timed = new.timed(2)
    # 85 % of an hour for 2 models x (2 shares x 2 seeds + 3 trials of half a cell) = 11 cells
    assert timed.cell_seconds == 278.2
    assert timed.timed(5) == timed


def test_all_are_validated_and_measured_on_as_many_images_as_the_slowest_has_time_for():
    plan = replace(ComparePlan.of(REQUEST, data()).timed(2), cell_seconds=80.0)
    looks = {"P/4@32": 0.001, "C+P/4@32": 0.004}
    # a quarter of a trial of 40 s for 10 evaluations and the end: 10 s / 11 / 0.004 s;
    # a tenth of an hour for 4 cells of each model: 360 s / (4 x 0.005 s)
    found = plan.looking(looks, 10, val=5000, measured=100_000)
    assert (found.evaluations, found.val_images, found.measured_images) == (10, 227, 18_000)
    assert found.validating("P/4@32") == pytest.approx(11 * 227 * 0.001)
    few = plan.looking(looks, 10, val=100, measured=50)
    assert (few.val_images, few.measured_images) == (100, 50)
    slow = plan.looking({"P/4@32": 100.0}, 10, val=100, measured=50)
    assert (slow.val_images, slow.measured_images) == (16, 16)


def test_the_budget_is_divided_over_cells_and_trials():
    # 2 models x 3 fractions x 2 seeds = 12 cells, 2 x 3 trials of half a cell each: 15 parts of 85 % of an hour
    assert divide_budget("1h", 2, 3, 2) == 204.0


def test_a_budget_that_is_too_short_names_the_least_that_is_not():
    with pytest.raises(UserError, match=r"budget '1m': .*36 .*4 .*3 .*3 .*9m"):
        divide_budget("1m", 4, 3, 3)
    # 42 parts of 10 s, of which a trial is half, and 15 % for measuring and for what follows: 494 s
    assert divide_budget("9m", 4, 3, 3) == 10.9


def test_all_models_come_side_by_side():
    assert cells_of(["a", "b"], [1.0, 0.1], 2) == [
        CellKey("a", 0.1, 0), CellKey("b", 0.1, 0), CellKey("a", 1.0, 0), CellKey("b", 1.0, 0),
        CellKey("a", 0.1, 1), CellKey("b", 0.1, 1), CellKey("a", 1.0, 1), CellKey("b", 1.0, 1),
    ]  # fmt: skip


def test_fractions_that_are_none(subtests):
    for fractions in ([], [0], [2], [-0.1], [0.1, 0.1], [float("nan")]):
        with subtests.test(fractions=fractions), pytest.raises(UserError, match="fractions"):
            check_fractions(fractions)


def test_equal_operations_are_equal():
    """By hand: a step costs three forward passes of every image in its batch."""
    for name in ("P/4@32", "bit-r11x0.5"):
        config = named_config(name, classes=10)
        training = Training(config, Preprocess(size=(32, 32)), batch_size=64)
        step = 3 * 64 * count_flops(config)
        epochs = equal_epochs(training, images=1000, flops=100 * step)
        assert epochs * (1000 // 64) == pytest.approx(100)
        # fewer images than a batch: each step sees all of them, and there is one in an epoch
        assert equal_epochs(training, images=16, flops=100 * step) == pytest.approx(400)
    assert equal_epochs(training, images=1000, flops=1.0) * 15 == pytest.approx(1)


def test_the_operations_fill_the_time_of_all_models():
    speeds = {"fast": 3e9, "slow": 1e9}
    assert equal_flops({"fast": 60.0, "slow": 60.0}, speeds) == pytest.approx(90e9)  # 30 s and 90 s
    # of 60 s each, validation takes 5 s and 15 s: 25 s and 75 s are left for steps
    assert equal_flops({"fast": 55.0, "slow": 45.0}, speeds) == pytest.approx(75e9)


def test_the_speed_of_steps_is_that_of_the_fastest_trial_without_its_validation():
    trials = [Trial("a", rate, 0.5, 1.0, 9, Cost(seconds, flops=80.0)) for rate, seconds in ((1, 10.0), (2, 12.0))]
    lost = Trial("a", 3, 0.0, None, 9, Cost(), diverged=True)
    assert step_speed([*trials, lost], 2.0) == pytest.approx(10.0)
    assert step_speed(trials, 9.0) == pytest.approx(16.0)  # half of the trial counts as steps at least


def test_candidates():
    plain, near = read_candidates(["P/4@32", "P/4@32:attention=neighbourhood:window=3"], None)
    assert (plain.model, plain.overrides, plain.folder) == ("P/4@32", {}, "P-4@32")
    assert near.model == "P/4@32"
    assert near.overrides == {"model.attention": "neighbourhood", "model.window": "3"}
    assert near.folder == "P-4@32_attention=neighbourhood_window=3"


def test_a_path_is_a_finished_model(tmp_path):
    (tmp_path / "run").mkdir()
    (found,) = read_candidates([tmp_path / "run"], None)
    assert found.model is None
    assert found.name == str(tmp_path / "run")


NO_MODELS = (
    ([], "models"),
    (["P/4@32", ""], "models"),
    (["P/4@32", "P/4@32"], "P/4@32"),
    (["Q/4"], "'Q/4'"),
    (["runs/nothing"], "runs/nothing"),
    (["bit-r50x2"], "'bit-r50x3'"),  # the nearest
    (["P/4@32:attention"], "attention"),
    (["P/4@32:wings=2"], "'wings'"),
    (["bit-r50x1:attention=axial"], "'attention'"),
)


def test_models_that_are_none(subtests):
    for models, named in NO_MODELS:
        with subtests.test(models=models), pytest.raises(UserError, match=named):
            read_candidates(models, None)


def test_a_comparison_goes_on_with_more_and_with_nothing_else(tmp_path):
    plan = replace(ComparePlan.of(REQUEST, data()), cell_seconds=30.0)
    plan.write(tmp_path)
    kept = open_plan(tmp_path)
    assert kept == plan
    more = replace(REQUEST, models=(*REQUEST.models, "F/4@32"), fractions=(0.01, 0.1, 1.0), seeds=3)
    on = kept.going_on(more, data(), tmp_path)
    assert (on.cell_seconds, on.tuned_on, on.request) == (30.0, 1.0, more)
    for name, value, named in (
        ("budget", "2h", "budget='1h'.*'2h'"),
        ("equal", "flops", "equal='time'"),
        ("data", "e.npz", "data='d.npz'"),
        ("image_size", 16, "image-size=None.* 16"),
        ("overrides", {"batch_size": "8"}, "overrides={}"),
        ("models", ("P/4@32",), r"C\+P/4@32"),
        ("fractions", (1.0,), "0.1"),
        ("seeds", 1, "seeds=2.* 1"),
    ):
        with pytest.raises(UserError, match=named):
            kept.going_on(replace(REQUEST, **{name: value}), data(), tmp_path)
    with pytest.raises(UserError, match=r"d\.npz"):
        kept.going_on(REQUEST, data(8), tmp_path)


def test_a_folder_of_somebody_elses_is_refused(tmp_path, subtests):
    for content in ("{}", '{"request": {}}', '{"comparison": {"request": 3}}', "[1]", "{"):
        (tmp_path / "config.json").write_text(content)
        with subtests.test(content), pytest.raises(UserError, match=str(tmp_path)):
            open_plan(tmp_path)


def test_a_folder_with_other_things_is_refused_and_an_empty_one_is_not(tmp_path):
    assert open_plan(tmp_path) is None
    assert open_plan(tmp_path / "new") is None
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match=r"thesis\.txt"):
        open_plan(tmp_path)
    with pytest.raises(UserError, match=r"thesis\.txt"):
        open_plan(tmp_path / "thesis.txt")


def test_the_plan_is_json_with_the_request(tmp_path):
    ComparePlan.of(REQUEST, data()).write(tmp_path)
    found = json.loads((tmp_path / "config.json").read_text())["comparison"]
    assert found["request"]["models"] == ["P/4@32", "C+P/4@32"]
    assert found["splits"] == {"train": 6}


def test_the_bias_is_measured_on_as_many_images_as_there_is_time_for():
    assert count_that_fit(None, {}) == 200
    # 40 looks at 100 and at 400 images a second are 0.4 s and 0.1 s for each image
    assert count_that_fit(30.0, {"a": 100.0, "b": 400.0}) == 60
    assert count_that_fit(1.0, {"a": 100.0, "b": 400.0}) == 16


def test_the_models_that_are_looked_into_are_those_of_most_images_and_the_first_seed():
    def cell(model, fraction, seed):
        return Cell(model, fraction, seed, f"{model}-{fraction}-{seed}", 1, 0.5, (0, 1), 9, None, None)

    made = [cell(m, f, s) for s in (0, 1) for f in (0.1, 1.0) for m in ("a", "b")] + [cell("done", None, None)]
    expected = {"a-1.0-0", "b-1.0-0", "done-None-None"}
    assert {one.place for one in full_cells(made)} == expected
    lost = [replace(one, diverged=one.place == "a-1.0-0") for one in made]
    assert {one.place for one in full_cells(lost)} == {"a-1.0-1", "b-1.0-0", "done-None-None"}


def test_unequal_steps_are_told():
    def noted(*steps):
        cells = [
            Cell("a", 1.0, seed, "place", 1, 0.5, (0, 1), 9, None, None, {"steps": count})
            for seed, count in enumerate(steps)
        ]
        model = Compared("a", "", 1, 1, (4, 4), True)
        found = remarks([model], cells, [], Judged("test", False, 9, 9))
        return [one for one in found if f"{min(steps)} " in one and f"{max(steps)} " in one]

    assert noted(100, 105, 109) == []
    assert len(noted(100, 105, 111)) == 1


def test_images_that_cannot_be_read_are_not_blamed_on_the_time():
    cells = [Cell("a", 1.0, seed, "place", 1, 0.5, (0, 1), 98, None, None) for seed in (0, 1)]
    (unreadable,) = remarks([], cells, [], Judged("test", False, 100, 100))
    assert "98 of 100" in unreadable
    (in_time,) = remarks([], [replace(one, n=50) for one in cells], [], Judged("test", False, 100, 50))
    assert "50" in in_time
    assert in_time.replace("50", "98") != unreadable
