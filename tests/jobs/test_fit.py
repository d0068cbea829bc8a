"""`fit` as a person and as a notebook use it: tiny trainings, every promise of the run folder."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from vitreous.evaluate.sureness import fit_sureness
from vitreous.jobs.budget import parse_budget, saved_pace
from vitreous.jobs.run import Listeners

from vitreous import UserError, ViT
from vitreous.config.data import Preprocess
from vitreous.data.loader import Loader
from vitreous.data.source import open_data
from vitreous.evaluate.features import predict_logits
from vitreous.jobs.fit import fit
from vitreous.recipes.supervised import RECIPES
from vitreous.weights.bundle import load_bundle, save_bundle


def draw_pictures(folder, count=12, side=20, classes=("dark", "light")):
    """A folder with a folder for each class: grey noise around a level of its own."""
    draw = np.random.default_rng(0)
    for level, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(0, 60, (side, side, 3)) + 150 * level // (len(classes) - 1)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return draw_pictures(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A small model that was trained for other classes."""
    model = ViT("N/4@16", depth=1, width=32, heads=2, mlp_width=32, classes=5, seed=7)
    place = tmp_path_factory.mktemp("weights") / "bundle"
    return save_bundle(place, model, Preprocess(size=(16, 16)), list("abcde"))


def quick(pictures, weights, out, **more):
    return fit(pictures, weights=weights, epochs=2, out=out, workers=0, **more)


def test_a_run_leaves_what_the_next_person_needs(pictures, weights, tmp_path):
    run = tmp_path / "run"
    heard = []
    result = quick(pictures, weights, run, listeners=Listeners(say=heard.append))
    assert result.finished
    assert result.classes == ("dark", "light")
    assert result.validation["n"] == 2
    assert result.test is None
    assert {path.name for path in run.iterdir()} == {
        "config.json", "result.json", "metrics.jsonl", "tensorboard", "checkpoints", "bundle", "report.html",
    }  # fmt: skip
    bundle = load_bundle(run)
    assert bundle.labels == ("dark", "light")
    assert bundle.info["request"]["epochs"] == 2
    card = (run / "bundle" / "README.md").read_text()
    assert "2 classes: dark, light" in card
    assert "floating-point operations" in card
    assert any("frozen features" in text for text in heard)
    page = (run / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")  # nothing is fetched from elsewhere


def test_fine_tuning_starts_from_the_weights_with_a_new_classifier(pictures, weights, tmp_path):
    result = fit(pictures, weights=weights, epochs=0.01, recipe="paper-finetune", out=tmp_path / "run", workers=0)
    tuned, base = load_bundle(result.run).model, load_bundle(weights).model
    assert tuned.head.weight.shape == (2, 32)
    fresh = ViT(tuned.config, seed=0)
    weight = tuned.blocks[0].mlp.fc1.weight
    assert (weight - base.blocks[0].mlp.fc1.weight).abs().max() < 0.05
    assert (weight - fresh.blocks[0].mlp.fc1.weight).abs().max() > 0.2


def test_a_higher_resolution_resamples_the_positions(pictures, weights, tmp_path):
    result = quick(pictures, weights, tmp_path / "run", image_size=24)
    bundle = load_bundle(result.run)
    assert bundle.preprocess.size == (24, 24)
    expected = load_bundle(weights).model.resized(24).pos_embed
    torch.testing.assert_close(bundle.model.pos_embed, expected, atol=0.01, rtol=0)


def test_from_scratch_on_small_pictures(pictures, tmp_path):
    result = fit(pictures, epochs=1, out=tmp_path / "run", workers=0)
    assert load_bundle(result.run).model.config.image_size == (20, 20)
    assert result.probe is None


def test_it_is_as_sure_as_it_is_right(pictures, weights, tmp_path):
    """On the pictures set aside, no factor would make the scores better; the answers are those of the best step."""
    quick(pictures, weights, tmp_path / "run")
    bundle = load_bundle(tmp_path / "run")
    aside = open_data(pictures).with_validation(0.1, 0).splits["val"]
    scores, labels = predict_logits(bundle.model, Loader(aside, bundle.preprocess, batch_size=2).batches())
    assert fit_sureness(scores, labels) == pytest.approx(1, rel=0.01)
    best = load_file(sorted((tmp_path / "run/checkpoints").iterdir())[-1] / "best.safetensors")
    ratio = bundle.model.head.weight / best["head.weight"]
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-4)
    assert torch.equal(bundle.model.blocks[0].attn.qkv.weight, best["blocks.0.attn.qkv.weight"])


