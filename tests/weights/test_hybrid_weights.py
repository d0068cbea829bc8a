"""Hybrids in and out: timm opens our bundles and folders and reads our .npz with its own loader; nothing is lost."""

import json

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from support.tiny_models import LABELS, preprocess_for, random_images, random_model
from vitreous import UserError
from vitreous.config.stem import ConvStem, ResNetStem
from vitreous.weights.adapt import adapt
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.google import write_google
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.source import open_weights
from vitreous.weights.timm import write_timm
from vitreous.weights.timm_config import timm_config

SHORT = {"depth": 1, "mlp_width": 64}
NAMED = {
    "vit_tiny_r_s16_p8_224": {"stem": ResNetStem(()), "width": 192, "heads": 3, "patch": 32},
    "vit_small_r26_s32_224": {"stem": ResNetStem((2, 2, 2, 2)), "width": 384, "heads": 6, "patch": 32},
    "vit_base_r26_s32_224": {"stem": ResNetStem((2, 2, 2, 2)), "width": 768, "heads": 12, "patch": 32},
    "vit_base_r50_s16_224": {"stem": ResNetStem((3, 4, 9)), "width": 768, "heads": 12, "patch": 16},
    "vit_large_r50_s32_224": {"stem": ResNetStem((3, 4, 6, 3)), "width": 1024, "heads": 16, "patch": 32},
}
LIGHT = {"stem": ResNetStem((1, 1), 0.5), "patch": 8, "image_size": (16, 24)}
CONVOLUTIONS = {"stem": ConvStem((6, 8)), "patch": 4}


def hybrid(name, **changes):
    return random_model(**{**NAMED[name], **SHORT, "image_size": (64, 64), **changes})


