"""What is settled before a comparison trains anything: its cells, their time, their operations, and what is refused."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.config.train import Training
from vitreous.distributed.meter import Cost
from vitreous.distributed.world import SINGLE_PROCESS
from vitreous.model.family import count_flops, named_config
from vitreous.studies.compare.cells import equal_epochs
from vitreous.studies.compare.compare import choose_rates
from vitreous.studies.compare.plan import (
    CellKey,
    ModelSpeed,
    cells_of,
    check_fits,
    equal_flops,
    plan_comparison,
    read_candidates,
)
from vitreous.studies.compare.result import Cell, ComparedModel, Trial, first_on_most, remarks
from vitreous.studies.requests import CompareRequest
from vitreous.training.deadline import Deadline, parse_budget

REQUEST = CompareRequest("d.npz", models=("fast", "slow"), fractions=(0.1, 1.0), repeats=2, budget="1h")


SLOW = ModelSpeed(0.004, 0.4, 4e9)


def planned(budget="1h", slow=SLOW, gone=0.0, evaluations=10, **more):
    """The plan of a fast and a slow model, when so many seconds are gone; writing takes 2 s, the end 0.7 s."""
    deadline = Deadline(budget, 2.0, SimpleNamespace(seconds=0.0), SINGLE_PROCESS)
    deadline._meter = SimpleNamespace(seconds=gone)
    speeds = {"fast": ModelSpeed(0.001, 0.1, 4e9), "slow": slow}
    request = replace(REQUEST, **more)
    return plan_comparison(request, speeds, deadline, val=5000, measured=100_000, evaluations=evaluations)


def test_the_time_that_is_left_is_divided_over_cells_and_trials():
    """2 models x (2 fractions x 2 seeds + 3 trials of half a cell) = 11 parts of 97 % of what is left: an hour, less
    15 % for measuring, 2.7 s for writing and what is gone."""
    found = planned(gone=100.0)
    assert found.tuned
    assert found.cell_seconds == round(0.97 * (0.85 * 3600 - 2.7 - 100) / 11, 1)


def test_all_are_validated_and_measured_on_as_many_images_as_the_slowest_has_time_for():
    """A quarter of a trial for 10 evaluations and the end; a tenth of an hour for 4 cells of each model."""
    found = planned()
    seconds = 0.97 * (0.85 * 3600 - 2.7) / 11
    assert (found.evaluations, found.val_images) == (10, int(seconds / 8 / 11 / 0.004))
    assert found.measured_images == int(360 / (4 * 0.005))
    assert found.bias_images == 200
    assert found.image_seconds == {"fast": 0.001, "slow": 0.004}


def test_where_looking_takes_long_there_are_fewer_evaluations_of_the_fewest_images():
    found = planned(slow=ModelSpeed(0.3, 1.0, 4e9))
    assert (found.evaluations, found.val_images) == (1, 56)  # a quarter of a trial of 135 s, 33.7 s, for 2 x 56 x 0.3 s
    assert found.bias_images == 0  # 16 images would take 40 x 16 x 0.3 s of 180
    given = planned(slow=ModelSpeed(0.3, 1.0, 4e9), evaluations=2, overrides={"evaluations": 2})
    assert (given.evaluations, given.val_images) == (2, 50)  # what a person sets is kept


def test_where_trials_would_be_too_short_there_are_none():
    """A trial needs 12 steps of 20 s; a cell of the same length does not wait for it."""
    slow = ModelSpeed(0.004, 20.0, 4e9)
    assert planned(slow=slow, budget="2h").tuned
    found = planned(slow=slow)
    assert not found.tuned
    assert found.cell_seconds == round(0.97 * (0.85 * 3600 - 2.7) / 8, 1)


def test_a_budget_that_is_too_short_names_the_least_that_is_not(subtests):
    """By the measured steps of the slowest model, and by what is gone; with that budget there is a plan."""
    for equal, slow in (("time", ModelSpeed(0.1, 15.0, 4e9)), ("flops", ModelSpeed(0.1, 15.0, 40e9))):
        with subtests.test(equal):
            with pytest.raises(UserError, match=r"budget '2m': .*\b8 cells .*\bslow takes .*\b15 s") as refused:
                planned("2m", slow, gone=40.0, equal=equal)
            least, tuned = re.findall(r"[0-9hms]+(?= to try|, or)", str(refused.value))
            assert 8 * 12 * 15 < parse_budget(least) * (1 if equal == "time" else 2) < parse_budget(tuned)
            assert not planned(least, slow, gone=40.0, equal=equal).tuned
            assert planned(tuned, slow, gone=40.0, equal=equal).tuned
            shorter = f"{parse_budget(least) / 1.3:.0f}s"
            with pytest.raises(UserError, match="budget"):
                planned(shorter, slow, gone=40.0, equal=equal)


def test_a_model_that_is_added_must_fit_into_the_cells_that_there_are(tmp_path):
    plan = planned()
    check_fits("other", ModelSpeed(0.004, 1.0, 4e9), plan, tmp_path)
    with pytest.raises(UserError, match=f"other: .*{tmp_path}"):
        check_fits("other", ModelSpeed(0.004, 30.0, 4e9), plan, tmp_path)


def test_all_models_come_side_by_side():
    assert cells_of(["a", "b"], replace(REQUEST, fractions=[1.0, 0.1])) == [
        CellKey("a", 0.1, 0), CellKey("b", 0.1, 0), CellKey("a", 1.0, 0), CellKey("b", 1.0, 0),
        CellKey("a", 0.1, 1), CellKey("b", 0.1, 1), CellKey("a", 1.0, 1), CellKey("b", 1.0, 1),
    ]  # fmt: skip


def test_fractions_that_are_none(subtests):
    for fractions in ([], [0.1, 0.1]):
        with subtests.test(fractions=fractions), pytest.raises(UserError, match="fractions"):
            replace(REQUEST, fractions=fractions).check()


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


def test_operations_are_planned_by_the_speed_of_steps():
    """40 and 10 GFLOP a second; of each cell the rest is for the start and the validation images."""
    found = planned(equal="flops")
    beside = [3 + 11 * found.val_images * image for image in (0.001, 0.004)]
    expected = sum(found.cell_seconds - one for one in beside) / (1 / 40e9 + 1 / 10e9)
    assert found.cell_flops == pytest.approx(expected, rel=1e-3)


def test_the_best_rate_is_chosen_and_of_equals_the_one_with_the_lower_loss():
    def trial(model, rate, accuracy, loss, diverged=False):
        return Trial(model, rate, accuracy, loss, 9, Cost(), diverged=diverged)

    trials = [trial("a", 1, 0.5, 1.0), trial("a", 2, 0.6, 0.9), trial("a", 3, 0.6, 0.8), trial("b", 1, 0.0, None, True)]
    training = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=7.0))
    trainings = {"a": training, "b": training}
    assert choose_rates(trials, trainings, planned()) == {"a": 3}  # b diverged
    assert choose_rates([], trainings, replace(planned(), tuned=False)) == {"a": 7.0, "b": 7.0}


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


def test_the_models_that_are_looked_into_are_those_of_most_images_and_the_first_seed():
    def cell(model, fraction, seed):
        return Cell(model, fraction, seed, f"{model}-{fraction}-{seed}", 1, 0.5, (0, 1), 9, None, None)

    made = [cell(m, f, s) for s in (0, 1) for f in (0.1, 1.0) for m in ("a", "b")] + [cell("done", None, None)]
    expected = {"a-1.0-0", "b-1.0-0", "done-None-None"}
    assert {one.place for one in first_on_most(made)} == expected
    lost = [replace(one, diverged=one.place == "a-1.0-0") for one in made]
    assert {one.place for one in first_on_most(lost)} == {"a-1.0-1", "b-1.0-0", "done-None-None"}


def test_unequal_steps_are_told():
    def noted(*steps):
        cells = [
            Cell("a", 1.0, seed, "place", 1, 0.5, (0, 1), 9, None, None, {"steps": count})
            for seed, count in enumerate(steps)
        ]
        model = ComparedModel("a", "", 1, 1, (4, 4), True)
        found = remarks([model], cells, [], None, split="test", held_out=False, total=9, measured=9)
        return [one for one in found if f"{min(steps)} " in one and f"{max(steps)} " in one]

    assert noted(100, 105, 109) == []
    assert len(noted(100, 105, 111)) == 1


def test_images_that_cannot_be_read_are_not_blamed_on_the_time():
    cells = [Cell("a", 1.0, seed, "place", 1, 0.5, (0, 1), 98, None, None) for seed in (0, 1)]
    (unreadable,) = remarks([], cells, [], None, split="test", held_out=False, total=100, measured=100)
    assert "98 of 100" in unreadable
    (in_time,) = remarks(
        [], [replace(one, n=50) for one in cells], [], None, split="test", held_out=False, total=100, measured=50
    )
    assert "50" in in_time
    assert in_time.replace("50", "98") != unreadable
