"""Hybrids against timm's: the same names, sizes and scores; and what they cost."""

import json
import re

import pytest
import timm
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from support.random_networks import kept_bytes
from support.variants import random_images, random_model
from vitreous import Trace, UserError, ViT, preset
from vitreous.config.model import model_to_json
from vitreous.config.presets import HYBRIDS, hybrid_name
from vitreous.config.stem import ConvStem, ResNetStem
from vitreous.model.family import (
    config_from_json,
    count_activation_bytes,
    count_flops,
    count_parameters,
    inference_batch,
)

PUBLISHED = {
    "R+Ti/16": "vit_tiny_r_s16_p8_224",
    "R26+S/32": "vit_small_r26_s32_224",
    "R50+B/16": "vit_base_r50_s16_224",
    "R50+L/32": "vit_large_r50_s32_224",
}
SMALL = {
    "root": {"stem": ResNetStem((), 0.5), "patch": 8, "image_size": (16, 24)},
    "stages": {"stem": ResNetStem((1, 2), 0.5), "patch": 8, "image_size": (32, 24)},
    "stages and patches": {"stem": ResNetStem((1,), 0.5), "patch": 8, "image_size": (24, 32)},
    "three stages": {"stem": ResNetStem((2, 1, 1), 0.5), "patch": 16, "image_size": (48, 32), "pool": "mean"},
    "convolutions": {"stem": ConvStem((8, 6)), "patch": 4, "image_size": (12, 16)},
    "convolutions and patches": {"stem": ConvStem((8,)), "patch": 4, "image_size": (12, 16), "channels": 1},
    "convolutions, padded": {"stem": ConvStem((8,)), "patch": 4, "image_size": (11, 14), "pad": True},
    "convolutions, axial": {"stem": ConvStem((8,)), "patch": 4, "image_size": (12, 16), "attention": "axial"},
}


def test_names_shapes_and_parameters_are_those_of_timm(subtests):
    for name in PUBLISHED:
        with subtests.test(name=name):
            with torch.device("meta"):
                theirs, ours = timm.create_model(PUBLISHED[name], num_classes=1000), ViT(name, seed=None)
            assert {key: tensor.shape for key, tensor in ours.state_dict().items()} == {
                key: tensor.shape for key, tensor in theirs.state_dict().items()
            }
            assert count_parameters(preset(name)) == sum(tensor.numel() for tensor in theirs.parameters())
            assert hybrid_name(preset(f"{name}@384")) == name


def test_scores_are_those_of_timm(subtests):
    for side in [64, 96]:
        for name in ["R+Ti/16", "R26+S/32"]:
            with subtests.test(side=side, name=name):
                torch.manual_seed(0)
                theirs = timm.create_model(PUBLISHED[name], img_size=side, num_classes=7, depth=2).eval()
                ours = ViT(f"{name}@{side}", classes=7, depth=2, seed=None).eval()
                with torch.no_grad():
                    for tensor in theirs.parameters():
                        tensor.add_(0.05 * torch.randn_like(tensor))
                    ours.load_state_dict(theirs.state_dict())
                    images = torch.randn(2, 3, side, side)
                    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["R50+B/16", "R50+L/32"])
def test_scores_of_the_large_are_those_of_timm(name):
    torch.manual_seed(0)
    theirs = timm.create_model(PUBLISHED[name], img_size=64, num_classes=7, depth=1).eval()
    ours = ViT(f"{name}@64", classes=7, depth=1, seed=None).eval()
    with torch.no_grad():
        ours.load_state_dict(theirs.state_dict())
        images = torch.randn(1, 3, 64, 64)
        torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=0)


def test_cost_is_what_torch_counts_and_keeps(subtests):
    for name, changes in SMALL.items():
        with subtests.test(name):
            model = random_model(**changes)
            c = model.config
            assert count_parameters(c) == sum(tensor.numel() for tensor in model.parameters())
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                model(random_images(model, count=1))
            assert count_flops(c) == counter.get_total_flops()
            one_more = kept_bytes(model, 3) - kept_bytes(model, 2)
            assert count_activation_bytes(c) == pytest.approx(one_more, rel=0.04)


def test_a_pass_takes_fewer_images_where_the_stem_s_maps_are_large():
    assert inference_batch(preset("R26+S/32")) < inference_batch(preset("S/32"))


