"""Weights from a bare file, whose architecture is recognised, and preprocessing said in a line of text."""

import re

import pytest
import torch
from safetensors.torch import save_file

from support.tiny_models import LABELS, preprocess_for, random_images, random_model
from vitreous import UserError, preset
from vitreous.config.data import Preprocess
from vitreous.weights.bundle import save_bundle
from vitreous.weights.checkpoint import heads_for_width
from vitreous.weights.source import open_weights, parse_preprocess, preprocess_text

SAID = "mean=0.5,std=0.5"
TELLING = {"width": 128, "heads": 2, "image_size": (16, 16)}

# What tensors tell, each with the configuration that it must give.
RECOGNISED = {
    "paper": {},
    "another size": {"depth": 3, "mlp_width": 200, "patch": 8, "image_size": (32, 32)},
    "one channel, two classes": {"channels": 1, "classes": 2},
    "twelve channels": {"channels": 12},
    "no classifier": {"classes": 0},
    "mean": {"pool": "mean", "class_token": False},
    "norm after pooling": {"pool": "mean", "norm_after_pool": True},
    "attention pooling": {"pool": "attention", "class_token": False},
    "registers": {"registers": 3},
    "registers, positions for class token": {"registers": 3, "position_scope": "class"},
    "registers, positions for patches": {"registers": 3, "position_scope": "patches"},
    "distilled": {"distilled": True},
    "layer scale": {"layer_scale": 1e-5},
    "qk norm, heads of 32": {"qk_norm": True, "heads": 4},
    "swiglu": {"mlp": "swiglu"},
    "tanh classifier": {"classifier": "mlp"},
    "learned-2d, not square": {"position": "learned-2d", "image_size": (16, 24)},
    "a preset's heads": {"width": 192, "heads": 3},
}


def write(path, model):
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return path


def test_an_architecture_is_recognised_from_its_tensors(subtests, tmp_path):
    for name, changes in RECOGNISED.items():
        with subtests.test(name):
            model = random_model(**{**TELLING, **changes})
            found = open_weights(write(tmp_path / f"{name}.safetensors", model), SAID)
            assert found.model.config == model.config
            assert found.labels == tuple(str(k) for k in range(model.config.classes))
            assert found.preprocess.size == model.config.image_size
            images = random_images(model)
            state = found.model.state_dict()
            assert all(torch.equal(state[key], tensor) for key, tensor in model.state_dict().items())
            with torch.inference_mode():  # mapped memory is not aligned as torch's own, and products round by that
                torch.testing.assert_close(found.model(images), model(images), rtol=1e-4, atol=1e-4)


def test_a_missing_last_norm_is_missing_and_not_another_architecture(tmp_path):
    state = random_model(**TELLING).state_dict()
    save_file({name: tensor for name, tensor in state.items() if not name.startswith("norm.")}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"norm.bias, norm.weight "):
        open_weights(tmp_path / "w.pth")


def test_heads_of_public_models():
    """So400m, gigantic, giant and So150m as timm defines them."""
    for width, heads in {1152: 16, 1664: 16, 1408: 16, 896: 14}.items():
        assert heads_for_width(width, "here") == heads


def test_heads_are_said_when_they_are_a_guess_and_can_be_stated(tmp_path):
    model = random_model(**{**TELLING, "heads": 8})
    path = write(tmp_path / "w.safetensors", model)
    assert "--heads" in open_weights(path, SAID).notes[0]
    stated = open_weights(path, SAID, heads=8)
    assert stated.model.config == model.config
    assert "--heads" not in stated.notes[0]
    narrow = write(tmp_path / "n.safetensors", random_model(**{**TELLING, "width": 16, "heads": 4}))
    with pytest.raises(UserError, match=r" 16 .* --heads N"):
        open_weights(narrow)
    assert open_weights(narrow, heads=4).model.config.heads == 4
    with pytest.raises(UserError, match=r"w.safetensors: heads=3: .*width=128"):
        open_weights(path, heads=3)
    save_bundle(tmp_path / "b", random_model(), preprocess_for(random_model()), LABELS)
    with pytest.raises(UserError, match=r" 4 .* 2"):
        open_weights(tmp_path / "b", heads=2)


