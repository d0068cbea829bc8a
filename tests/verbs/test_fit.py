"""`fit` as a person and as a notebook use it: tiny trainings, every promise of the run folder."""

import json
import re
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from support.greys import draw_images
from support.greys import quick_fit as quick
from vitreous import UserError, ViT
from vitreous.callbacks import Callbacks
from vitreous.cli import main
from vitreous.data.folder import FolderSource
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.features import compute_features
from vitreous.training.folder import read_config
from vitreous.training.page import write_run_page
from vitreous.training.recipes.supervised import RECIPES
from vitreous.verbs.fit import fit
from vitreous.weights.bundle import load_bundle


@pytest.fixture(scope="module")
def finished(images, weights, tmp_path_factory):
    """A training that several tests look at: its folder, its result, and what was said, read and looked at."""
    run = tmp_path_factory.mktemp("finished") / "run"
    said, looks, decoded, passes = [], [], Counter(), []
    seen = {}
    read, batches = FolderSource.read, Loader.batches

    def counted_read(source, index, **more):
        decoded[source.name(index)] += 1
        return read(source, index, **more)

    def counted_batches(loader, *where):
        passes.append(len(loader.source))
        return batches(loader, *where)

    def report(*given):  # the page shows some images again
        seen.update(decoded=Counter(decoded), passes=list(passes))
        return write_run_page(*given)

    callbacks = Callbacks(
        message=said.append, step=lambda event: passes.append("step"), progress=lambda *told: looks.append(told)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderSource, "read", counted_read)
        patch.setattr(Loader, "batches", counted_batches)
        patch.setattr("vitreous.training.train.write_run_page", report)
        result = quick(images, weights, run, callbacks=callbacks)
    return SimpleNamespace(run=run, result=result, said=said, looks=looks, **seen)


def test_a_run_leaves_what_the_next_person_needs(finished):
    run, result = finished.run, finished.result
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
    assert "`dark`, `light`" in card
    assert f" {result.spent.flops:.3g} " in card
    assert f"{result.probe.accuracy:.1%}" in " ".join(finished.said)
    page = (run / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")  # nothing is fetched from elsewhere


def test_looking_at_images_tells_how_far_it_is(finished):
    train = read_config(finished.run).splits["train"] - 2  # two are set aside
    last = {what: (done, total) for what, done, total in finished.looks}
    assert sorted(last.values()) == [(2, 2), (train, train)]
    assert {word for what in last for word in ("training", "validation") if word in what} == {"training", "validation"}


def test_every_image_is_decoded_once_and_at_the_end_validation_is_gone_over_once(finished):
    """But for the page, which shows some of them again."""
    assert finished.result.probe is not None
    assert len(finished.decoded) == 24
    assert set(finished.decoded.values()) == {1}
    last = len(finished.passes) - finished.passes[::-1].index("step")
    assert finished.passes[last:] == [finished.result.validation.n]


def test_it_is_as_sure_as_it_is_right(finished, images):
    """On the images set aside, no factor would make the logits better; the weights are those of the best step."""
    bundle = load_bundle(finished.run)
    aside = open_data(images).with_validation(0.1, 0).splits["val"]
    logits, labels = compute_features(
        bundle.model, Loader(aside, bundle.preprocess, batch_size=2).batches(), len(aside)
    )
    assert fit_temperature(logits, labels) == pytest.approx(1, rel=0.01)
    best = load_file(sorted((finished.run / "checkpoints").glob("step-*"))[-1] / "best.safetensors")
    ratio = bundle.model.head.weight / best["model|head.weight"]
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-4)
    assert torch.equal(bundle.model.blocks[0].attn.qkv.weight, best["model|blocks.0.attn.qkv.weight"])


