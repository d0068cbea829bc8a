"""Sizes as published, names as written, and mistakes that are answered."""

import pytest
import torch

from vitreous import UserError, ViT, ViTConfig, preset
from vitreous.config.presets import NAMES

PUBLISHED = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "B/16": 86_567_656,
    "L/16": 304_326_632,
    "H/14": 632_045_800,
}


def test_parameters_as_published(subtests):
    for name, parameters in PUBLISHED.items():
        with subtests.test(name=name, parameters=parameters), torch.device("meta"):
            assert sum(p.numel() for p in ViT(name).parameters()) == parameters


@pytest.mark.slow
def test_every_preset_can_be_built_and_run(subtests):
    for name in NAMES:
        with subtests.test(name=name), torch.device("meta"):
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
    "X/16": "'X/16'.*F, P, N, Ti, S, B, L, H, g.*'g/16'",
    "b/16": "'b/16'.*'g/16'",
    "ViT-B/16": "'B/16'",
    "B16": "'B/16'",
    "B/15": "224.* 15.* 210 .* 225",
    "B/16@100": "100.* 96 .* 112",
    "B/0": "patch=0.* 1",
    "": "name=''",
}


def test_a_wrong_name_is_answered_with_a_right_one(subtests):
    for name, named in MISTAKES.items():
        with subtests.test(name):
            with pytest.raises(UserError, match=named) as error:
                preset(name)
            assert "\n" not in str(error.value)


COMBINATIONS = {
    "heads=5.*width=192.* 4": {"heads": 5},
    "pool='class'.*class_token=True": {"class_token": False},
    "position='sincos-2d'.* 6.* 4 .* 8": {"width": 6, "position": "sincos-2d"},
    "position='learned-2d'.* 9.* 8 .* 10": {"width": 9, "position": "learned-2d"},
    "norm_after_pool=True.*norm='after'": {"norm": "after", "norm_after_pool": True},
    "classifier='mlp'.*classes=0": {"classifier": "mlp", "classes": 0},
    "position='2d'.*learned-1d, learned-2d": {"position": "2d"},
    "dropout=1.0.* 0 .* 1": {"dropout": 1.0},
    "classes=-1.* 0": {"classes": -1},
    "classes='10'": {"classes": "10"},
    "depth=2.5": {"depth": 2.5},
    "norm_eps=-1.*1e-30 .* 1": {"norm_eps": -1},
    r"image_size=\(0, 32\)": {"image_size": (0, 32)},
    "'registrs'.*'registers'": {"registrs": 4},
}


def test_an_impossible_combination_names_field_value_and_remedy(subtests):
    for named, changes in COMBINATIONS.items():
        with subtests.test(named), pytest.raises(UserError, match=named):
            preset("Ti/4@32", **changes)


def test_one_side_is_enough_for_a_square():
    assert ViTConfig(width=8, depth=1, heads=2, mlp_width=8, patch=4, image_size=32).image_size == (32, 32)
