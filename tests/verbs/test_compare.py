"""`compare` as a person uses it: tiny trainings, cells that are kept, and a folder that goes on where it was."""

import itertools
import json
import re
import shutil
import signal

import numpy as np
import pytest

from support.fake_clock import fake_clock
from support.greys import stop_after
from support.images import make_tree
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.cli import main
from vitreous.data.opening import open_data
from vitreous.data.source import split_validation, take_fraction
from vitreous.inference.engine import open_in_torch
from vitreous.inference.evaluation import measure_classifier
from vitreous.interrupt import Interrupted
from vitreous.model.family import count_flops
from vitreous.studies.compare import cells
from vitreous.studies.compare import compare as study
from vitreous.studies.compare.plan import plan_comparison
from vitreous.training.deadline import parse_budget
from vitreous.training.folder import read_config
from vitreous.training.start import split_for
from vitreous.verbs.fit import fit
from vitreous.verbs.studies import compare
from vitreous.weights.bundle import load_bundle

BUDGET, ONE_MODEL = "25s", "9s"
"""A few steps in each training."""
MODELS = ["F/4@16", "F/4@16:attention=neighbourhood:window=3"]


step_seconds = [0.2]


@pytest.fixture(scope="module", autouse=True)
def clock():
    """Trainings may be so short that they teach nothing, and a step takes 0.2 seconds whatever the machine does."""
    with fake_clock(step_seconds=lambda _: step_seconds[0]) as now, pytest.MonkeyPatch.context() as patch:
        for name, value in {"START_SECONDS": 0.0, "MIN_STEPS": 1, "MIN_BIAS_IMAGES": 4, "MAX_BIAS_IMAGES": 4}.items():
            patch.setattr(f"vitreous.studies.compare.plan.{name}", value)
        patch.setattr(study, "MAX_BIAS_IMAGES", 4)
        patch.setattr(study, "MAX_TIMED_STEP", 1.0)  # by this clock a small step takes as long as a whole one
        patch.setattr("vitreous.studies.timing.TIMING_SECONDS", 0.1)
        yield now


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Light and dark, 120 to learn from and 20 to be judged by."""
    draw = np.random.default_rng(0)

    def some(count):
        labels = np.arange(count) % 2
        return (draw.integers(0, 100, (count, 16, 16, 3)) + 100 * labels[:, None, None, None]).astype(np.uint8), labels

    path = tmp_path_factory.mktemp("data") / "images.npz"
    (images, labels), (others, truth) = some(120), some(20)
    np.savez(path, x_train=images, y_train=labels, x_test=others, y_test=truth)
    return path


def run(images, out, models=MODELS, **more):
    given = {"budget": BUDGET if len(models) > 1 else ONE_MODEL, "fractions": [0.25, 1], "repeats": 1, "equal": "flops"}
    return compare(images, models=models, workers=0, out=out, **{**given, **more})


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory):
    """A comparison that several tests look at: its folder and its result."""
    out = tmp_path_factory.mktemp("compared") / "out"
    return out, run(images, out)


def cells_below(out):
    return {str(path.parent.relative_to(out)): path.read_bytes() for path in out.rglob("cells/**/model.safetensors")}


def says_unfinished(out):
    """Whether the page has a warning in its header."""
    return "<strong>" in (out / "compare.html").read_text().partition("</header>")[0]


@pytest.mark.slow
def test_every_cell_has_its_run_and_its_numbers(finished, images):
    out, found = finished
    assert found.finished
    assert {path.name for path in out.iterdir()} == {
        "config.json", "compare.json", "compare.html", "cells", "tuning", "bias",
    }  # fmt: skip
    assert [(cell.model, cell.fraction, cell.seed, cell.images) for cell in found.cells] == [
        (MODELS[0], 0.25, 0, 28), (MODELS[1], 0.25, 0, 28), (MODELS[0], 1.0, 0, 108), (MODELS[1], 1.0, 0, 108),
    ]  # fmt: skip
    assert all(cell.n == 20 and cell.settings["steps"] > 1 for cell in found.cells)
    assert [found.settings[name] for name in ("evaluations", "val_images", "measured_images")] == [10, 12, 20]
    assert len(found.tried) == 6
    saved = json.loads((out / "compare.json").read_text())
    assert saved.pop("generator").startswith("vitreous ")
    assert saved == json.loads(json.dumps(found.to_json()))
    assert saved["machine"]["cores"] >= 1
    assert len(saved["digests"]["test"]) == 16
    assert set(saved["biases"]) == set(MODELS)
    assert (out / "compare.html").exists()
    near = load_bundle(out / "cells" / "F-4@16_attention=neighbourhood_window=3" / "1" / "seed-0").model.config
    assert (near.attention, near.window) == ("neighbourhood", 3)


@pytest.mark.slow
def test_operations_are_equal_but_for_a_step(finished):
    _, found = finished
    for cell in found.cells:
        forward = next(model.forward_flops for model in found.models if model.name == cell.model)
        step = 3 * min(64, cell.images) * forward
        assert cell.spent.flops == pytest.approx(cell.settings["steps"] * step, rel=1e-9)
        assert cell.settings["steps"] > 1
        assert abs(cell.spent.flops - found.cell_flops) <= step / 2
    config = load_bundle(found.cells[0].place).model.config
    assert forward == count_flops(load_bundle(found.cells[1].place).model.config)
    assert found.models[0].forward_flops == count_flops(config)


@pytest.mark.slow
def test_splits_are_the_same_for_all_and_shares_are_nested(finished, images):
    out, found = finished
    data = open_data(images)
    seen = {}
    for cell in found.cells:
        split = split_for(read_config(out / cell.place).training, data)
        seen[cell.model, cell.fraction] = {
            name: {source.key(i) for i in range(len(source))} for name, source in split.splits.items()
        }
    whole = seen[MODELS[0], 1.0]
    assert seen[MODELS[1], 1.0] == whole
    for model in MODELS:
        part = seen[model, 0.25]
        assert (part["val"], part["test"]) == (whole["val"], whole["test"])
        assert part["train"] < whole["train"]
    assert not whole["train"] & whole["val"]


@pytest.mark.slow
def test_repeating_it_trains_nothing(finished, images, monkeypatch):
    out, found = finished
    monkeypatch.setattr(
        "vitreous.training.train.Loop", lambda *_, **__: pytest.fail("a finished cell was trained again")
    )
    for module, name in ((cells, "measure_bias"), (study, "seconds_per_image"), (study, "seconds_per_step")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("measured again"))
    (out / "compare.html").unlink()
    assert run(images, out) == found
    assert (out / "compare.html").exists()


@pytest.mark.slow
def test_one_that_was_stopped_goes_on_to_the_same_models(finished, images, tmp_path):
    """With equal operations no clock decides anything once the trials are done: the same bits are expected."""
    out, whole = finished
    again = tmp_path / "again"
    shutil.copytree(out, again)
    shutil.rmtree(again / "cells")
    (again / "compare.json").unlink()
    counts = []
    for steps in itertools.count(1):
        result = run(images, again, callbacks=Callbacks(should_stop=stop_after(steps)))
        if result.finished:
            break
        counts.append(len(result.cells))
        written = again / "compare.json"
        assert written.exists() == bool(result.cells)
        if result.cells:
            assert json.loads(written.read_text())["finished"] is False
            assert says_unfinished(again)
    assert 0 in counts
    assert max(counts) > 0
    assert json.loads((again / "compare.json").read_text())["finished"] is True
    assert not says_unfinished(again)
    assert cells_below(again) == cells_below(out)
    assert [cell.accuracy for cell in result.cells] == [cell.accuracy for cell in whole.cells]


@pytest.mark.slow
def test_seeds_and_models_may_be_added(finished, images, tmp_path):
    out, whole = finished
    more = tmp_path / "more"
    shutil.copytree(out, more)
    before = cells_below(more)
    found = run(images, more, repeats=2, fractions=[1, 0.25, 0.5])
    assert len(found.cells) == 12
    assert {name: content for name, content in cells_below(more).items() if name in before} == before
    assert found.cell_flops == whole.cell_flops
    with pytest.raises(UserError, match=r"repeats=2\b.* 1\b"):
        run(images, more, fractions=[1, 0.25, 0.5])


@pytest.mark.slow
def test_equal_time_and_a_finished_model_beside_it(finished, images, tmp_path):
    out, _ = finished
    done = out / "cells" / "F-4@16" / "1" / "seed-0"
    heard = []
    found = run(
        images, tmp_path / "out", models=[MODELS[0], str(done)], equal="time", fractions=[1], repeats=2, budget="12s",
        callbacks=Callbacks(message=heard.append),
    )  # fmt: skip
    assert len(found.cells) == 3
    assert [row.model for row in found.rows] == [MODELS[0], str(done)]
    assert found.cells[-1].n == 20
    assert (
        read_config(tmp_path / "out" / "cells" / "F-4@16" / "1" / "seed-1").request.budget == f"{found.cell_seconds}s"
    )
    assert [number for line in heard for number in re.findall(r"\b(\d) of 2 \(", line)] == ["1", "2"]
    assert any(re.search(rf"\b2 \w+ of {found.cell_seconds:g} s\b", line) for line in heard)


@pytest.mark.slow
def test_finished_models_alone_need_no_budget(finished, images, tmp_path, capsys):
    out, _ = finished
    places = [str(out / "cells" / "F-4@16" / share / "seed-0") for share in ("1", "0.25")]
    main(["compare", str(images), "--models", ",".join(places), "--out", str(tmp_path / "out"), "--workers", "0"])
    printed = capsys.readouterr().out
    assert "compare.html" in printed
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [cell["n"] for cell in found["cells"]] == [20, 20]
    assert found["tried"] == []


@pytest.mark.slow
def test_without_a_test_split_the_validation_images_judge_and_that_is_said(packed, tmp_path):
    found = run(packed, tmp_path / "out", models=MODELS[:1], equal="time", fractions=[1])
    assert found.split == "val"
    assert [cell.n for cell in found.cells] == [12]
    assert any("test split" in remark for remark in found.remarks)
    changes = read_config(tmp_path / "out/cells/F-4@16/1/seed-0").request.overrides
    assert "split_seed" not in changes  # they have a val split
    with pytest.raises(UserError, match="split_seed"):
        fit(packed, epochs=1, overrides={"split_seed": 1}, out=tmp_path / "run", workers=0)


@pytest.mark.slow
def test_finished_models_are_not_measured_on_all_images_of_data_without_splits(finished, images, tmp_path):
    out, _ = finished
    with np.load(images) as arrays:
        np.savez(tmp_path / "whole.npz", images=arrays["x_train"], labels=arrays["y_train"])
    done = str(out / "cells" / "F-4@16" / "1" / "seed-0")
    found = compare(tmp_path / "whole.npz", models=[done], out=tmp_path / "out", workers=0)
    assert [cell.n for cell in found.cells] == [12]
    (remark,) = (remark for remark in found.remarks if "test split" in remark)
    assert "12 of " in remark
    assert "validation" not in remark  # they chose nothing


@pytest.mark.slow
def test_every_cell_is_measured_on_the_same_images(images, tmp_path, monkeypatch):
    """However fast a model is and whatever its seed; finished models too."""
    seen = []

    def measured(bundle, source, **more):
        seen.append([source.key(i) for i in range(len(source))])
        return measure_classifier(bundle, source, **more)

    monkeypatch.setattr(cells, "measure_classifier", measured)
    monkeypatch.setattr("vitreous.studies.compare.plan.VALIDATION_FRACTION", 1e-9)
    monkeypatch.setattr("vitreous.studies.compare.plan.MIN_IMAGES", 16)
    monkeypatch.setattr("vitreous.studies.compare.compare.seconds_per_image", lambda *_: 0.0379)
    changes = {"validation": 0.2, "evaluations": 2}
    found = run(images, tmp_path / "out", fractions=[1], repeats=2, equal="time", overrides=changes)
    assert len(seen) == 4
    assert all(keys == seen[0] for keys in seen)
    assert [cell.n for cell in found.cells] == [16] * 4  # a tenth of the time for 4 cells
    assert any(" 16" in remark for remark in found.remarks)
    assert found.tried == ()
    assert any("learning rates" in remark for remark in found.remarks)  # there is no time to try any
    usual = read_config(tmp_path / "out" / found.cells[0].place).training.optimizer.learning_rate
    assert [model.learning_rate for model in found.models] == [usual] * 2
    runs = [read_config(tmp_path / "out" / cell.place) for cell in found.cells]
    assert [one.subsets for one in runs] == [{"val": 16}] * 4
    assert [one.training.evaluations for one in runs] == [2] * 4


@pytest.mark.slow
def test_a_training_that_diverges_ends_nothing_but_itself(images, tmp_path, monkeypatch):
    """A rate of 1e30 overflows in the first steps; 0.3 and 1 times the recipe's do not."""
    monkeypatch.setattr(cells, "RATE_FACTORS", (1.0, 1e33))
    found = run(images, tmp_path / "out", models=MODELS[:1], fractions=[1])
    assert found.finished
    assert [trial.diverged for trial in found.tried] == [False, True]
    assert found.tried[1].accuracy == 0
    assert found.models[0].learning_rate == found.tried[0].learning_rate
    assert any("diverged" in remark for remark in found.remarks)
    monkeypatch.setattr(
        "vitreous.training.train.Loop", lambda *_, **__: pytest.fail("a diverged trial was trained again")
    )
    assert run(images, tmp_path / "out", models=MODELS[:1], fractions=[1]) == found


