"""Sizes as published, names as written, and mistakes that are answered."""

import pytest
import torch

from vitreous import UserError, ViT, ViTConfig, preset
from vitreous.model.presets import NAMES

PUBLISHED = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "B/16": 86_567_656,
    "L/16": 304_326_632,
    "H/14": 632_045_800,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameters_as_published(name, parameters):
    with torch.device("meta"):
        assert sum(p.numel() for p in ViT(name).parameters()) == parameters


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_can_be_built_and_run(name):
    with torch.device("meta"):
        model = ViT(name, classes=7)
        assert model(torch.empty(2, 3, *model.config.image_size)).shape == (2, 7)


def test_a_name_says_size_patch_and_resolution():
    assert preset("L/16@384").image_size == (384, 384)
    assert preset("Ti/4@32x64").image_size == (32, 64)
    assert preset("S/2@28").grid == (14, 14)
    assert preset("H/14").patch == 14


def test_timm_names():
    """The names that timm and the checkpoints of DINO, MAE and DINOv2 share."""
    names = set(ViT("N/4@28", layer_scale=1.0, registers=1, qk_norm=True).state_dict())
    assert {"cls_token", "reg_token", "pos_embed", "patch_embed.proj.weight", "norm.bias", "head.weight"} <= names
    block = {n.removeprefix("blocks.3.") for n in names if n.startswith("blocks.3.")}
    layers = ("norm1", "attn.qkv", "attn.q_norm", "attn.k_norm", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    assert block == {f"{m}.{p}" for m in layers for p in ("weight", "bias")} | {"ls1.gamma", "ls2.gamma"}


MISTAKES = {
    "X/16": "SIZE of F, P, N, Ti, S, B, L, H, g",
    "b/16": "did you mean",
    "ViT-B/16": "did you mean 'B/16'",
    "B16": "write SIZE/PATCH",
    "B/15": "224 is not a multiple of the patch 15; the nearest that work are 210 and 225",
    "B/16@100": "the nearest that work are 96 and 112",
    "B/0": "patch=0: give a whole number of at least 1",
    "": "name='': empty",
}


@pytest.mark.parametrize(("name", "says"), MISTAKES.items())
def test_a_wrong_name_is_answered_with_a_right_one(name, says):
    with pytest.raises(UserError) as error:
        preset(name)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


COMBINATIONS = {
    "heads=5: does not divide width=192; 4 does": {"heads": 5},
    "pool='class': there is no class token": {"class_token": False},
    "position='sincos-2d': needs a width divisible by 4, not 6": {"width": 6, "position": "sincos-2d"},
    "position='learned-2d': needs an even width, not 9": {"width": 9, "position": "learned-2d"},
    "norm_after_pool=True: norm='after' has no final norm": {"norm": "after", "norm_after_pool": True},
    "classifier='mlp': there is none with classes=0": {"classifier": "mlp", "classes": 0},
    "position='2d': give one of learned-1d, learned-2d": {"position": "2d"},
    "dropout=1.0: must be at least 0 and below 1": {"dropout": 1.0},
    "classes=-1: give a whole number of at least 0": {"classes": -1},
    "classes='10': give a whole number": {"classes": "10"},
    "depth=2.5: give a whole number": {"depth": 2.5},
    "norm_eps=-1: give a number from 1e-30 to 1": {"norm_eps": -1},
    "image_size=(0, 32): must be": {"image_size": (0, 32)},
    "has no field 'registrs'; did you mean 'registers'?": {"registrs": 4},
}


@pytest.mark.parametrize(("says", "changes"), COMBINATIONS.items())
def test_an_impossible_combination_names_field_value_and_remedy(says, changes):
    with pytest.raises(UserError) as error:
        preset("Ti/4@32", **changes)
    assert says in str(error.value)


def test_one_side_is_enough_for_a_square():
    assert ViTConfig(width=8, depth=1, heads=2, mlp_width=8, patch=4, image_size=32).image_size == (32, 32)