def test_fine_tuning_starts_from_the_weights_with_a_new_classifier(images, weights, tmp_path, no_page):
    result = fit(images, weights=weights, epochs=0.01, recipe="paper-finetune", out=tmp_path / "run", workers=0)
    tuned, base = load_bundle(result.run).model, load_bundle(weights).model
    assert tuned.head.weight.shape == (2, 32)
    fresh = ViT(tuned.config, seed=0)
    weight = tuned.blocks[0].mlp.fc1.weight
    assert (weight - base.blocks[0].mlp.fc1.weight).abs().max() < 0.05
    assert (weight - fresh.blocks[0].mlp.fc1.weight).abs().max() > 0.2


def test_a_higher_resolution_resamples_the_positions(images, weights, tmp_path, no_page):
    result = quick(images, weights, tmp_path / "run", image_size=24)
    bundle = load_bundle(result.run)
    assert bundle.preprocess.size == (24, 24)
    expected = load_bundle(weights).model.resized(24).pos_embed
    torch.testing.assert_close(bundle.model.pos_embed, expected, atol=0.01, rtol=0)


def test_a_crop_that_a_person_sets_stays(images, weights, tmp_path, no_page):
    heard = []
    said = {"callbacks": Callbacks(message=heard.append)}
    asked = quick(images, weights, tmp_path / "asked", preprocess="crop=0.95", **said)
    assert load_bundle(asked.run).preprocess.crop == 0.95
    assert not any("95%" in text for text in heard)  # neither the weights nor the recipe said so
    own = quick(images, weights, tmp_path / "own", **said)
    assert load_bundle(own.run).preprocess.crop == 0.82
    assert any("82%" in text for text in heard)
    override = quick(images, weights, tmp_path / "override", overrides={"preprocess.crop": "0.7"})
    assert load_bundle(override.run).preprocess.crop == 0.7


def test_a_model_that_guesses_is_told(tmp_path, capsys, no_page):
    """Two classes of the same grey cannot be told apart."""
    for label in ("Ants", "bees"):
        draw_images(tmp_path / "data", count=12, classes=(label, f"{label} too"))
    shutil.rmtree(tmp_path / "data/Ants too")
    shutil.rmtree(tmp_path / "data/bees too")
    main(["fit", str(tmp_path / "data"), "--epochs", "1", "--out", str(tmp_path / "run"), "--workers", "0"])
    told, card = capsys.readouterr().out, (tmp_path / "run/bundle/README.md").read_text()
    for text in (told, card):
        assert "50.0%" in text
        assert "--epochs 4`" in text
    assert json.loads((tmp_path / "run/result.json").read_text())["validation"]["majority_class"]["accuracy"] == 0.5


def test_from_scratch_on_small_images(images, tmp_path, no_page):
    result = fit(images, epochs=1, out=tmp_path / "run", workers=0)
    assert load_bundle(result.run).model.config.image_size == (20, 20)
    assert result.probe is None


def test_class_weights_balance_the_classifier_on_frozen_features(weights, tmp_path, no_page):
    """Where images do not tell the classes apart, it says how often each occurs; balanced, that both occur alike."""
    data = draw_images(tmp_path / "data", count=24)
    for i in range(24):  # light ones that are as dark as the dark ones, and a quarter as many
        place = data / "light" / f"{i}.png"
        place.unlink()
        if i < 6:
            shutil.copy(data / "dark" / f"{i}.png", place)
    still = {"optimizer.learning_rate": "1e-12", "validation": "0"}
    shares = {}
    for weighted in ("false", "true"):
        changes = {**still, "objective.class_weights": weighted}
        result = fit(data, weights=weights, epochs=1, out=tmp_path / weighted, workers=0, overrides=changes)
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


def test_curves_for_tensorboard_only_where_they_are_asked_for(
    finished, images, weights, tmp_path, monkeypatch, no_page
):
    pytest.importorskip("tensorboard")
    quick(images, weights, tmp_path / "asked", tensorboard=True)
    assert list((tmp_path / "asked/tensorboard").glob("events.*"))
    assert not (finished.run / "tensorboard").exists()
    monkeypatch.setattr("vitreous.training.loop.find_spec", lambda name: None)
    with pytest.raises(UserError, match="tensorboard"):
        quick(images, weights, tmp_path / "refused", tensorboard=True)
    assert not (tmp_path / "refused").exists()
    assert quick(images, weights, tmp_path / "plain").finished