@pytest.mark.slow
def test_a_model_that_always_diverges_fails_alone(images, tmp_path, monkeypatch):

    def rates(training):
        found = cells.learning_rates(training)
        return [1e30 * rate for rate in found] if training.model.attention == "neighbourhood" else found

    monkeypatch.setattr(study, "learning_rates", rates)
    found = run(images, tmp_path / "out", fractions=[1])
    assert found.finished
    assert [cell.model for cell in found.cells] == MODELS[:1]
    assert set(found.biases) == set(MODELS[:1])
    assert any(remark.startswith(f"{MODELS[1]}: ") for remark in found.remarks)


@pytest.mark.slow
def test_a_cell_that_diverges_counts_as_nothing_right(images, tmp_path, monkeypatch):

    def train(context, key, rate, *more):
        return cells.train_cell(context, key, 1e30 if key.seed == 1 else rate, *more)

    monkeypatch.setattr(study, "train_cell", train)
    found = run(images, tmp_path / "out", models=MODELS[:1], fractions=[1], repeats=2)
    assert found.finished
    assert [(cell.diverged, cell.n) for cell in found.cells] == [(False, 20), (True, 20)]
    assert found.rows[0].accuracies.mean == found.cells[0].accuracy / 2
    assert any("seed 1: " in remark for remark in found.remarks)


