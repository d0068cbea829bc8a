"""`fit` as a person and as a notebook use it: tiny trainings, every promise of the run folder."""

import json
import shutil
import time
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

from support.greys import draw_pictures, stop_after
from support.greys import quick_fit as quick
from vitreous import UserError, ViT
from vitreous.cli import main
from vitreous.data.folder import FolderSource
from vitreous.data.loader import Loader
from vitreous.data.source import open_data
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.temperature import fit_temperature
from vitreous.jobs.fit import fit
from vitreous.recipes.supervised import RECIPES
from vitreous.run.budget.steps import parse_budget
from vitreous.run.folder import read_config
from vitreous.run.request import Listeners
from vitreous.weights.bundle import load_bundle

BUDGETS = ("9s", "30s", "90s")
"""The first has time for steps but on a slow or busy machine; there, one of the others has."""


def test_a_run_leaves_what_the_next_person_needs(pictures, weights, tmp_path):
    run = tmp_path / "run"
    heard = []
    result = quick(pictures, weights, run, listeners=Listeners(say=heard.append))
    assert result.finished
    assert result.classes == ("dark", "light")
    assert result.validation.n == 2
    assert result.test is None
    assert {path.name for path in run.iterdir()} == {
        "config.json", "result.json", "metrics.jsonl", "checkpoints", "bundle", "report.html",
    }  # fmt: skip
    bundle = load_bundle(run)
    assert bundle.labels == ("dark", "light")
    assert bundle.info["request"]["epochs"] == 2
    card = (run / "bundle" / "README.md").read_text()
    assert "2 classes: `dark`, `light`" in card
    assert "floating-point operations" in card
    assert any("frozen features" in text for text in heard)
    page = (run / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")  # nothing is fetched from elsewhere


def test_looking_at_pictures_tells_how_far_it_is(pictures, weights, tmp_path, no_page):
    seen = []
    quick(pictures, weights, tmp_path / "run", listeners=Listeners(look=lambda *told: seen.append(told)))
    splits = read_config(tmp_path / "run").splits
    last = {what: (done, total) for what, done, total in seen}
    assert last == {
        "looking at the training pictures": (splits["train"] - 2, splits["train"] - 2),  # two are set aside
        "looking at the validation pictures": (2, 2),
    }


def test_fine_tuning_starts_from_the_weights_with_a_new_classifier(pictures, weights, tmp_path, no_page):
    result = fit(pictures, weights=weights, epochs=0.01, recipe="paper-finetune", out=tmp_path / "run", workers=0)
    tuned, base = load_bundle(result.run).model, load_bundle(weights).model
    assert tuned.head.weight.shape == (2, 32)
    fresh = ViT(tuned.config, seed=0)
    weight = tuned.blocks[0].mlp.fc1.weight
    assert (weight - base.blocks[0].mlp.fc1.weight).abs().max() < 0.05
    assert (weight - fresh.blocks[0].mlp.fc1.weight).abs().max() > 0.2


def test_a_higher_resolution_resamples_the_positions(pictures, weights, tmp_path, no_page):
    result = quick(pictures, weights, tmp_path / "run", image_size=24)
    bundle = load_bundle(result.run)
    assert bundle.preprocess.size == (24, 24)
    expected = load_bundle(weights).model.resized(24).pos_embed
    torch.testing.assert_close(bundle.model.pos_embed, expected, atol=0.01, rtol=0)


def test_from_scratch_on_small_pictures(pictures, tmp_path, no_page):
    result = fit(pictures, epochs=1, out=tmp_path / "run", workers=0)
    assert load_bundle(result.run).model.config.image_size == (20, 20)
    assert result.probe is None


def test_it_is_as_sure_as_it_is_right(pictures, weights, tmp_path, no_page):
    """On the pictures set aside, no factor would make the scores better; the answers are those of the best step."""
    quick(pictures, weights, tmp_path / "run")
    bundle = load_bundle(tmp_path / "run")
    aside = open_data(pictures).with_validation(0.1, 0).splits["val"]
    scores, labels = compute_features(
        bundle.model, Loader(aside, bundle.preprocess, batch_size=2).batches(), len(aside)
    )
    assert fit_temperature(scores, labels) == pytest.approx(1, rel=0.01)
    best = load_file(sorted((tmp_path / "run/checkpoints").glob("step-*"))[-1] / "best.safetensors")
    ratio = bundle.model.head.weight / best["model|head.weight"]
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-4)
    assert torch.equal(bundle.model.blocks[0].attn.qkv.weight, best["model|blocks.0.attn.qkv.weight"])


