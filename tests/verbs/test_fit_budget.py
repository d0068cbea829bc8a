"""A budget becomes a number of steps, of images that are looked at, and a model however short it is."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from support.commands import MB, check_ended_well, run_command
from support.fake_clock import fake_clock
from support.greys import draw_images, stop_after
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.cli import main
from vitreous.training.deadline import parse_budget
from vitreous.training.folder import read_config
from vitreous.verbs.fit import fit
from vitreous.weights.bundle import load_bundle
from vitreous.weights.source import open_weights


def test_budgets_are_read():
    expected = {"90s": 90, "5m": 300, "1h30m": 5400, "0.5h": 1800, "5m5s": 305}
    assert {text: parse_budget(text) for text in expected} == expected


def test_budgets_that_make_no_sense(subtests):
    for text in ("", "soon", "5x", "-5m", "0", "0s", "60", "5m5", "1h1h", "5m1h", "9" * 400 + "d", 0.01):
        with subtests.test(text), pytest.raises(UserError, match=f"budget {text!r}: .* 90s"):
            parse_budget(text)


def test_a_budget_becomes_steps_that_end_in_time_and_one_that_is_taken_up_again_keeps_to_them(
    images, weights, tmp_path
):
    """On a clock on which a step takes a tenth of a second, and all else nothing."""
    ways = {"weights": weights, "budget": "9s", "workers": 0}
    with fake_clock(step_seconds=0.1) as clock:
        began = clock()
        whole = fit(images, **ways, out=tmp_path / "whole")
        assert 3 < clock() - began < 9 - 4.5  # so long is kept for the bundle and the page
        assert read_config(tmp_path / "whole").schedule.steps == whole.steps > 10
        run = tmp_path / "stopped"
        assert not fit(images, **ways, out=run, callbacks=Callbacks(should_stop=stop_after(2))).finished
    planned, text = read_config(run), (run / "config.json").read_text()
    result = fit(images, **ways, out=run)  # by the real clock, which decides nothing any more
    assert result.finished
    assert result.steps == planned.schedule.steps > 10
    assert (run / "config.json").read_text() == text


def test_a_machine_that_becomes_slower_takes_fewer_steps(images, weights, tmp_path, no_page):
    ways = {"weights": weights, "budget": "9s", "workers": 0}
    with fake_clock(step_seconds=0.1):
        planned = fit(images, **ways, out=tmp_path / "even")
    with fake_clock(step_seconds=lambda step: 0.1 if step < 15 else 0.4) as clock:
        began = clock()
        slowed = fit(images, **ways, out=tmp_path / "slowed")
        assert clock() - began < 9
    config = read_config(tmp_path / "slowed")
    assert config.replans
    assert config.schedule.steps == slowed.steps < planned.steps


def test_a_time_that_is_up_before_the_training_takes_no_step(images, weights, tmp_path, no_page):
    """The classifier on frozen features is the result, and the folder is as complete as any."""
    heard = []
    ways = {"weights": weights, "budget": "0.1s", "out": tmp_path / "run", "workers": 0}
    result = fit(images, **ways, callbacks=Callbacks(message=heard.append))
    assert result.finished
    assert (result.steps, result.best_step, result.spent.images) == (0, 0, 0)
    assert result.validation.n == 2
    assert any("0.1s" in said for said in heard)
    assert fit(images, **ways) == result
    before = load_file(tmp_path / "run/bundle/model.safetensors")
    (tmp_path / "run/result.json").unlink()
    shutil.rmtree(tmp_path / "run/bundle")
    assert fit(images, **ways).finished
    after = load_file(tmp_path / "run/bundle/model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (("fit", "--weights", "{weights}"), 0),
        (("fit", "--model", "P/4@16"), 1),
        (("pretrain", "--method", "mae", "--model", "P/4@16"), 1),
    ],
    ids=["weights", "scratch", "mae"],
)
def test_a_budget_too_short_for_anything_leaves_a_model_and_a_page(images, weights, tmp_path, subtests, words, steps):
    verb, *more = (word.format(weights=weights) for word in words)
    for budget in ("1s", "0.001s"):
        with subtests.test(budget):
            run = tmp_path / budget
            outcome = run_command(verb, images, *more, "--budget", budget, "--out", run, "--workers", "0")
            check_ended_well(outcome, seconds=60, memory=1500 * MB)
            assert outcome.status == 0, outcome.stderr
            assert f" {budget} " in outcome.stderr
            assert json.loads((run / "result.json").read_text())["steps"] == steps
            assert (run / "bundle/model.safetensors").exists()
            assert (run / "report.html").exists()


def test_without_steps_images_are_seen_as_the_weights_saw_them(images, weights, tmp_path, no_page):
    """Only steps on crops make objects look larger; what a person sets stays in any case."""
    own = open_weights(weights).preprocess.crop
    ways, crop = {"weights": weights, "workers": 0}, "preprocess.crop"
    with fake_clock(step_seconds=0.1):
        trained = fit(images, **ways, budget="9s", out=tmp_path / "steps")
    assert trained.steps > 0
    assert load_bundle(tmp_path / "steps").preprocess.crop < own
    for number, (overrides, expected) in enumerate((({}, own), ({crop: 0.7}, 0.7))):
        run = tmp_path / f"none-{number}"
        assert fit(images, **ways, budget="0.1s", overrides=overrides, out=run).steps == 0
        assert load_bundle(run).preprocess.crop == expected


@pytest.fixture
def few_at_once(monkeypatch):
    """Eight images at a time, and a cost that is known after the first."""
    for room in ("training.labelled", "training.start"):
        monkeypatch.setattr(f"vitreous.{room}.inference_batch", lambda config: 8)
    monkeypatch.setattr("vitreous.training.image_plan.TIMING_SECONDS", 0.0)


def test_parts_are_random_said_everywhere_and_the_same_after_an_interruption(
    weights, tmp_path, capsys, few_at_once, no_page
):
    data = tmp_path / "data"
    for split in ("train", "test"):
        draw_images(data / split, count=40)
    run = tmp_path / "run"
    words = ["fit", str(data), "--weights", str(weights), "--budget", "0.1s", "--out", str(run), "--workers", "0"]
    main(words)
    config = read_config(run)
    assert config.subsets == {"train": config.probe.images, "test": 8}
    assert config.probe.images in (8, 16)  # by the clock, the first eight only warm up
    assert config.steps == 0
    said, card = capsys.readouterr().out, (run / "bundle/README.md").read_text()
    assert "8 of 80" in said
    assert "8 of 80" in card
    assert "95 %" in said
    assert "% of 4 " in said
    result = json.loads((run / "result.json").read_text())
    assert result["subset_of"] == {"test": 80}
    assert result["test"]["n"] == 8
    bundle, text = load_file(run / "bundle/model.safetensors"), (run / "config.json").read_text()
    for again in (("result.json",), ("result.json", "checkpoints")):  # killed at the end, and before a checkpoint
        for lost in again:
            shutil.rmtree(run / lost) if (run / lost).is_dir() else (run / lost).unlink()
        main(words)
        assert (run / "config.json").read_text() == text
        other = load_file(run / "bundle/model.safetensors")
        assert all(torch.equal(tensor, other[name]) for name, tensor in bundle.items())
        assert json.loads((run / "result.json").read_text())["test"] == result["test"]