def test_the_same_command_again_has_nothing_to_do(pictures, weights, tmp_path):
    first = quick(pictures, weights, tmp_path / "run")
    heard = []
    again = quick(pictures, weights, tmp_path / "run", listeners=Listeners(say=heard.append))
    assert "finished" in heard[0]
    assert again.validation == first.validation
    page = (tmp_path / "run/report.html").read_text()
    (tmp_path / "run/report.html").unlink()
    quick(pictures, weights, tmp_path / "run", listeners=Listeners(say=heard.append))
    assert "only its report.html was missing" in heard[1]
    assert (tmp_path / "run/report.html").read_text() == page


def test_it_goes_on_with_the_same_data_only(pictures, weights, tmp_path):
    data = shutil.copytree(pictures, tmp_path / "data")
    stop = iter([False, True])
    assert not quick(data, weights, tmp_path / "run", listeners=Listeners(stop=lambda: next(stop))).finished
    (data / "dark/0.png").rename(data / "dark/another.png")
    with pytest.raises(UserError, match=r"data: has other train pictures, or other labels, than when .*run began"):
        quick(data, weights, tmp_path / "run")
    (data / "dark/another.png").unlink()
    with pytest.raises(UserError, match=r"data: has 23 train pictures, and had 24 when .*run began; bring them back"):
        quick(data, weights, tmp_path / "run")
    (data / "dark").rename(data / "black")
    with pytest.raises(UserError, match=r"data: its classes have changed since .*run began"):
        quick(data, weights, tmp_path / "run")


def test_another_command_in_the_same_place_is_refused(pictures, weights, tmp_path):
    quick(pictures, weights, tmp_path / "run")
    with pytest.raises(UserError, match="holds a training with seed=0, not 1"):
        quick(pictures, weights, tmp_path / "run", seed=1)


def test_a_pretraining_in_the_same_place_is_refused(pictures, weights, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"request": {"data": str(pictures), "method": "mae"}}))
    with pytest.raises(UserError, match="holds a pretraining"):
        quick(pictures, weights, run)