@pytest.mark.slow
def test_a_signal_between_trainings_leaves_a_page_of_what_there_is(finished, images, tmp_path, monkeypatch):
    again = tmp_path / "again"
    shutil.copytree(finished[0], again)

    def train(context, key, *more):
        if key.fraction == 1:
            raise Interrupted(signal.SIGINT)
        return cells.train_cell(context, key, *more)

    monkeypatch.setattr(study, "train_cell", train)
    found = run(images, again)
    assert not found.finished
    assert [cell.fraction for cell in found.cells] == [0.25, 0.25]
    saved = json.loads((again / "compare.json").read_text())
    assert (saved["finished"], len(saved["cells"])) == (False, 2)
    assert says_unfinished(again)


@pytest.mark.slow
def test_the_device_that_was_named_is_used(finished, images, tmp_path, monkeypatch):
    out, _ = finished
    asked = []

    def opened(bundle, device="auto"):
        asked.append(device)
        return open_in_torch(bundle, device)

    monkeypatch.setattr(cells, "open_in_torch", opened)
    done = str(out / "cells" / "F-4@16" / "1" / "seed-0")
    compare(images, models=[done], out=tmp_path / "out", workers=0, device="cpu")
    assert asked == ["cpu"]


@pytest.mark.slow
def test_the_time_is_kept_or_the_true_minimum_is_named(images, tmp_path, monkeypatch, clock):
    """Steps of 15 seconds: 120 s are refused; what the refusal names is enough for 10 steps in every cell, and all of
    it ends in time."""
    monkeypatch.setattr("vitreous.studies.compare.plan.MIN_STEPS", 10)
    step_seconds[0] = 15.0
    try:
        given = {"fractions": [1], "equal": "time", "overrides": {"batch_size": 8}}
        with pytest.raises(UserError, match=r"budget '120s': .*\b15 s\b") as refused:
            run(images, tmp_path / "out", budget="120s", **given)
        assert not (tmp_path / "out").exists()
        budget = re.search(r"give at least ([0-9hms]+)", str(refused.value))[1]
        began, heard = clock(), []
        found = run(images, tmp_path / "out", budget=budget, callbacks=Callbacks(message=heard.append), **given)
        assert clock() - began < parse_budget(budget)
    finally:
        step_seconds[0] = 0.2
    assert all(cell.settings["steps"] >= 10 for cell in found.cells)
    assert found.tried == ()
    assert any("learning rates" in line for line in heard)  # that there are no trials is said


