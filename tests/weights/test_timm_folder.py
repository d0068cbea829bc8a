"""A folder of timm's hub: what its config.json says is followed."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

from support.published import timm_like
from support.tiny_models import LABELS, preprocess_for, random_images, random_model
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.weights.source import open_weights
from vitreous.weights.timm import write_timm

SAID = {
    "input_size": [3, 48, 40],
    "interpolation": "bilinear",
    "crop_pct": 0.95,
    "crop_mode": "squash",
    "mean": [0.1, 0.2, 0.3],
    "std": [0.4, 0.5, 0.6],
}
EXPECTED = Preprocess(
    size=(48, 40), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop=0.95, interpolation="bilinear", resize="stretch"
)


def folder(place, config, state=None):
    place.mkdir()
    save_file(timm_like() if state is None else state, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(config))
    return place


def test_preprocessing_labels_and_arguments(tmp_path):
    config = {
        "architecture": "vit_tiny_patch16_224",
        "model_args": {"num_heads": 8, "init_values": 0.1},
        "label_names": list(LABELS),
        "pretrained_cfg": SAID,
    }
    found = open_weights(folder(tmp_path / "f", config))
    assert (found.preprocess, found.labels, found.model.config.heads) == (EXPECTED, LABELS, 8)
    assert len(found.notes) == 1, "nothing had to be assumed"
    assert open_weights(tmp_path / "f" / "model.safetensors").preprocess == EXPECTED, "the file stands for its folder"


def test_an_older_folder_has_the_fields_one_level_up(tmp_path):
    found = open_weights(folder(tmp_path / "f", {"architecture": "x", "label_names": list(LABELS), **SAID}))
    assert (found.preprocess, found.labels) == (EXPECTED, LABELS)


def test_the_mean_of_the_patches_is_said_only_there(tmp_path):
    config = {"architecture": "x", "global_pool": "avg", "pretrained_cfg": SAID}
    assert open_weights(folder(tmp_path / "f", config)).model.config.pool == "mean"


def test_what_cannot_be_followed(tmp_path):
    for number, wrong in enumerate(({"crop_mode": "border"}, {"interpolation": "hamming"})):
        place = folder(tmp_path / str(number), {"architecture": "x", "pretrained_cfg": SAID | wrong})
        (value,) = wrong.values()
        with pytest.raises(UserError, match=rf"config.json .*'{value}'.*preprocess='"):
            open_weights(place, "mean=0.5,std=0.5")
        said = open_weights(place, "mean=0.5,std=0.5,crop=0.8,interpolation=bilinear")
        assert said.preprocess == Preprocess(size=(32, 32), crop=0.8, interpolation="bilinear")


def test_one_number_for_a_model_of_grey_images(tmp_path):
    model = random_model(channels=1, image_size=(16, 16))
    config = {"architecture": "x", "model_args": {"num_heads": 4}, "pretrained_cfg": SAID}
    place = folder(tmp_path / "f", config, model.state_dict())
    with pytest.raises(UserError, match=r"f/model.safetensors: .* 1 "):
        open_weights(place)
    assert open_weights(place, "mean=0.5,std=0.5").preprocess.mean == (0.5,)


def test_arguments_that_are_not_understood(tmp_path):
    clip = "vit_base_patch16_clip_quickgelu_224"
    for number, (config, names) in enumerate(
        (
            ({"model_args": {"act_layer": "mish"}}, "config.json .*act_layer 'mish'"),
            ({"model_args": {"norm_layer": "rmsnorm"}}, "config.json .*norm_layer"),
            ({"architecture": clip}, "config.json|heads"),
        )
    ):
        with pytest.raises(UserError, match=names):
            open_weights(folder(tmp_path / str(number), config))


def test_names_of_another_number_are_not_used_and_that_is_said(tmp_path):
    found = open_weights(folder(tmp_path / "f", {"label_names": ["a", "b"], "pretrained_cfg": SAID}))
    assert found.labels == tuple("01234")
    assert re.search(r"label_names .*config.json .* 2 .* 5 ", found.notes[1])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"distilled": True},
        {"mlp": "relu"},
        {"pool": "mean", "norm_after_pool": True},
        {"registers": 4, "position_scope": "patches", "layer_scale": 0.1},
        {"qk_norm": True, "classes": 0},
    ],
    ids=str,
)
def test_ours_written_and_read_again(tmp_path, changes):
    model = random_model(**changes)
    labels = LABELS[: model.config.classes]
    write_timm(tmp_path / "out", model, preprocess_for(model), labels, {})
    found = open_weights(tmp_path / "out")
    assert found.model.config == model.config, "heads and size are in timm's own arguments"
    assert (found.preprocess, found.labels) == (preprocess_for(model), labels)
    assert all(torch.equal(found.model.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    with torch.inference_mode():
        images = random_images(model)
        torch.testing.assert_close(found.model(images), model(images), rtol=1e-4, atol=1e-4)


def test_what_timm_has_no_word_for_is_refused(tmp_path):
    model = random_model(classifier="mlp")
    with pytest.raises(UserError, match=r"out: .*tanh"):
        write_timm(tmp_path / "out", model, preprocess_for(model), LABELS, {})
    assert not (tmp_path / "out").exists()
