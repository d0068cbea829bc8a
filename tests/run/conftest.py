"""A small task with a model that does it, and a cache of its own, for the tests of engines."""

import pytest
import torch

from support.colours import make_bundle, make_pictures
from support.tiny_networks import random_pictures
from vitreous.run.engines.conversion import convert_model
from vitreous.weights.bundle import load_bundle


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Pictures of three colours, 12 each in train and test, and a model that names them all."""
    root = tmp_path_factory.mktemp("colours")
    for split, seed in (("train", 0), ("test", 500)):
        make_pictures(root / "data" / split, 12, seed=seed)
    return load_bundle(make_bundle(root / "bundle")), root / "data"


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def in_openvino(colours):
    """The model converted for OpenVINO, once: it takes seconds."""
    return convert_model(colours[0], "openvino", random_pictures(colours[0], 4))


@pytest.fixture(scope="module")
def useless(tmp_path_factory):
    """OpenVINO's model of a network that gives all classes the same score."""
    constant = load_bundle(make_bundle(tmp_path_factory.mktemp("constant") / "bundle"))
    with torch.no_grad():
        constant.model.head.weight.zero_()
    return convert_model(constant, "openvino", random_pictures(constant, 4)).model