@pytest.mark.slow
def test_a_plan_that_another_process_wrote_meanwhile_is_not_written_over(finished, images, tmp_path, monkeypatch):
    """Both found the folder empty; while this one measured, the other began and ended."""
    out = tmp_path / "out"

    def planned(*args, **more):
        shutil.copytree(finished[0], out)
        return plan_comparison(*args, **more)

    monkeypatch.setattr(study, "plan_comparison", planned)
    with pytest.raises(UserError, match=str(out)):
        run(images, out, repeats=2)
    assert (out / "config.json").read_bytes() == (finished[0] / "config.json").read_bytes()


@pytest.mark.slow
def test_other_data_are_refused_with_what_changed_and_overwriting_begins_anew(finished, images, tmp_path):
    """The finished comparison is looked at again: its data have one image less."""
    out = tmp_path / "out"
    shutil.copytree(finished[0], out)
    with np.load(images) as arrays:
        fewer = {name: array[: len(array) - name.endswith("_train")] for name, array in arrays.items()}
    here = tmp_path / "images.npz"
    shutil.copy(images, here)
    config = json.loads((out / "config.json").read_text())
    config["request"]["data"] = str(here)
    (out / "config.json").write_text(json.dumps(config))
    np.savez(here, **fewer)
    with pytest.raises(UserError, match=rf"{here}: .*\b119 train .*\b120 .*{out} .*--overwrite.*--out"):
        run(here, out)
    found = run(here, out, models=MODELS[:1], fractions=[1], overwrite=True)
    assert found.finished
    assert sorted(path.name for path in (out / "cells").iterdir()) == ["F-4@16"]