def test_every_parameter_learns_and_a_trace_changes_nothing(subtests):
    for name, changes in SMALL.items():
        with subtests.test(name):
            model = random_model(**changes)
            images, trace = random_images(model), Trace()
            with torch.no_grad():
                torch.testing.assert_close(model(images, trace=trace), model(images), atol=1e-5, rtol=0)
            assert trace.grid == model.config.grid
            assert trace.tokens[0].shape[1] == model.config.prefix + model.config.patches
            model.train()(images).square().sum().backward()
            assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0] == []


def test_the_light_stem_is_convolution_relu_and_pooling():
    model = random_model(stem=ConvStem((5,)), patch=2, image_size=(6, 8))
    images = random_images(model)
    kernels = model.patch_embed.backbone.convs[0].weight
    seen = torch.nn.functional.conv2d(images, kernels, padding=1).clamp(min=0)
    expected = torch.nn.functional.max_pool2d(seen, 3, 2, 1).flatten(2).transpose(1, 2)
    patches, grid = model.patchify(images)
    torch.testing.assert_close(patches, expected)
    assert grid == (3, 4)


def test_every_named_hybrid_is_kept_in_json_and_described_by_its_name(subtests):
    for name in HYBRIDS:
        with subtests.test(name=name):
            config = preset(name)
            assert config_from_json(model_to_json(config)) == config
            assert config_from_json(json.loads(json.dumps(model_to_json(config)))) == config
            assert f" {name.partition('@')[0]} " in config.describe()


def test_the_stem_belongs_to_the_embedding_and_has_the_first_filters():
    model = random_model(**SMALL["stages"])
    roles = model.parameter_groups()
    stem = {name: role for name, role in roles.items() if name.startswith("patch_embed.backbone.")}
    assert {role.layer for role in stem.values()} == {-1}
    assert {role.kind for role in stem.values()} == {"embedding", "norm"}
    assert model.first_convolution()[0] == "patch_embed.backbone.stem.conv"


def test_first_weights_are_a_function_of_the_seed():
    one, again, other = (ViT("C+P/4@32", seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    kernels = [model.patch_embed.backbone.convs[0].weight for model in (one, other)]
    assert not torch.equal(*kernels)
    assert kernels[0].std() > 0


def test_another_resolution_moves_the_positions():
    model = random_model(**SMALL["stages"])
    larger = model.resized((64, 48))
    assert larger.config.grid == (8, 6)
    images = torch.randn(1, 3, 64, 48)
    torch.testing.assert_close(larger(images), model(images), atol=1e-4, rtol=0)


def test_what_a_hybrid_cannot_be_is_refused(subtests):
    for changes, said in [
        ({"patch": 12}, "patch=12.* 8 "),
        ({"patch_dropout": 0.5}, "patch_dropout=0.5"),
        ({"image_size": (32, 20)}, "32x20.* 20 .* 8"),
    ]:
        with subtests.test(changes=changes), pytest.raises(UserError, match=said):
            random_model(**{**SMALL["stages"], **changes})


def test_a_stem_that_cannot_be_is_refused(subtests):
    for make, said in [
        (lambda: ResNetStem((0, 1)), r"depths\[0\]=0"),
        (lambda: ResNetStem((1,) * 9), "stem.depths.* 9 .* 8"),
        (lambda: ConvStem((64, "128")), r"widths\[1\]='128'"),
        (lambda: ConvStem((1,) * 60), "stem.widths.* 60 "),
        (lambda: ResNetStem((1,), 0.3), "stem.width=0.3"),
        (lambda: ConvStem(()), r"stem.widths=\(\)"),
        (lambda: preset("R26+S/16"), r"'R26\+S/16'"),
        (lambda: preset("C+Ti/3"), r"'C\+Ti/3'"),
        (lambda: preset("C+Ti/1"), r"'C\+Ti/1'"),
        (lambda: preset("R+X/16"), r"'R\+X/16'"),
    ]:
        with subtests.test(make=make), pytest.raises(UserError, match=said):
            make()


def test_patches_cannot_be_hidden_from_a_stem():
    model = random_model(**SMALL["convolutions"])
    with pytest.raises(UserError, match=r"^keep"):
        model(random_images(model), keep_ids=torch.tensor([[0, 1], [2, 3]]))


def test_reports_describe_the_stem():
    numbers = re.findall(r"\d+(?:,\d+)*", preset("R50+B/16").architecture()["Stem"])
    assert numbers == ["7", "7", "3", "4", "9", "1,024", "1", "16"]
    assert re.findall(r"\d+", preset("C+Ti/4@32").architecture()["Stem"])[:2] == ["3", "3"]
