"""Malformed descriptions beside the weights: a sentence with the file's name, never a traceback."""

import json

import pytest
import torch
from safetensors.torch import save_file

from support.published import timm_like
from support.tiny_models import random_model
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.source import open_weights

WHOLE = "mean=0.5,std=0.5,crop=1,interpolation=bicubic"


@pytest.fixture
def vit(tmp_path):
    """A good folder of Hugging Face."""
    model = random_model(width=64, heads=4, image_size=(16, 16))
    return write_huggingface(tmp_path / "vit", model, Preprocess(size=(16, 16), resize="stretch"), tuple("abcde"), {})


def change(file, **fields):
    """As another program would have written it: without our manifest."""
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    (file.parent / "manifest.json").unlink(missing_ok=True)


CONFIGS = {
    "id2label with words for keys": {"id2label": {"a": "x", "b": "y"}},
    "id2label as a list": {"id2label": ["a", "b", "c", "d", "e"]},
    "image_size as text": {"image_size": "16"},
    "image_size of three": {"image_size": [16, 16, 3]},
    "layer_norm_eps as text": {"layer_norm_eps": "1e-6"},
    "heads as text": {"num_attention_heads": "4"},
}


def test_config_of_hugging_face(subtests, vit):
    original = (vit / "config.json").read_text()
    for name, fields in CONFIGS.items():
        with subtests.test(name):
            (vit / "config.json").write_text(original)
            change(vit / "config.json", **fields)
            with pytest.raises(UserError, match=r"model.safetensors: (config.json |(heads|norm_eps)=')"):
                open_weights(vit)


PROCESSORS = {
    "size as a list": {"size": [16, 16]},
    "crop by the short side": {"do_center_crop": True, "crop_size": {"shortest_edge": 16}},
    "mean is null": {"image_mean": None},
    "factor as text": {"rescale_factor": "1/255"},
    "a rule that is not known": {"crop_pct": 0.9},
}


def test_processor_of_hugging_face(subtests, vit):
    original = (vit / "preprocessor_config.json").read_text()
    for name, fields in PROCESSORS.items():
        with subtests.test(name):
            (vit / "preprocessor_config.json").write_text(original)
            change(vit / "preprocessor_config.json", **fields)
            with pytest.raises(UserError, match=r"model.safetensors: preprocessor_config.json .*preprocess="):
                open_weights(vit, "mean=0.5")
            assert open_weights(vit, WHOLE).preprocess.crop == 1, "the advice can be followed"


TIMM = {
    "no std": {"mean": [0.5] * 3},
    "mean is null": {"mean": None, "std": [0.5] * 3},
    "crop as text": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": "0.9"},
    "two sides of three": {"mean": [0.5] * 3, "std": [0.5] * 3, "input_size": [3, 224]},
}


def test_preprocessing_of_timm(subtests, tmp_path):
    save_file(timm_like(), tmp_path / "model.safetensors")
    for name, fields in TIMM.items():
        with subtests.test(name):
            (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": fields}))
            with pytest.raises(UserError, match=r"(config.json |size=).*preprocess="):
                open_weights(tmp_path)
            assert open_weights(tmp_path, WHOLE).preprocess == Preprocess(size=(32, 32))


def test_config_of_timm(tmp_path):
    torch.save(timm_like(), tmp_path / "pytorch_model.bin")
    for config in ({"pretrained_cfg": "abc"}, {"model_args": [1]}, {"model_args": {"img_size": "32"}}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=r"pytorch_model.bin: (config.json |img_size='32': )"):
            open_weights(tmp_path)
