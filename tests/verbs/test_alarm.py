"""Trainings that go wrong, and one that does not: what `pretrain` says of real steps, and after an interruption."""

import json

import numpy as np
import pytest
import torch

from vitreous import ViT, ViTConfig
from vitreous.callbacks import Callbacks
from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.config.objective import Dino, Mae
from vitreous.config.train import Optimizer, Training
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Setting
from vitreous.training.recipes.pretrain import PRETRAINING
from vitreous.verbs.fit import pretrain

BATCH = 12
MODEL = ViTConfig(
    width=16, depth=2, heads=2, mlp_width=32, patch=2, image_size=(8, 8), classes=0, pool="mean", class_token=False,
    position="sincos-2d", drop_path=0.1,
)  # fmt: skip
TRAINING = Training(
    model=MODEL,
    preprocess=Preprocess(size=(8, 8)),
    augment=Augment(crop_scale=None, pad=0, flip=False),
    objective=Mae(decoder_width=16, decoder_depth=1, decoder_heads=2),
    optimizer=Optimizer(learning_rate=3e-3, warmup=0.05),
    batch_size=BATCH,
    evaluations=1,
)


@pytest.fixture
def go(tmp_path, monkeypatch):
    """A function that trains a tiny masked autoencoder for some steps; it gives the result and what was said."""
    monkeypatch.setitem(PRETRAINING, "mae", lambda s: TRAINING)

    def train(images, run="run", steps=140, stop_after=10**6):
        path = tmp_path / "images.npz"
        if not path.exists():
            np.savez(path, images=images, labels=np.arange(len(images)) % 2)
        said, taken = [], []
        callbacks = Callbacks(message=said.append, step=taken.append, should_stop=lambda: len(taken) >= stop_after)
        epochs = steps / (len(images) * 9 // 10 // BATCH)
        result = pretrain(path, method="mae", epochs=epochs, out=tmp_path / run, workers=0, callbacks=callbacks)
        records = [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        return result, [text for text in said if "optimizer.learning_rate" in text], taken, records

    return train


def noise(count=60):
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


def slopes(count=60):
    """Each gets brighter towards a side of its own: a part of it tells the rest."""
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, count)[:, None, None]
    y, x = np.mgrid[-1:1:8j, -1:1:8j]
    light = 128 + 80 * (np.cos(angles) * x + np.sin(angles) * y)
    return np.repeat(light[..., None], 3, axis=3).astype(np.uint8)


@pytest.mark.slow
def test_equal_images_get_equal_features_and_that_is_said_again_after_an_interruption(go):
    equal = np.repeat(slopes(1), 60, axis=0)
    part, said, taken, _ = go(equal, stop_after=130)
    assert not part.finished
    (sentence,) = said
    assert "objective.mask" not in sentence  # the alarm of a decoder that predicts nothing
    assert "collapsed" in taken[-1].record
    assert next(event.step for event in taken if "collapsed" in event.record) <= 120
    result, again, taken, _ = go(equal)
    assert result.finished
    assert result.alarms == (sentence,)
    assert again == [sentence]
    assert "collapsed" in taken[0].record


@pytest.mark.slow
def test_a_decoder_that_rebuilds_nothing_is_said(go):
    result, said, _, records = go(noise())
    assert said == list(result.alarms)
    assert any("objective.mask" in text for text in said)
    last = [record["loss"] for record in records if "loss" in record][-20:]
    assert np.mean(last) > 0.98 * (1 - 1 / 12)  # 12 numbers per patch


@pytest.mark.slow
def test_an_ordinary_training_rings_nothing(go):
    result, said, taken, records = go(slopes())
    assert result.alarms == ()
    assert said == []
    assert not any("collapsed" in event.record for event in taken)
    assert records[-2]["explained"] > 0.1


@pytest.mark.slow
def test_what_is_measured_now_and_then_is_the_same_after_an_interruption(go, tmp_path):
    go(slopes(), "whole", steps=25)
    for stop in (3, 10, 100):  # in all 3, then 13, then 25
        go(slopes(), "parts", steps=25, stop_after=stop)
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "parts/metrics.jsonl").read_text()
    records = [json.loads(line) for line in (tmp_path / "parts/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "feature_std" in record] == [1, 11, 21]


@pytest.mark.parametrize("ibot", [0.0, 1.0])
def test_without_labels_information_is_shown_and_is_the_same_twice(ibot):
    crops = MultiCrop(local_views=2, local_size=(4, 4))
    settings = Dino(crops=crops, hidden=16, bottleneck=8, prototypes=16, ibot_weight=ibot)
    objective = build_objective(ViT(MODEL), settings, Setting()).train()
    images = torch.from_numpy(noise(30)).permute(0, 3, 1, 2)
    source = ArraySource("noise", images, np.full(30, -1), ())
    views = settings.views
    loader = Loader(source, TRAINING.preprocess, Augment(), batch_size=BATCH, shuffle=False, views=views)
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(objective.evaluate(loader.batches()))
    assert found[0] == found[1]
    assert found[0].keys() == {"information"}
    assert 0 < found[0]["information"] < 1
    with torch.no_grad():  # a teacher that says the same of all
        objective.head.layers[-1].weight.zero_()
        objective.head.layers[-1].bias.fill_(1.0)
    assert objective.evaluate(loader.batches())["information"] == pytest.approx(0, abs=1e-5)
