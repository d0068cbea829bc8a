"""Token merging by a person: trained with, kept in the bundle, chosen when asking, undone when explaining."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from support.greys import quick_fit as quick
from support.greys import stop_after
from vitreous import UserError, ViT, load
from vitreous.callbacks import Callbacks
from vitreous.config.data import Preprocess
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.fit import fit
from vitreous.verbs.predict import predict
from vitreous.weights.bundle import load_bundle, save_bundle


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Deep enough to merge: a last block that only reads the class token does not."""
    model = ViT("N/4@16", depth=3, width=32, heads=2, mlp_width=32, classes=5, seed=7)
    place = tmp_path_factory.mktemp("weights") / "bundle"
    return save_bundle(place, model, Preprocess(size=(16, 16)), list("abcde"))


@pytest.fixture(scope="module")
def run(images, weights, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "merged"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.training.train.write_run_page", lambda *_: None)
        quick(images, weights, place, merge=2)
    return place


def test_the_bundle_keeps_it_and_timm_is_told_the_plain_model(run):
    bundle = load_bundle(run)
    assert bundle.model.config.merge == 2
    said = json.loads((run / "bundle/config.json").read_text())
    assert said["vitreous"]["model"]["merge"] == 2
    assert "merge" not in json.dumps({name: value for name, value in said.items() if name != "vitreous"})


def test_stopped_and_resumed_to_the_same_bits(run, images, weights, tmp_path, no_page):
    again = tmp_path / "again"
    assert not quick(images, weights, again, merge=2, callbacks=Callbacks(should_stop=stop_after(1))).finished
    assert quick(images, weights, again, merge=2).finished
    one, two = (load_file(place / "bundle/model.safetensors") for place in (run, again))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_it_takes_as_long_as_a_training_without(images, weights, tmp_path, no_page):
    """An epoch is cheaper, so there are more of them; a number that a person gives stays."""
    model = load_bundle(weights).model
    work = []
    for merge in (0, 4):
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model.with_merge(merge)(torch.zeros(1, 3, 16, 16))
        work.append(counter.get_total_flops())
    few = Callbacks(should_stop=stop_after(1))
    for name, expected, how in (
        ("plain", 8, {}),
        ("merged", round(8 * work[0] / work[1]), {"merge": 4}),
        ("given", 8, {"merge": 4, "epochs": 8}),
    ):
        fit(images, weights=weights, out=tmp_path / name, workers=0, callbacks=few, **how)
        assert json.loads((tmp_path / name / "config.json").read_text())["training"]["epochs"] == expected, name
    assert round(8 * work[0] / work[1]) > 8


def test_it_can_be_chosen_when_asking(run, images):
    image = sorted(images.rglob("*.png"))[0]
    own, same, other = (predict(run, image, merge=merge)[0] for merge in (None, 2, 0))
    assert own == same
    assert own.top != other.top
    assert evaluate(run, images, merge=0).result.n == evaluate(run, images).result.n


def test_explanations_have_the_whole_grid(run, images, subtests):
    image = sorted(images.rglob("*.png"))[0]
    config = load_bundle(run).model.config
    for method in ("attention", "rollout", "relevance", "gradcam", "occlusion"):
        with subtests.test(method):
            found = load(run).explain(image, method=method)
            assert found.maps.shape[2:] == config.grid
            assert np.isfinite(found.maps).all()


def test_nonsense(images, weights, tmp_path):
    with pytest.raises(UserError, match=r"merge and model\.merge"):
        quick(images, weights, tmp_path / "a", merge=2, overrides={"model.merge": 3})
    with pytest.raises(UserError, match="merge=-1"):
        quick(images, weights, tmp_path / "b", merge=-1)
    with pytest.raises(UserError, match="bit"):
        quick(images, None, tmp_path / "c", model="bit-r50x1", merge=2)