def test_class_weights_balance_the_classifier_on_frozen_features(weights, tmp_path, no_page):
    """Where pictures do not tell the classes apart, it says how often each occurs; balanced, that both occur alike."""
    data = draw_pictures(tmp_path / "data", count=24)
    for i in range(24):  # light ones that are as dark as the dark ones, and a quarter as many
        place = data / "light" / f"{i}.png"
        place.unlink()
        if i < 6:
            shutil.copy(data / "dark" / f"{i}.png", place)
    still = {"optimizer.learning_rate": "1e-12", "validation": "0"}
    shares = {}
    for weighted in ("false", "true"):
        changes = {**still, "objective.class_weights": weighted}
        result = fit(data, weights=weights, epochs=1, out=tmp_path / weighted, workers=0, changes=changes)
        bundle = load_bundle(result.run)
        source = open_data(data).train
        scores, labels = compute_features(
            bundle.model, Loader(source, bundle.preprocess, batch_size=30).batches(), len(source)
        )
        light = scores.softmax(dim=1)[:, 1]
        # A free bias makes the mean over all that count alike equal to the share of the class, exactly.
        shares[weighted] = light.mean().item(), (light[labels == 0].mean() + light[labels == 1].mean()).item() / 2
    assert shares["false"][0] == pytest.approx(6 / 30, abs=1e-3)
    assert shares["true"][1] == pytest.approx(1 / 2, abs=1e-3)
    assert shares["true"][0] > 0.3


def test_every_picture_is_decoded_once_and_at_the_end_validation_is_gone_over_once(
    pictures, weights, tmp_path, monkeypatch, no_page
):
    """But for the page, which shows some of them again."""
    decoded, passes = Counter(), []
    read, batches = FolderSource.read, Loader.batches

    def counted_read(source, index, **more):
        decoded[source.name(index)] += 1
        return read(source, index, **more)

    def counted_batches(loader, *where):
        passes.append(len(loader.source))
        return batches(loader, *where)

    monkeypatch.setattr(FolderSource, "read", counted_read)
    monkeypatch.setattr(Loader, "batches", counted_batches)
    result = quick(pictures, weights, tmp_path / "run", listeners=Listeners(step=lambda event: passes.append("step")))
    assert result.probe is not None
    assert len(decoded) == 24
    assert set(decoded.values()) == {1}
    last = len(passes) - passes[::-1].index("step")
    assert passes[last:] == [result.validation.n]


def test_curves_for_tensorboard_only_where_they_are_asked_for(pictures, weights, tmp_path, monkeypatch, no_page):
    pytest.importorskip("tensorboard")
    quick(pictures, weights, tmp_path / "asked", tensorboard=True)
    assert list((tmp_path / "asked/tensorboard").glob("events.*"))
    monkeypatch.setattr("vitreous.run.track.find_spec", lambda name: None)
    with pytest.raises(UserError, match="tensorboard: not installed; pip install"):
        quick(pictures, weights, tmp_path / "refused", tensorboard=True)
    assert not (tmp_path / "refused").exists()
    assert quick(pictures, weights, tmp_path / "plain").finished


def test_validation_that_chose_the_weights_is_said_without_an_interval(pictures, weights, tmp_path, capsys, no_page):
    """On the command line and on the model card; the test pictures, which chose nothing, keep theirs."""
    data, run = tmp_path / "data", tmp_path / "run"
    for split in ("train", "test"):
        shutil.copytree(pictures, data / split)
    main(["fit", str(data), "--weights", str(weights), "--epochs", "1", "--out", str(run), "--workers", "0"])
    for text, test, validation in (
        (capsys.readouterr().out, "test accuracy: ", "validation accuracy: "),
        ((run / "bundle/README.md").read_text(), "- test: ", "- validation: "),
    ):
        (unseen,) = (line for line in text.splitlines() if line.startswith(test))
        (chosen,) = (line for line in text.splitlines() if line.startswith(validation))
        assert "of 24 pictures (95 % interval " in unseen
        assert chosen.endswith("of 2 pictures; they chose the weights, so expect somewhat less on new ones")
        assert text.count("95 %") == 1


def test_every_recipe_trains(pictures, weights, tmp_path, no_page):
    for name in RECIPES:
        scratch = name == "plain" or name.startswith("scratch")
        start = {"model": "P/4@16"} if scratch else {"weights": weights}
        result = fit(pictures, recipe=name, epochs=0.1, out=tmp_path / name, workers=0, **start)
        assert result.finished, name
        if scratch:
            with pytest.raises(UserError, match="cannot start from weights"):
                fit(pictures, recipe=name, weights=weights, epochs=0.1, out=tmp_path / "no", workers=0)