@pytest.mark.slow
def test_unreadable_files_that_the_whole_data_may_have_end_no_cell(tmp_path):
    """3 of 400 are fewer than 1 %, though all 3 are among the 18 that a cell learns from."""
    make_tree(tmp_path / "data" / "train", {"a": 200, "b": 200}, ".png")
    make_tree(tmp_path / "data" / "test", {"a": 10, "b": 10}, ".png")
    given = {"models": MODELS[:1], "fractions": [0.05], "equal": "time"}
    taken = take_fraction(split_validation(open_data(tmp_path / "data").train, 0.1, seed=0)[0], 0.05, seed=0)
    for index in (0, 1, 2):
        taken.path(index).write_text("not an image")
    found = run(tmp_path / "data", tmp_path / "out", **given)
    assert found.finished
    assert [cell.images for cell in found.cells] == [18]


REFUSED = {
    "no budget": ({"budget": None}, "budget"),
    "too short": ({"budget": "0.01s"}, r"budget '0\.01s': .* 4 .*\ds"),
    "a share that leaves a class empty": ({"fractions": [0.001]}, r"share=0\.001: "),
    "a fraction of 2": ({"fractions": [2]}, r"fractions\[0\]=2\b"),
    "a fraction of 0": ({"fractions": [1, 0]}, r"fractions\[1\]=0\b"),
    "no seeds": ({"repeats": 0}, "repeats=0"),
    "two sizes": ({"image_size": 16}, "image_size=16"),
    "another size": ({"models": ["F/4@16", "F/4@128"]}, "128"),
    "the learning rate": ({"overrides": {"optimizer.learning_rate": 1}}, r"optimizer\.learning_rate: "),
    "a share": ({"overrides": {"share": 0.5}}, "share: "),
    "no validation": ({"overrides": {"validation": 0}}, "validation=0"),
    "no such field": ({"overrides": {"wings": 1}}, "wings"),
}


def test_what_is_refused_leaves_nothing(images, weights, tmp_path, subtests):
    for case, (changes, named) in REFUSED.items():
        with subtests.test(case):
            with pytest.raises(UserError, match=named):
                run(images, tmp_path / "out", **changes)
            assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="class"):  # a finished model must know the classes
        compare(images, models=[weights], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
