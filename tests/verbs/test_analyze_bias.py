"""The bias of models of all families on one page: what is written is what was measured, and nonsense is refused."""

import json
import re

import numpy as np
import pytest
import torch

from support.colours import make_bundle, make_images
from support.tiny_conv import make_conv_bundle, register
from vitreous import UserError, ViT, ViTConfig, analyze
from vitreous.cli import main
from vitreous.config.data import Preprocess
from vitreous.explain.analysis.bias_result import Bias, summarise_bias
from vitreous.model.family import build_network, named_config
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import Bundle


@pytest.fixture(scope="module", autouse=True)
def outside_family():
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("place")
    for split, count in (("train", 8), ("test", 4)):
        make_images(root / "data" / split, count=count, seed=1000 * count)
    make_bundle(root / "colours")
    make_conv_bundle(root / "conv")
    return root


def plain(classes=0, **changes):
    shape = {"width": 16, "depth": 2, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": (16, 16)}
    config = ViTConfig(**{**shape, **changes}, classes=classes)
    return Bundle(ViT(config, seed=5), Preprocess(size=config.image_size), tuple(f"class {k}" for k in range(classes)))


@pytest.fixture(scope="module")
def found(place):
    return analyze([place / "colours", place / "conv"], data=place / "data", out=place / "out", what="bias")


def test_a_vit_and_a_network_of_another_family_side_by_side(found, place):
    written = json.loads(found.json.read_text())
    assert set(written) == {"generator", "data", "models", "remarks"}
    assert (written["data"]["images"], written["data"]["split"]) == (12, "test")
    for fields, (name, bias) in zip(written["models"], found.numbers.models, strict=True):
        assert fields.pop("name") == name
        assert Bias.from_json(fields) == bias
        assert bias.accuracy == evaluate(place / name, place / "data").result.top1
    vit, conv = (bias for _, bias in found.numbers.models)
    assert (vit.patch, conv.patch) == (8, 2)
    assert (vit.shifts.whole, conv.attention_distance) == (None, None)  # half of the image; none
    assert conv.effects["shuffled"][0].same == 1  # colours are all that there is to see
    assert not found.numbers.remarks


def test_the_page_shows_the_numbers_and_needs_nothing_else(found):
    page = found.page.read_text()
    assert page.count("<svg") == 3 + 2 + 2
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page
    for row in summarise_bias([bias for _, bias in found.numbers.models]):
        assert row.measure in page
        assert row.reading.replace("'", "&#39;") in page
    radius = found.numbers.models[0][1].receptive_field.radius
    assert f"{100 * radius:.1f}\u00a0%" in page


def test_models_without_a_classifier_are_compared_by_their_features(place, tmp_path):
    found = analyze([place / "colours", plain()], data=place / "data", out=tmp_path / "out", what="bias")
    bias = found.numbers.models[1][1]
    assert all(effect.same is None and effect.likeness < 1 for effect in bias.effects["shuffled"])
    assert (bias.low_needed, bias.accuracy) == (None, None)
    for row in summarise_bias([bias for _, bias in found.numbers.models]):
        assert row.measure in found.page.read_text()
    assert "model 2" in found.numbers.remarks[0]


FAMILIES = {
    "ResNet": ("bit-r11x0.5@32", {}),
    "EfficientNet": ("efficientnet-b0@32", {}),
    "hybrid": ("C+P/4@32", {}),
    "neighbourhood": ("P/4@32", {"attention": "neighbourhood", "window": 3}),
    "axial": ("P/4@32", {"attention": "axial"}),
}


@pytest.mark.slow
def test_every_family_is_measured(place, tmp_path, monkeypatch, subtests):
    monkeypatch.setattr("vitreous.report.bias.bias_page", lambda numbers: "")
    bundles = {"wide": plain(3, image_size=(10, 23), pad=True, registers=1, norm="after")}
    for name, (model, changes) in FAMILIES.items():
        config = named_config(model, classes=3, **changes)
        bundles[name] = Bundle(build_network(config, 0), Preprocess(size=config.image_size), tuple("abc"))
    for name, bundle in bundles.items():
        with subtests.test(name):
            found = analyze([bundle], data=place / "data", out=tmp_path / "out", count=8, what="bias").numbers.models[
                0
            ][1]
            values = [value for row in summarise_bias([found]) for value in row.values if value is not None]
            assert np.isfinite(values).all()
            assert found.receptive_field.radius > 0
            assert (found.attention_distance is None) == (name in ("ResNet", "EfficientNet"))


def test_images_without_labels(place, tmp_path):
    found = analyze(
        [place / "colours"], data=place / "data" / "train" / "red", out=tmp_path / "out", count=8, what="bias"
    )
    assert found.numbers.models[0][1].accuracy is None


def test_bad_input(place, tmp_path):
    damaged = plain(3)
    with torch.no_grad():
        damaged.model.cls_token.fill_(float("nan"))
    data = place / "data"
    for models, says in (([], "models"), ([damaged], "model 1")):
        with pytest.raises(UserError, match=says):
            analyze(models, data=data, out=tmp_path / "out", what="bias")
    with pytest.raises(UserError, match=r"count=3.* 8"):
        analyze([plain()], data=data, out=tmp_path / "out", count=3, what="bias")
    with pytest.raises(UserError, match="30000x30000"):
        analyze([plain()], data=data, out=tmp_path / "out", preprocess="size=30000", what="bias")


def test_the_command(capsys, place, tmp_path):
    words = ["analyze", place / "conv", "--data", place / "data", "--out", tmp_path / "out", "--what", "bias"]
    main([*map(str, words), "--count", "9"])
    shown = capsys.readouterr().out
    assert re.search(r"\b9\b.*\btest\b", shown)
    assert "conv" in shown
    assert str(tmp_path / "out" / "bias.html") in shown
    main([*map(str, words), "--json"])
    assert json.loads(capsys.readouterr().out)["models"][0]["patch"] == 2
