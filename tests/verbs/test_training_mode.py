"""A network that a person put into training mode answers as before: nothing is dropped while it is asked."""

import re

import numpy as np
import pytest

import vitreous
from support.colours import COLOURS, PREPROCESS, make_images
from vitreous import Model, ViT, ViTConfig
from vitreous.weights.bundle import load_bundle, save_bundle

CONFIG = ViTConfig(
    width=32, depth=3, heads=2, mlp_width=64, patch=4, image_size=(16, 16), classes=3, dropout=0.5, drop_path=0.5,
    patch_dropout=0.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    model = ViT(CONFIG)
    model.head.weight.data.normal_()
    return load_bundle(save_bundle(tmp_path_factory.mktemp("bundle") / "b", model, PREPROCESS, COLOURS))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "p", count=6)


def make_image(folder):
    return folder / "red" / "0.png"


ASKED = {
    "predict": lambda bundle, folder, out: [one.to_json() for one in vitreous.predict(bundle, folder)],
    "evaluate": lambda bundle, folder, out: Model(bundle).evaluate(folder).result.to_json(),
    "probe": lambda bundle, folder, out: vitreous.probe(bundle, folder).to_json()["scores"],
    "explain": lambda bundle, folder, out: np.concatenate(
        [
            Model(bundle).explain(make_image(folder), method=method).maps.ravel()
            for method in ("attention", "rollout", "relevance", "gradcam", "occlusion")
        ]
    ),
    "plot_weights": lambda bundle, folder, out: vitreous.plot_weights(bundle, data=folder, count=4, out=None).distances,
    "score_explanations": lambda bundle, folder, out: [
        (one.name, one.deletion, one.insertion)
        for one in vitreous.score_explanations(bundle, folder, methods=["attention"], count=2).scores
    ],
    "walkthrough": lambda bundle, folder, out: vitreous.write_walkthrough(bundle, make_image(folder), out=out / "w")[
        0
    ].page.read_text(),
    "analyze": lambda bundle, folder, out: re.sub(
        r"[\d.]+ s\b", "", vitreous.analyze([bundle], data=folder, out=out / "a").json.read_text()
    ),
    "analyze_bias": lambda bundle, folder, out: vitreous.analyze(
        [bundle], data=folder, out=out / "a", what="bias"
    ).json.read_text(),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith("analyze") else []) for name in ASKED]
)
def test_the_answer_is_the_same_and_the_mode_stays(bundle, images, tmp_path, monkeypatch, name):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "one"))
    bundle.model.eval()
    before = ASKED[name](bundle, images, tmp_path)
    assert not bundle.model.training
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "other"))
    bundle.model.train()
    after = ASKED[name](bundle, images, tmp_path)
    assert bundle.model.training
    assert np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after


def test_the_network_does_drop_in_training_mode(bundle, images):
    from vitreous.data.augment import normalise
    from vitreous.data.view import make_view

    images = normalise(make_view(make_image(images), PREPROCESS)[None], PREPROCESS)
    bundle.model.train()
    assert (bundle.model(images) - bundle.model(images)).abs().max() > 1e-3