def same_tensors(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_tiny_r_s16_p8_224", {}),
        ("vit_tiny_r_s16_p8_224", {"channels": 1, "image_size": (64, 96)}),
        pytest.param("vit_small_r26_s32_224", {"pool": "mean", "norm_after_pool": True}, marks=pytest.mark.slow),
        pytest.param("vit_base_r50_s16_224", {}, marks=pytest.mark.slow),
        pytest.param("vit_large_r50_s32_224", {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_timm_opens_the_bundle_and_gives_the_same_logits(tmp_path, name, changes):
    model = hybrid(name, **changes)
    save_bundle(tmp_path / "bundle", model, preprocess_for(model), LABELS)
    described = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert described["architecture"] == name
    theirs = timm.create_model(f"local-dir:{tmp_path / 'bundle'}", pretrained=True).eval()
    images = random_images(model)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), model(images), atol=1e-4, rtol=1e-4)
    assert same_tensors(load_bundle(tmp_path / "bundle").model, model)


@pytest.mark.parametrize("name", NAMED)
def test_names_are_timm_s_and_its_first_convolution_is_where_it_says(name):
    assert name in timm.list_models("*_r*_s*")
    model = hybrid(name)
    described = timm_config(model.config, preprocess_for(model), LABELS)
    assert described["architecture"] == name
    assert described["pretrained_cfg"]["first_conv"] == timm.get_pretrained_cfg(name).first_conv
    at_384 = timm_config(
        random_model(**{**NAMED[name], **SHORT, "image_size": (384, 384)}).config, preprocess_for(model), LABELS
    )
    assert at_384["architecture"] == (name.replace("224", "384") if "base_r26" not in name else name)


def test_a_file_of_timm_s_own_is_recognised(tmp_path):
    torch.manual_seed(0)
    theirs = timm.create_model("vit_small_r26_s32_224", img_size=64, depth=1, num_classes=5).eval()
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    found = open_weights(tmp_path / "model.safetensors")
    assert found.model.config.stem == ResNetStem((2, 2, 2, 2))
    assert (found.model.config.patch, found.model.config.image_size) == (32, (64, 64))
    assert "hybrid" in found.notes[0]
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(found.model(images), theirs(images), atol=1e-4, rtol=0)


@pytest.mark.parametrize("changes", [{}, {"channels": 1}, {"classes": 0}], ids=str)
@pytest.mark.parametrize(
    "name", ["vit_tiny_r_s16_p8_224", pytest.param("vit_small_r26_s32_224", marks=pytest.mark.slow)]
)
def test_timm_reads_our_npz_with_its_own_loader(tmp_path, name, changes):
    """timm changes the root's kernels for other channels; a hybrid of one channel is compared by its own tensors."""
    model = hybrid(name, **changes)
    path = write_google(tmp_path / "R.npz", model, preprocess_for(model), LABELS, {})
    found = open_weights(path)
    assert same_tensors(found.model, model)
    again = write_google(tmp_path / "again.npz", found.model, preprocess_for(model), LABELS, {})
    with np.load(path) as one, np.load(again) as other:
        assert one.files == other.files
        assert all(np.array_equal(one[name], other[name]) for name in one.files)
    if model.config.classes and model.config.channels == 3:
        theirs = timm.create_model(name, img_size=64, depth=1, mlp_ratio=64 / model.config.width, num_classes=5)
        theirs.load_pretrained(str(path))
        images = random_images(model)
        with torch.no_grad():
            torch.testing.assert_close(theirs.eval()(images), model(images), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_norms_of_four_axes_as_some_files_have_them(tmp_path):
    model = hybrid("vit_small_r26_s32_224")
    path = write_google(tmp_path / "R26.npz", model, preprocess_for(model), LABELS, {})
    with np.load(path) as arrays:
        older = {name: a[None, None, None] if "gn" in name else a for name, a in arrays.items()}
    np.savez(tmp_path / "older.npz", **older)
    assert same_tensors(open_weights(tmp_path / "older.npz").model, model)


@pytest.mark.parametrize("changes", [LIGHT, CONVOLUTIONS], ids=["resnet", "convolutions"])
def test_a_bundle_of_a_stem_that_timm_does_not_have_comes_back_whole_and_says_so(tmp_path, changes):
    model = random_model(**changes)
    save_bundle(tmp_path / "bundle", model, preprocess_for(model), LABELS)
    assert json.loads((tmp_path / "bundle" / "config.json").read_text())["architecture"] == "vitreous"
    found = load_bundle(tmp_path / "bundle")
    assert found.model.config == model.config
    assert same_tensors(found.model, model)
    with pytest.raises(UserError, match="timm"):
        write_timm(tmp_path / "timm", model, preprocess_for(model), LABELS, {})


@pytest.mark.parametrize("changes", [{"attention": "axial"}, {"attention": "neighbourhood", "window": 3}], ids=str)
def test_no_other_format_has_a_word_for_limited_attention(tmp_path, changes):
    model = random_model(**changes)
    for write in (write_timm, write_google, write_huggingface):
        with pytest.raises(UserError, match=changes["attention"]):
            write(tmp_path / "out.npz", model, preprocess_for(model), LABELS, {})
    save_bundle(tmp_path / "bundle", model, preprocess_for(model), LABELS)
    assert load_bundle(tmp_path / "bundle").model.config == model.config


def test_hugging_face_has_no_word_for_a_stem(tmp_path):
    model = random_model(**LIGHT)
    with pytest.raises(UserError, match="stem"):
        write_huggingface(tmp_path / "out", model, preprocess_for(model), LABELS, {})


@pytest.mark.parametrize("changes", [LIGHT, CONVOLUTIONS], ids=["resnet", "convolutions"])
def test_another_resolution_and_more_channels(changes):
    model = random_model(**changes)
    larger, preprocess = adapt(model, preprocess_for(model), image_size=48)
    assert (larger.config.grid[0], preprocess.size) == (48 // model.config.patch, (48, 48))
    six, preprocess = adapt(model, preprocess_for(model), channels=6)
    assert (six.config.channels, preprocess.channels) == (6, 6)
    images = random_images(model)
    with torch.no_grad():  # each kernel twice at half its weight; a standardised one is brought back to its size
        torch.testing.assert_close(six(images.repeat(1, 2, 1, 1)), model(images), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "lost", ["patch_embed.backbone.stem.norm.bias", "patch_embed.backbone.stages.0.blocks.0.conv2.weight"]
)
def test_a_damaged_file_names_what_is_missing(tmp_path, lost):
    model = hybrid("vit_small_r26_s32_224")
    state = model.state_dict()
    del state[lost]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=lost.replace(".", r"\.")):
        open_weights(tmp_path / "model.safetensors")


def test_a_hybrid_of_timm_s_with_another_backbone_is_refused(tmp_path):
    theirs = timm.create_model("vit_small_resnet26d_224", img_size=64, depth=1)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors: "):
        open_weights(tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors")