def test_stopped_and_repeated_equals_uninterrupted(pictures, weights, tmp_path):
    whole = quick(pictures, weights, tmp_path / "whole")
    stop = iter([False, True])
    part = quick(pictures, weights, tmp_path / "part", listeners=Listeners(stop=lambda: next(stop)))
    assert not part.finished
    rest = quick(pictures, weights, tmp_path / "part")
    assert rest.finished
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
    one, other = (load_file(tmp_path / name / "bundle/model.safetensors") for name in ("whole", "part"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert rest.validation == whole.validation


def test_interrupted_before_the_first_checkpoint_it_fits_the_classifier_again(pictures, weights, tmp_path):
    whole = quick(pictures, weights, tmp_path / "whole")

    def crash(event):
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        quick(pictures, weights, tmp_path / "part", listeners=Listeners(step=crash))
    assert not list((tmp_path / "part/checkpoints").iterdir())
    rest = quick(pictures, weights, tmp_path / "part")
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
    assert rest.validation == whole.validation


def test_every_recipe_trains(pictures, weights, tmp_path):
    for name in RECIPES:
        scratch = name.startswith("scratch")
        start = {"model": "P/4@16"} if scratch else {"weights": weights}
        result = fit(pictures, recipe=name, epochs=0.1, out=tmp_path / name, workers=0, **start)
        assert result.finished, name
        if scratch:
            with pytest.raises(UserError, match="cannot start from --weights"):
                fit(pictures, recipe=name, weights=weights, epochs=0.1, out=tmp_path / "no", workers=0)


@pytest.mark.clock
def test_a_budget_becomes_a_number_of_steps(pictures, weights, tmp_path):
    begin = time.monotonic()
    result = fit(pictures, weights=weights, budget="9s", out=tmp_path / "run", workers=0)
    assert result.steps > 1
    assert saved_pace(json.loads((tmp_path / "run/config.json").read_text())).steps == result.steps
    assert time.monotonic() - begin < 60  # generous: only that it was a budget at all


@pytest.mark.clock
def test_a_budget_that_is_taken_up_again_keeps_to_its_plan(pictures, weights, tmp_path):
    ways = {"weights": weights, "budget": "6s", "out": tmp_path / "run", "workers": 0}
    calls = itertools.count()
    assert not fit(pictures, **ways, listeners=Listeners(stop=lambda: next(calls) >= 3)).finished
    config = json.loads((tmp_path / "run/config.json").read_text())
    result = fit(pictures, **ways)
    assert result.finished
    assert result.steps == saved_pace(config).steps
    assert json.loads((tmp_path / "run/config.json").read_text()) == config


@pytest.mark.clock
def test_a_time_that_is_up_before_the_training_leaves_one_step(pictures, weights, tmp_path):
    heard = []
    listeners = Listeners(say=heard.append)
    result = fit(pictures, weights=weights, budget="0.1s", out=tmp_path / "run", workers=0, listeners=listeners)
    assert result.finished
    assert result.steps == 1
    assert any("the time is up" in said for said in heard)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("1h30m", 5400), ("2", 120), ("0.5h", 1800), ("5m5", 600)], ids=str
)
def test_budgets_are_read(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5x", "-5m", "0"])
def test_budgets_that_make_no_sense(text):
    with pytest.raises(UserError, match="write a time such as 90s"):
        parse_budget(text)


MISTAKES = {
    "--recipe 'best': choose one of auto, notebook": {"recipe": "best"},
    "--budget and --epochs": {"budget": "1m"},
    "--model and --weights": {"model": "S/16"},
    "is not a multiple of the patch 4": {"image_size": 18},
    "--image-size 0: give the side": {"image_size": 0},
    "seed=-1: must be a whole number": {"seed": -1},
}


@pytest.mark.parametrize(("says", "more"), MISTAKES.items())
def test_mistakes_are_answered(pictures, weights, tmp_path, says, more):
    with pytest.raises(UserError) as error:
        quick(pictures, weights, tmp_path / "run", **more)
    assert says in str(error.value)


def test_data_that_cannot_be_learned_from(weights, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no pictures"):
        quick(tmp_path / "empty", weights, tmp_path / "run")
    draw_pictures(tmp_path / "one", classes=("a", "b"))
    shutil.rmtree(tmp_path / "one" / "b")
    with pytest.raises(UserError, match="only one class"):
        quick(tmp_path / "one", weights, tmp_path / "run")
    lonely = draw_pictures(tmp_path / "lonely")
    for path in sorted((lonely / "light").iterdir())[1:]:
        path.unlink()
    with pytest.raises(UserError, match="the only picture of class 'light'"):
        quick(lonely, weights, tmp_path / "run")


def test_unreadable_pictures_are_reported_and_too_many_stop(weights, tmp_path):
    data = draw_pictures(tmp_path / "data", count=75)
    (data / "dark" / "0.png").write_text("not a picture")
    result = quick(data, weights, tmp_path / "run")
    assert any("0.png" in remark for remark in result.remarks)
    for i in range(5):
        (data / "dark" / f"{i}.png").write_bytes(b"")
    with pytest.raises(UserError, match="pictures cannot be read, more than the limit of 1%"):
        quick(data, weights, tmp_path / "other")


def test_a_place_that_cannot_be_written(pictures, weights, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        quick(pictures, weights, tmp_path / "file" / "run")


def test_damaged_weights_are_refused(pictures, weights, tmp_path):
    hurt = tmp_path / "hurt"
    shutil.copytree(weights, hurt)
    content = bytearray((hurt / "model.safetensors").read_bytes())
    content[-5] ^= 4
    (hurt / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors: damaged or changed"):
        quick(pictures, hurt, tmp_path / "run")


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
import vitreous.train.loop as loop
loop.Loop.__init__.__kwdefaults__["save_seconds"] = 0.0  # save at every step, so that saving is often interrupted
from vitreous.jobs.fit import fit
fit(sys.argv[1], weights=sys.argv[2], epochs=15, out=sys.argv[3], workers=int(sys.argv[4]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "kills"), [(0, 14), (2, 6)])
def test_killed_at_random_moments_it_ends_with_the_same_bits(pictures, weights, tmp_path, workers, kills):
    """SIGKILL, saving included: it always goes on, never from before the last save, and ends as if nothing happened."""

    def start(out):
        words = [sys.executable, "-c", SCRIPT, str(pictures), str(weights), str(out), str(workers)]
        return subprocess.Popen(words, start_new_session=True)

    def saved():
        return max((path.name for path in (tmp_path / "hurt/checkpoints").glob("step-*")), default="")

    begin = time.monotonic()
    assert start(tmp_path / "whole").wait() == 0
    length = time.monotonic() - begin
    chance = random.Random(workers)
    before = ""
    for _ in range(kills):
        process = start(tmp_path / "hurt")
        time.sleep(length * chance.uniform(0.3, 1.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert saved() >= before
        before = saved()
        if (tmp_path / "hurt/result.json").exists():  # it came through: again from nothing
            shutil.rmtree(tmp_path / "hurt")
            before = ""
    assert start(tmp_path / "hurt").wait() == 0
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "hurt/metrics.jsonl").read_text()
    last = sorted((tmp_path / "whole/checkpoints").glob("step-*"))[-1]
    for file in last.glob("*.safetensors"):
        one, other = load_file(file), load_file(tmp_path / "hurt/checkpoints" / last.name / file.name)
        assert all(torch.equal(one[name], other[name]) for name in one), file.name
    one, other = (load_file(tmp_path / name / "bundle/model.safetensors") for name in ("whole", "hurt"))
    assert all(torch.equal(one[name], other[name]) for name in one)
