"""BiT and EfficientNet through every verb: trained from scratch, used, explained, reported, exported, and resumed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitreous
from support.colours import make_images
from support.commands import check_refused, run_command
from support.greys import stop_after
from support.killing import check_killed_and_resumed
from support.random_networks import scrambled
from vitreous.callbacks import Callbacks
from vitreous.config.bit import BiTConfig
from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.model.family import named_config
from vitreous.training.folder import read_config
from vitreous.training.recipes.supervised import DatasetStats, bit, recipe
from vitreous.training.step import rate_factor
from vitreous.weights.bundle import load_bundle, save_bundle

MODELS = {"bit": "bit-r11x0.5@16", "efficientnet": "efficientnet-b0@32"}
NAMES = {"bit": "BiT ResNet-11x0.5", "efficientnet": "EfficientNet of width 0.5, depth 0.3"}
SMALLER = {"bit": {}, "efficientnet": {"model.width": "0.5", "model.depth": "0.3", "model.dropout": "0.0"}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("cnn")
    make_images(place / "data" / "train", count=8)
    make_images(place / "data" / "test", seed=50)
    return place


@pytest.fixture(scope="module", params=MODELS)
def trained(request, place):
    """(family, run folder): three colours, learned in a few steps."""
    family = request.param
    out = place / family
    changes = {"batch_size": "8", "evaluations": "2", **SMALLER[family]}
    vitreous.fit(place / "data", model=MODELS[family], epochs=12, out=out, workers=0, overrides=changes)
    return family, out


def test_it_learns_and_says_what_it_is(trained, place):
    family, out = trained
    config = read_config(out)
    assert config.training.model.family == family
    assert config.training.optimizer.name == "adamw"  # the recipe for any family
    found = vitreous.load(out).evaluate(place / "data")
    assert found.result.top1 > 0.6
    assert NAMES[family] in (out / "bundle" / "README.md").read_text()
    page = (out / "report.html").read_text()
    assert NAMES[family] in page
    assert "Filters of the first layer" in page
    assert "Vision Transformer" not in page


def test_it_predicts_and_its_features_are_probed(trained, place):
    _, out = trained
    said = vitreous.predict(out, place / "data" / "test")
    assert sum(one.label == Path(one.path).parent.name for one in said) > 0.6 * len(said)
    assert vitreous.probe(out, place / "data", protocol="knn").scores[0].accuracy > 0.6


def test_it_is_explained_by_gradcam_and_by_occlusion(trained, place):
    family, out = trained
    image = place / "data" / "test" / "red" / "0.png"
    assert run_command("explain", out, image, "--out", out / "seen").status == 0
    assert run_command("explain", out, image, "--method", "occlusion", "--out", out / "seen").status == 0
    default = "0-occlusion.png" if family == "efficientnet" else "0-gradcam.png"  # its last map is a single place here
    assert {file.name for file in (out / "seen").iterdir()} == {default, "0-occlusion.png"}
    check_refused(run_command("explain", out, image, "--method", "rollout"), "rollout")
    found = vitreous.load(out).explain(image, method="occlusion")
    assert found.maps.shape == (1, 1, 14, 14)
    assert found.map.max() > 0


def test_the_command_line_exports_and_imports_it(trained, subtests):
    family, out = trained
    for to in ("huggingface", "google"):
        place = out / ("m.npz" if to == "google" else to)
        with subtests.test(to):
            exported = run_command("export", out, place, "--to", to)
            if (family, to) in (("bit", "huggingface"), ("efficientnet", "google")):
                check_refused(exported, "3x3" if family == "bit" else "'efficientnet'")
                continue
            assert exported.status == 0
            imported = run_command("import", place, out / f"back-{to}")
            assert imported.status == 0
            assert NAMES[family] in imported.stderr
            one, two = (load_file(folder / "model.safetensors") for folder in (out / "bundle", out / f"back-{to}"))
            assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.slow
def test_it_is_fine_tuned_at_another_size_from_its_bundle(trained, place, no_page):
    family, out = trained
    changes = {"batch_size": "8"}
    result = vitreous.fit(
        place / "data", weights=out, image_size=40, epochs=1, out=out / "tuned", workers=0, overrides=changes
    )
    training = read_config(out / "tuned").training
    assert (training.model.family, training.model.image_size) == (family, (40, 40))
    assert training.freeze == training.model.layers // 2
    assert result.finished


PROGRAM = """
import vitreous
changes = {{"batch_size": "8", "save_seconds": "0", **{changes}}}
vitreous.fit({data!r}, model={model!r}, epochs=2, out=out, workers=0, overrides=changes)
"""
KILLED = {
    "efficientnet-b0@16": {"model.width": "0.25", "model.depth": "0.3", "model.drop_path": "0.5"},
    "R+F/16@32": {"model.stem.depths": "[1]", "model.stem.width": "0.5", "model.drop_path": "0.5", "ema": "0.9"},
}


@pytest.mark.slow
@pytest.mark.parametrize("model", KILLED)
def test_killed_and_resumed_to_the_same_bits_with_stochastic_depth(processes, place, tmp_path, no_page, model):
    """With batch norm's statistics; and a hybrid, with its stem's group norm and an average of the weights."""
    program = PROGRAM.format(data=str(place / "data"), model=model, changes=KILLED[model])
    kept = check_killed_and_resumed(processes, program, tmp_path)
    assert any(("running_var" if model.startswith("efficientnet") else "backbone") in name for name in kept)


def test_the_hyper_rule(subtests):
    for images, side, expected in (
        (1_000, 64, (128, 500, 0.2, 0.0)),
        (19_999, 300, (480, 500, 0.2, 0.0)),
        (20_000, 300, (480, 10_000, 0.05, 0.1)),
        (499_999, 95, (128, 10_000, 0.05, 0.1)),
        (500_000, 96, (480, 20_000, 0.025, 0.1)),
    ):
        with subtests.test(images=images):
            training = bit(DatasetStats(10, images, side, 3))
            steps = training.epochs * (images // training.batch_size)
            found = training.model.image_size[0], round(steps), training.optimizer.warmup, training.augment.mixup
            assert found == expected
            assert training.model.family == "bit"
            o = training.optimizer
            assert (o.name, o.momentum, o.weight_decay, o.clip, o.learning_rate) == ("sgd", 0.9, 0.0, None, 0.003)
            assert training.preprocess.size == training.model.image_size


def test_a_smaller_batch_learns_slower_in_proportion():
    training = bit(DatasetStats(10, 100, 64, 3))
    assert (training.batch_size, training.optimizer.learning_rate) == (100, pytest.approx(0.003 * 100 / 512))
    assert bit(DatasetStats(10, 100, 64, 3, image_size=64)).model.image_size == (64, 64)


def test_the_learning_rate_falls_in_steps():
    """Of fewer than 20,000 images after 200, 300 and 400 of 500 steps; else after 30, 60 and 90 % of all."""
    for images, falls in ((1_000, (0.4, 0.6, 0.8)), (20_000, (0.3, 0.6, 0.9)), (500_000, (0.3, 0.6, 0.9))):
        o = bit(DatasetStats(10, images, 64, 3)).optimizer
        rates = [rate_factor(o, at + side, at + side + 0.01) for at in falls for side in (-0.01, 0.01)]
        assert rates == pytest.approx([1, 0.1, 0.1, 0.01, 0.01, 0.001])
    o = bit(DatasetStats(10, 1_000, 64, 3)).optimizer
    assert rate_factor(o, 0.09, 0.1) == pytest.approx(0.5)


def test_auto_takes_what_any_family_can():
    training = recipe("auto", DatasetStats(10, 1000, 32, 3, model="bit-r11x0.5"))
    assert training == recipe("plain", DatasetStats(10, 1000, 32, 3, model="bit-r11x0.5"))
    assert isinstance(recipe("auto", DatasetStats(10, 1000, 32, 3)).model, ViTConfig)


HOUR = 2e14


def weights_of(name, **more):
    """A stats in which such weights are fine-tuned with small images."""
    config = named_config(name)
    return DatasetStats(10, 1000, 32, 3, base=config, base_preprocess=Preprocess(size=config.image_size), **more)


def test_auto_takes_bits_own_rule_for_its_weights_where_there_is_time_for_it():
    for stats, name in (
        (weights_of("bit-r11x0.5", image_size=32, affordable=HOUR), "bit"),  # 500 steps of 512 images: 1.2e14
        (weights_of("bit-r11x0.5", image_size=32), "small-data"),  # a budget or a number of epochs
        (weights_of("bit-r50x1", affordable=HOUR), "small-data"),  # 2e15 at 128 pixels
        (weights_of("bit-r50x1", affordable=100 * HOUR), "bit"),
        (weights_of("efficientnet-b0", affordable=100 * HOUR), "small-data"),
        (weights_of("Ti/16", affordable=100 * HOUR), "small-data"),
    ):
        assert recipe("auto", stats) == recipe(name, stats), stats


def test_fit_takes_bits_own_rule_unless_told_how_long_it_may_take(place, tmp_path, no_page):
    """24 images a batch: 500 steps of the rule, of which it takes one; and one epoch of the recipe for few."""
    weights = tmp_path / "bit"
    config = BiTConfig(depths=(1,), width=0.5, root="3x3", image_size=(16, 16), classes=2)
    save_bundle(weights, scrambled(config), Preprocess(size=(16, 16)), ("a", "b"))
    found = {}
    for name, more in {"free": {}, "epochs": {"epochs": 1}}.items():
        vitreous.fit(
            place / "data", weights=weights, image_size=16, out=tmp_path / name, workers=0,
            callbacks=Callbacks(should_stop=stop_after(1)), **more,
        )  # fmt: skip
        found[name] = read_config(tmp_path / name)
    assert (found["free"].steps, found["free"].training.optimizer.name) == (500, "sgd")
    assert (found["epochs"].training.optimizer.name, found["epochs"].training.probe) == ("adamw", True)


# Other channels than three


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bit-r11x0.5@16", "efficientnet-b0@32", "C+F/4@16", "R+F/16@32"])
def test_grey_images_are_learned_and_taken_up_again_from_their_bundle(tmp_path, model, no_page):
    """Two classes of grey 16x16 images in an .npz, dark and light: from scratch, used, and fine-tuned."""
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 2
    images = (rng.integers(0, 80, (24, 16, 16)) + 150 * labels[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "grey.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    smaller = {"model.width": "0.25", "model.depth": "0.3"} if model.startswith("eff") else {}
    result = vitreous.fit(
        tmp_path / "grey.npz", model=model, epochs=2, out=tmp_path / "run", workers=0,
        overrides={"batch_size": "8", **smaller},
    )  # fmt: skip
    assert result.test is not None
    assert result.test.n == 8
    bundle = load_bundle(tmp_path / "run")
    assert bundle.model.config.channels == bundle.preprocess.channels == 1
    assert len(vitreous.predict(tmp_path / "run", list(images[:2]))) == 2
    tuned = vitreous.fit(
        tmp_path / "grey.npz", weights=tmp_path / "run", epochs=1, out=tmp_path / "tuned", workers=0,
        overrides={"batch_size": "8"},
    )  # fmt: skip
    assert tuned.finished
    make_images(tmp_path / "colours", count=4)  # colour images, seen in grey by a model of grey ones
    said = vitreous.predict(tmp_path / "tuned", tmp_path / "colours")
    assert len(said) == 12
    coloured = vitreous.fit(
        tmp_path / "colours", weights=tmp_path / "run", epochs=1, out=tmp_path / "coloured", workers=0,
        overrides={"batch_size": "8"},
    )  # fmt: skip
    assert load_bundle(coloured.run).model.config.channels == 1


def test_all_of_them_are_listed():
    rows = {row["name"]: row for row in json.loads(run_command("models", "--json").stdout)}
    assert rows["bit-r50x1"]["parameters"] == 25_549_352
    assert rows["efficientnet-l2"]["family"] == "efficientnet"
    assert rows["efficientnet-b7"]["image_size"] == [600, 600]