def test_the_interval_of_images_that_chose_the_weights_is_called_optimistic(images, weights, tmp_path, capsys, no_page):
    """On the command line and on the model card; that of the test images, which chose nothing, is not."""
    data, run = tmp_path / "data", tmp_path / "run"
    for split in ("train", "test"):
        shutil.copytree(images, data / split)
    main(["fit", str(data), "--weights", str(weights), "--epochs", "1", "--out", str(run), "--workers", "0"])
    for text in (capsys.readouterr().out, (run / "bundle/README.md").read_text()):
        (unseen,) = re.findall(r"^(?:- )?test\b.*% of 24 .*$", text, re.M)
        (chosen,) = re.findall(r"^(?:- )?validation\b.*% of 2 .*$", text, re.M)
        assert "95 %" in unseen
        assert "optimistic" not in unseen
        assert re.search("95 %.*optimistic", chosen)


@pytest.mark.slow
def test_every_recipe_trains(images, weights, tmp_path, no_page):
    for name in RECIPES:
        scratch = name == "plain" or name.startswith("scratch")
        start = {"model": "P/4@16"} if scratch else {"weights": weights}
        result = fit(images, recipe=name, epochs=0.1, out=tmp_path / name, workers=0, **start)
        assert result.finished, name
        if scratch:
            with pytest.raises(UserError, match=re.escape(name)):
                fit(images, recipe=name, weights=weights, epochs=0.1, out=tmp_path / "no", workers=0)


MISTAKES = {
    "recipe 'best': .*auto, plain, notebook": {"recipe": "best"},
    "budget and epochs": {"budget": "1m"},
    "model and weights": {"model": "S/16"},
    r"\b18\b.*\b4\b": {"image_size": 18},
    r"image_size=0: .*\b1\b": {"image_size": 0},
    "seed=-1": {"seed": -1},
}


def test_mistakes_are_refused(images, weights, tmp_path, subtests):
    for named, more in MISTAKES.items():
        with subtests.test(named), pytest.raises(UserError, match=named):
            quick(images, weights, tmp_path / "run", **more)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "file"))):
        quick(images, weights, tmp_path / "file" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_data_that_cannot_be_learned_from(weights, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=str(tmp_path / "empty")):
        quick(tmp_path / "empty", weights, tmp_path / "run")
    draw_images(tmp_path / "one", classes=("a", "b"))
    shutil.rmtree(tmp_path / "one" / "b")
    with pytest.raises(UserError, match=str(tmp_path / "one")):
        quick(tmp_path / "one", weights, tmp_path / "run")
    lonely = draw_images(tmp_path / "lonely")
    for path in sorted((lonely / "light").iterdir())[1:]:
        path.unlink()
    with pytest.raises(UserError, match="'light'"):
        quick(lonely, weights, tmp_path / "run")


def test_unreadable_images_are_reported_and_too_many_stop(weights, tmp_path, no_page):
    data = draw_images(tmp_path / "data", count=75)
    (data / "dark" / "0.png").write_text("not an image")
    result = quick(data, weights, tmp_path / "run")
    assert any("0.png" in remark for remark in result.remarks)
    for i in range(5):
        (data / "dark" / f"{i}.png").write_bytes(b"")
    with pytest.raises(UserError, match="1%"):
        quick(data, weights, tmp_path / "other")


def test_damaged_weights_are_refused(images, weights, tmp_path):
    hurt = tmp_path / "hurt"
    shutil.copytree(weights, hurt)
    content = bytearray((hurt / "model.safetensors").read_bytes())
    content[-5] ^= 4
    (hurt / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        quick(images, hurt, tmp_path / "run")
