"""What the tests of `fit` and of `pretrain` share."""

import numpy as np
import pytest

from support.greys import draw_images, make_weights
from support.tiny_pretraining import TINY, draw
from vitreous.training.recipes.pretrain import PRETRAINING


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of grey images, dark and light."""
    return draw_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A bundle to fine-tune."""
    return make_weights(tmp_path_factory.mktemp("weights") / "bundle")


@pytest.fixture
def no_page(monkeypatch):
    """Plots take most of the time, and few tests look at them."""
    monkeypatch.setattr("vitreous.training.train.write_run_page", lambda *_: None)


@pytest.fixture
def tiny(monkeypatch):
    """Recipes of the same kinds that take no time."""
    for name, training in TINY.items():
        monkeypatch.setitem(PRETRAINING, name, lambda s, made=training: made)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Images in an .npz, with a val split."""
    (images, labels), (others, truth) = draw(), draw(12, seed=1)
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, x_train=images, y_train=labels, x_val=others, y_val=truth)
    return path
