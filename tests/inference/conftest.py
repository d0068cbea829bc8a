"""A small task with a model that does it, its converted forms, and a cache of its own, for the tests of engines."""

from dataclasses import replace

import onnx
import pytest
import torch

from support.colours import make_bundle, make_images
from support.tiny_networks import random_images
from vitreous.inference import speed
from vitreous.inference.conversion import convert_model
from vitreous.inference.engine_folder import load_engine, save_engine
from vitreous.inference.onnx import OnnxEngine
from vitreous.weights.bundle import load_bundle


@pytest.fixture(scope="module")
def colours(once_per_run):
    """Images of three colours, 12 each in train and test, and a model that names them all."""

    def make(folder):
        for split, seed in (("train", 0), ("test", 500)):
            make_images(folder / "data" / split, 12, seed=seed)
        make_bundle(folder / "bundle")

    root = once_per_run("colours", make)
    return load_bundle(root / "bundle"), root / "data"


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """An empty cache; speeds are measured with one call."""
    calls_per_second = speed._calls_per_second
    monkeypatch.setattr(speed, "_calls_per_second", lambda job, seconds: calls_per_second(job, 0.0))
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def converted(once_per_run):
    """`converted(name, runtime, bundle)`: the model in this runtime; a conversion takes seconds, so one per run."""

    def load(name, runtime, bundle):
        def make(folder):
            save_engine(folder / "engine", convert_model(bundle, runtime, random_images(bundle, 4)))

        return load_engine(once_per_run(name, make) / "engine")

    return load


@pytest.fixture(scope="module")
def in_openvino(colours, converted):
    return converted("colours-openvino", "openvino", colours[0])


@pytest.fixture(scope="module")
def in_onnx(colours, converted):
    found = converted("colours-onnx", "onnx", colours[0])
    return replace(found, engine=OnnxEngine(onnx.load_from_string(found.engine.graph), found.engine.preprocess, "fp32"))


@pytest.fixture(scope="module")
def useless(colours, converted):
    """OpenVINO's model of a network that gives all classes the same score."""
    constant = load_bundle(colours[0].path)
    with torch.no_grad():
        constant.model.head.weight.zero_()
    return converted("constant-openvino", "openvino", constant).engine.graph
