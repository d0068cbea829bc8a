"""Bundles and changes of a family that the package does not have, and of bundles older than families."""

import json
import re

import pytest
import torch
from torch import nn

from support import tiny_conv
from support.tiny_conv import TinyConvConfig, make_conv_bundle
from support.tiny_models import LABELS, preprocess_for, random_images, random_model
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.model.family import build_network
from vitreous.storage.manifest import write_manifest
from vitreous.weights.adapt import adapt
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.mapping import build_model
from vitreous.weights.source import open_weights


@pytest.fixture(autouse=True)
def family(monkeypatch):
    tiny_conv.register(monkeypatch)


def test_parameters_and_buffers_come_back_bit_for_bit(tmp_path):
    path, model = make_conv_bundle(tmp_path / "b")
    found = open_weights(path)
    assert found.model.config == model.config
    assert type(found.model) is type(model)
    assert not found.model.training
    state = found.model.state_dict()
    assert list(state) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor)
        assert state[name].dtype == tensor.dtype
    assert state["blocks.0.0.num_batches_tracked"].item() == 3
    assert state["blocks.1.0.running_mean"].abs().max() > 0
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(found.model(images), model(images))


def test_mapped_tensors_are_taken_without_a_copy_and_buffers_with_them():
    model = build_network(TinyConvConfig(), seed=1)
    model.train()(torch.randn(8, 3, 16, 16))
    found = build_model(model.config, model.state_dict(), "w", copy=False)
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert found.stem.weight.data_ptr() == model.stem.weight.data_ptr()
    lacking = {name: tensor for name, tensor in model.state_dict().items() if "running_var" not in name}
    with pytest.raises(UserError, match=r"blocks\.0\.0\.running_var, blocks\.1\.0\.running_var "):
        build_model(model.config, lacking, "w")


def test_what_config_json_says_of_it(tmp_path):
    path, _ = make_conv_bundle(tmp_path / "b")
    said = json.loads((path / "config.json").read_text())
    assert said["vitreous"]["model"]["family"] == "tiny-conv"
    assert said["architecture"] == "vitreous"
    assert "'tiny-conv'" in said["timm"]
    assert (said["num_classes"], said["num_features"]) == (3, 8)
    assert said["pretrained_cfg"]["input_size"] == [3, 16, 16]
    assert said["pretrained_cfg"]["label_names"] == ["blue", "green", "red"]
    card = (path / "README.md").read_text()
    assert "# A Tiny ConvNet" in card
    assert re.search(r"width 8, depth 2, .*16x16", card)


def test_a_bundle_from_before_there_were_families(tmp_path):
    model = random_model()
    path = save_bundle(tmp_path / "b", model, preprocess_for(model), LABELS)
    said = json.loads((path / "config.json").read_text())
    assert said["vitreous"]["model"].pop("family") == "vit"
    (path / "config.json").write_text(json.dumps(said))
    write_manifest(path)
    found = load_bundle(path)
    assert found.model.config == model.config
    images = random_images(model)
    with torch.inference_mode():
        assert torch.equal(found.model(images), model(images))


def test_a_family_that_nobody_knows(tmp_path, monkeypatch):
    path, _ = make_conv_bundle(tmp_path / "b")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"config\.json: .*'tiny-conv'"):
        load_bundle(path)


def test_the_number_of_heads_is_no_question(tmp_path):
    path, _ = make_conv_bundle(tmp_path / "b")
    with pytest.raises(UserError, match=r"'tiny-conv'.*\bheads\b"):
        open_weights(path, heads=3)


PREPROCESS = Preprocess(size=(16, 16), mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 0.5))


def test_other_classes_and_images():
    model = build_network(TinyConvConfig(), seed=1).eval()
    changed, preprocess = adapt(model, PREPROCESS, classes=7, image_size=32)
    assert changed.config == TinyConvConfig(classes=7, image_size=(32, 32))
    assert preprocess.size == (32, 32)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(changed.representation(images), model.representation(images))
        assert torch.equal(changed(images), torch.zeros(2, 7))
    bare, _ = adapt(model, PREPROCESS, classes=0)
    assert isinstance(bare.head, nn.Identity)
    with pytest.raises(UserError, match="patch=8: "):
        adapt(model, PREPROCESS, patch=8)
    with pytest.raises(UserError, match="epsilon=1e-06: "):
        adapt(model, PREPROCESS, epsilon=1e-6)


def test_grey_images_give_what_they_gave_in_equal_channels():
    model = build_network(TinyConvConfig(), seed=1).eval()
    grey, preprocess = adapt(model, PREPROCESS, channels=1)
    values = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    three = (values - 0.5) / torch.tensor(PREPROCESS.std)[:, None, None]
    one = (values - preprocess.mean[0]) / preprocess.std[0]
    with torch.inference_mode():
        torch.testing.assert_close(grey(one), model(three))
    uneven = Preprocess(size=(16, 16), mean=(0.4, 0.5, 0.6), std=(0.5, 0.5, 0.5))
    with pytest.raises(UserError, match="channels=1: "):
        adapt(model, uneven, channels=1)