def test_the_weights_of_a_bundle_stand_for_the_bundle(tmp_path):
    """Else its digests would not be checked, and what it is would be guessed."""
    model = random_model(**TELLING, mlp="relu")
    save_bundle(tmp_path / "b", model, preprocess_for(model), LABELS)
    found = open_weights(tmp_path / "b" / "model.safetensors")
    assert (found.model.config, found.labels) == (model.config, LABELS)
    with (tmp_path / "b" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(UserError, match=r"model.safetensors.*SHA-256"):
        open_weights(tmp_path / "b" / "model.safetensors")


@pytest.mark.parametrize("place", [".", "", "/"])
def test_a_place_without_a_name(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{re.escape(place or '.')}: "):
        open_weights(place)
    write(tmp_path / "w.safetensors", random_model(**TELLING))
    if place != "/":
        assert open_weights(place).model.config.classes == 5


@pytest.mark.parametrize("classes", [5, 0])
def test_the_usual_preprocessing_has_a_number_for_each_channel(tmp_path, classes):
    path = write(tmp_path / "w.safetensors", random_model(**TELLING, channels=4, classes=classes))
    found = open_weights(path)
    assert found.notes[0].startswith(f"{path}: timm ViT(128 wide, 2 deep)/4, 16, 4 channels, ")
    assert found.preprocess.channels == 4
    assert open_weights(path, "mean=0.1,0.2,0.3,0.4,std=0.2").preprocess.mean == (0.1, 0.2, 0.3, 0.4)
    with pytest.raises(UserError, match=r"w.safetensors: .* 4 .*preprocess='"):
        open_weights(path, Preprocess(size=(16, 16)))


def test_a_grid_that_is_not_square_is_told_by_the_size(tmp_path):
    model = random_model(**{**TELLING, "image_size": (8, 20)})
    path = write(tmp_path / "w.safetensors", model)
    with pytest.raises(UserError, match=r"11 "):
        open_weights(path, SAID)
    assert open_weights(path, SAID + ",size=8x20").model.config == model.config


def test_images_of_another_size_than_the_positions(tmp_path):
    path = write(tmp_path / "w.safetensors", random_model(**TELLING))
    found = open_weights(path, SAID + ",size=32")
    assert (found.model.config.image_size, found.preprocess.size) == ((16, 16), (32, 32))


def test_a_bare_file_has_its_familys_preprocessing_and_that_is_said(tmp_path):
    path = write(tmp_path / "w.safetensors", random_model(**TELLING))
    found = open_weights(path)
    assert found.preprocess == Preprocess(size=(16, 16), crop=0.9)
    recognised, assumed = found.notes
    assert recognised.startswith(f"{path}: timm ViT(128 wide, 2 deep)/4, 16, 5 classes, 2 heads (")
    assert "vitreous import --heads N " in recognised
    assert re.search(r"timm: mean=0.5,std=0.5,crop=0.9", assumed)
    assert "preprocess='mean=" in assumed
    assert len(open_weights(path, "mean=0.5").notes) == 2, "half of it said is not all of it"
    assert len(open_weights(path, SAID).notes) == 1
    headless = write(tmp_path / "h.safetensors", random_model(**TELLING, classes=0))
    assert open_weights(headless).preprocess.mean == (0.485, 0.456, 0.406), "as DINO and MAE"
    given = Preprocess(size=(16, 16), crop=0.8)
    assert open_weights(path, given).preprocess == given
    with pytest.raises(UserError, match=r"w.safetensors: .* 3 "):
        open_weights(path, Preprocess(size=(16, 16), mean=(0.5,), std=(0.5,)))


def test_files_that_are_no_vision_transformer(tmp_path):
    save_file({"vit.embeddings.cls_token": torch.zeros(1)}, tmp_path / "odd.safetensors")
    with pytest.raises(UserError, match=r"odd.safetensors: .*vit.embeddings.cls_token"):
        open_weights(tmp_path / "odd.safetensors", SAID)
    with pytest.raises(UserError, match=r"none.safetensors: "):
        open_weights(tmp_path / "none.safetensors", SAID)
    state = random_model(**TELLING).state_dict()
    save_file({**state, "extra.1": torch.zeros(1), "extra.2": torch.zeros(1)}, tmp_path / "more.safetensors")
    with pytest.raises(UserError, match=r"more.safetensors: extra.1, extra.2 "):
        open_weights(tmp_path / "more.safetensors", SAID)
    del state["pos_embed"]
    save_file(state, tmp_path / "nowhere.safetensors")
    with pytest.raises(UserError, match=r"nowhere.safetensors: "):
        open_weights(tmp_path / "nowhere.safetensors", SAID)
    write(tmp_path / "odd.safetensors", random_model(**{**TELLING, "width": 16}))
    with pytest.raises(UserError, match=r"odd.safetensors: .* 16 "):
        open_weights(tmp_path / "odd.safetensors", SAID)


def test_a_bundle_brings_its_own_and_single_fields_can_differ(tmp_path):
    model = random_model()
    save_bundle(tmp_path / "b", model, preprocess_for(model), LABELS)
    assert open_weights(tmp_path / "b").preprocess == preprocess_for(model)
    found = open_weights(tmp_path / "b", "crop=0.5")
    assert (found.preprocess.crop, found.preprocess.mean) == (0.5, preprocess_for(model).mean)
    assert found.labels == LABELS


def test_preprocessing_as_text():
    said = "mean=0.485,0.456,0.406, std=0.229,0.224,0.225,crop=0.875,interpolation=bilinear,size=224x160,resize=stretch"
    expected = Preprocess(
        size=(224, 160),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        crop=0.875,
        interpolation="bilinear",
        resize="stretch",
    )
    assert parse_preprocess(said, Preprocess()) == expected
    assert parse_preprocess(preprocess_text(expected), Preprocess()) == expected
    clip = Preprocess(
        mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), crop=224 / 248
    )
    assert parse_preprocess(preprocess_text(clip), Preprocess()) == clip, "to the last digit"
    assert parse_preprocess("mean=0.1,std=0.2", Preprocess(), 1) == Preprocess(mean=(0.1,), std=(0.2,))
    assert parse_preprocess("mean=0.1,size=32", Preprocess()) == Preprocess(size=(32, 32), mean=(0.1, 0.1, 0.1))
    assert parse_preprocess("mean=0.1", Preprocess(mean=(0.5,), std=(0.5,))).mean == (0.1,)


def test_text_that_cannot_be_read(subtests):
    for text, names in {
        "colour=1": "'colour' .*mean, std, crop",
        "0.5": "'0.5'",
        "mean=x": "mean=x",
        "crop=0.5,0.6": "crop=0.5,0.6",
        "crop=2": r"crop=2.0: .*0.05 .* 1\b",
        "interpolation=cubic": "interpolation='cubic': ",
        "size=axb": "size=axb",
        "std=0,0,0": "std=",
    }.items():
        with subtests.test(text), pytest.raises(UserError, match=names):
            parse_preprocess(text, Preprocess())


def test_the_real_weights_are_recognised(shared_data):
    found = open_weights(shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors")
    assert found.notes[0].endswith("vit_ti16_augreg_in21k_ft_in1k.safetensors: timm ViT-Ti/16, 224, 1,000 classes")
    assert found.model.config == preset("Ti/16")
    assert len(found.labels) == 1000
    assert sum(parameter.numel() for parameter in found.model.parameters()) == 5_717_416
    assert found.preprocess == Preprocess(crop=0.9)


def test_a_file_without_tensors_is_a_sentence(tmp_path):
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(UserError, match=r"empty\.safetensors"):
        open_weights(tmp_path / "empty.safetensors")
