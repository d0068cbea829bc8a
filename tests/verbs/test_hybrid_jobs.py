"""Every verb with a hybrid, and with attention to neighbours: an answer, or one clear sentence."""

import json

import numpy as np
import pytest
import torch

from support.colours import COLOURS, make_images
from support.variants import random_model
from vitreous import (
    Model,
    UserError,
    analyze,
    fit,
    load,
    models,
    plot_weights,
    predict,
    pretrain,
    probe,
    score_explanations,
    write_walkthrough,
)
from vitreous.config.data import Preprocess
from vitreous.config.stem import ResNetStem
from vitreous.explain.occlusion import occlusion_maps
from vitreous.explain.relevance import log_odds
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import Bundle, load_bundle, save_bundle


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    make_images(root / "train", count=8)
    make_images(root / "test", seed=50)
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory, data):
    """A light hybrid, trained for a few steps with a page."""
    out = tmp_path_factory.mktemp("runs") / "hybrid"
    fit(data, model="C+F/4@16", epochs=2, out=out, overrides={"batch_size": 8}, workers=0)
    return out


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """A bundle with a ResNet before the Transformer, random."""
    model = random_model(stem=ResNetStem((1, 1), 0.5), patch=8, image_size=(32, 32), classes=3)
    preprocess = Preprocess(size=(32, 32))
    return save_bundle(tmp_path_factory.mktemp("bundles") / "resnet", model, preprocess, COLOURS)


def test_a_fit_names_it_on_its_page_and_card(run):
    assert "hybrid C+F/4" in (run / "report.html").read_text()
    assert "hybrid C+F/4" in (run / "bundle" / "README.md").read_text()
    assert load_bundle(run / "bundle").model.config.stem.widths == (64, 128)
    assert json.loads((run / "config.json").read_text())["training"]["objective"]["keep_schedule"] == []


@pytest.mark.parametrize("made", ["run", "resnet"])
def test_it_predicts_is_evaluated_and_probed(made, data, request):
    model = request.getfixturevalue(made)
    assert len(predict(model, data / "test")) == 12
    assert evaluate(model, data).result.n == 12
    assert probe(model, data, protocol="knn").n == 12


def test_it_is_explained(resnet, data, subtests):
    for method in ("attention", "rollout", "relevance", "gradcam", "occlusion"):
        with subtests.test(method):
            found = load(resnet).explain(data / "test" / "red" / "0.png", method=method)
            assert found.map.shape == found.image.size[::-1]
            assert np.isfinite(found.map).all()


def test_occlusion_paints_what_it_cannot_leave_out(resnet, data):
    """An image painted over in one place, by hand."""
    bundle = load_bundle(resnet)
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps, scores = occlusion_maps(bundle.model, images, None, window=1, stride=1)
    target = scores.argmax(1)
    painted = images.clone()
    painted[:, :, 8:16, 16:24] = 0
    lost = log_odds(scores, target) - log_odds(bundle.model(painted), target)
    assert maps.shape == (1, 4, 4)
    assert maps[0, 1, 2].item() == pytest.approx(max(0.0, lost.item()), abs=1e-4)


def test_its_first_filters_are_the_stem_s(resnet, data):
    view = plot_weights(resnet, data=data, count=4, out=None)
    assert {"filters", "positions", "distance"} == set(view.plots())
    assert view.distances.shape == (2, 4)


def test_what_it_cannot_is_said(resnet, data, tmp_path):
    image = data / "test" / "red" / "0.png"
    with pytest.raises(UserError, match="walkthrough: "):
        write_walkthrough(resnet, image, out=tmp_path / "a.html")
    with pytest.raises(UserError, match="scores of explanations: "):
        score_explanations(resnet, data)
    for method in ("mae", "masked-patch"):
        with pytest.raises(UserError, match=f"{method}: "):
            pretrain(data, model="C+F/4@16", method=method, epochs=1, out=tmp_path / method)
    with pytest.raises(UserError, match=r"model bit-r11x0\.5@16: "):
        pretrain(data, model="bit-r11x0.5@16", method="masked-patch", epochs=1, out=tmp_path / "bit")


@pytest.mark.slow
def test_it_is_analyzed(resnet, data, tmp_path):
    found = analyze([resnet], data=data, out=tmp_path / "out", count=8, workers=0)
    assert found.numbers.models[0].grid == (4, 4)


def test_it_is_fine_tuned_at_another_resolution(resnet, data, tmp_path, no_page):
    fit(data, weights=resnet, image_size=48, epochs=1, out=tmp_path / "run", overrides={"batch_size": 8}, workers=0)
    assert load(tmp_path / "run").network.config.grid == (6, 6)


@pytest.mark.parametrize(
    "changes",
    [{"model.attention": "neighbourhood", "model.window": 3}, {"model.attention": "axial"}],
    ids=["neighbourhood", "axial"],
)
def test_limited_attention_is_trained_explained_and_kept(data, tmp_path, changes, no_page):
    fit(data, model="F/2@16", epochs=1, out=tmp_path / "run", overrides={**changes, "batch_size": 8}, workers=0)
    bundle = load_bundle(tmp_path / "run" / "bundle")
    assert bundle.model.config.attention == changes["model.attention"]
    image = data / "test" / "red" / "0.png"
    for method in ("attention", "rollout", "relevance", "occlusion"):
        assert np.isfinite(Model(bundle).explain(image, method=method).map).all()
    assert write_walkthrough(bundle, image, out=tmp_path / "a", query=(10, 10))[0].page.exists()
    assert plot_weights(bundle, data=data, count=4, out=None).distances.max() < 16
    assert isinstance(bundle, Bundle)


@pytest.mark.parametrize("method", ["mae", "masked-patch"])
def test_masks_with_limited_attention(data, tmp_path, no_page, method):
    """MAE hides patches from a neighbourhood, and those that are left see each other; or patches are corrupted."""
    changes = {"model.attention": "neighbourhood", "model.window": 3, "batch_size": 8}
    done = pretrain(data, model="F/2@16", method=method, epochs=1, out=tmp_path / "run", overrides=changes, workers=0)
    assert done.finished
    assert load_bundle(tmp_path / "run" / "bundle").model.config.window == 3


def test_hybrids_are_listed_with_what_they_cost():
    rows = {row.name: row for row in models()}
    assert {"R+Ti/16", "R26+S/32", "R50+B/16", "R50+L/32", "C+Ti/4@32"} <= set(rows)
    assert rows["R26+S/32"].parameters == 36_431_912
    assert (rows["R50+B/16"].tokens, rows["R+Ti/16"].tokens) == (197, 50)