@pytest.mark.clock
def test_a_budget_becomes_a_number_of_steps(pictures, weights, tmp_path):
    for budget in BUDGETS:
        begin = time.monotonic()
        result = fit(pictures, weights=weights, budget=budget, out=tmp_path / budget, workers=0)
        assert read_config(tmp_path / budget).pace.steps == result.steps
        assert time.monotonic() - begin < parse_budget(budget) + 51  # generous: only that it was a budget at all
        if result.steps > 1:
            break
    assert result.steps > 1


@pytest.mark.clock
def test_a_budget_that_is_taken_up_again_keeps_to_its_plan(pictures, weights, tmp_path):
    for budget in BUDGETS:
        run = tmp_path / budget
        ways = {"weights": weights, "budget": budget, "out": run, "workers": 0}
        stopped = fit(pictures, **ways, listeners=Listeners(stop=stop_after(3)))
        if not stopped.finished:
            break
    assert not stopped.finished
    planned, text = read_config(run), (run / "config.json").read_text()
    result = fit(pictures, **ways)
    assert result.finished
    assert result.steps == planned.pace.steps
    assert (run / "config.json").read_text() == text


@pytest.mark.clock
def test_a_time_that_is_up_before_the_training_takes_no_step(pictures, weights, tmp_path):
    """The classifier on frozen features is the result, and the folder is as complete as any."""
    heard = []
    ways = {"weights": weights, "budget": "0.1s", "out": tmp_path / "run", "workers": 0}
    result = fit(pictures, **ways, listeners=Listeners(say=heard.append))
    assert result.finished
    assert (result.steps, result.best_step, result.spent.pictures) == (0, 0, 0)
    assert result.validation.n == 2
    assert any("A budget of 0.1s is too short" in said and "would do it all" in said for said in heard)
    assert any("the classifier on frozen features is the result" in said for said in heard)
    assert not any("step" in said for said in heard)
    page = (tmp_path / "run/report.html").read_text()
    assert "none: the time was too short to train further" in page
    fit(pictures, **ways, listeners=Listeners(say=heard.append))
    assert "nothing to do" in heard[-1]
    before = load_file(tmp_path / "run/bundle/model.safetensors")
    for lost in ("result.json", "report.html"):
        (tmp_path / "run" / lost).unlink()
    shutil.rmtree(tmp_path / "run/bundle")
    assert fit(pictures, **ways).finished
    after = load_file(tmp_path / "run/bundle/model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.fixture
def few_at_once(monkeypatch):
    """Eight pictures at a time, and a cost that is known after the first."""
    for room in ("run.labelled", "run.loaders"):
        monkeypatch.setattr(f"vitreous.{room}.inference_batch", lambda config: 8)
    monkeypatch.setattr("vitreous.run.budget.clock.TELLING", 0.0)


def test_parts_are_random_said_everywhere_and_the_same_after_an_interruption(
    weights, tmp_path, capsys, few_at_once, no_page
):
    data = tmp_path / "data"
    for split in ("train", "test"):
        draw_pictures(data / split, count=40)
    run = tmp_path / "run"
    words = ["fit", str(data), "--weights", str(weights), "--budget", "0.1s", "--out", str(run), "--workers", "0"]
    main(words)
    config = read_config(run)
    assert config.parts == {"train": 8, "test": 8}
    assert config.probe.pictures == 8
    assert config.steps == 0
    said, card = capsys.readouterr().out, (run / "bundle/README.md").read_text()
    assert "of a random 8 of 80 pictures (95 % interval" in said
    assert "of a random 8 of 80 pictures (95 % interval" in card
    assert "of 4 pictures; they chose the weights" in said
    result = json.loads((run / "result.json").read_text())
    assert result["parts_of"] == {"test": 80}
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


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("1h30m", 5400), ("0.5h", 1800), ("5m5s", 305)], ids=str
)
def test_budgets_are_read(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "5x", "-5m", "0", "0s", "60", "5m5", "1h1h", "5m1h", "9" * 400 + "d", 0.01]
)
def test_budgets_that_make_no_sense(text):
    with pytest.raises(UserError, match="write a time with its unit, such as 90s"):
        parse_budget(text)


MISTAKES = {
    "recipe 'best': choose one of auto, plain, notebook": {"recipe": "best"},
    "budget and epochs: give one": {"budget": "1m"},
    "model and weights: the weights say": {"model": "S/16"},
    "is not a multiple of the patch 4": {"image_size": 18},
    "image_size=0: give a whole number of at least 1": {"image_size": 0},
    "seed=-1: give a whole number": {"seed": -1},
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


def test_unreadable_pictures_are_reported_and_too_many_stop(weights, tmp_path, no_page):
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
