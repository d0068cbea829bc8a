"""The table of families: a ViT's answers against lists written by hand, and a family that the package does not have."""

import re
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from support import tiny_conv
from support.random_networks import SMALL_BIT, SMALL_EFFICIENTNET, kept_bytes, scrambled
from support.random_networks import random_images as convolutional_images
from support.tiny_conv import TinyConvConfig
from support.variants import ENCODERS, TINY, VARIANTS, random_images, random_model
from vitreous import UserError, ViT, ViTConfig, preset
from vitreous.config.model import model_to_json, with_article
from vitreous.model.family import (
    build_network,
    config_from_json,
    count_activation_bytes,
    count_flops,
    count_parameters,
    inference_batch,
    named_config,
    network_class,
    network_cost,
)
from vitreous.model.lora import add_lora, merge_lora
from vitreous.model.network import HasFeatureMap, LeavesPatchesOut, Network, ParameterGroup, TracesAttention, require
from vitreous.model.vit_cost import vit_cost


@pytest.fixture(autouse=True)
def family(monkeypatch):
    tiny_conv.register(monkeypatch)


def block(number, **more):
    """The roles of one of a ViT's blocks."""
    names = {
        "norm1.weight": ("norm", False),
        "norm1.bias": ("norm", False),
        "attn.qkv.weight": ("matrix", True),
        "attn.qkv.bias": ("other", False),
        "attn.proj.weight": ("matrix", True),
        "attn.proj.bias": ("other", False),
        "norm2.weight": ("norm", False),
        "norm2.bias": ("norm", False),
        "mlp.fc1.weight": ("matrix", True),
        "mlp.fc1.bias": ("other", False),
        "mlp.fc2.weight": ("matrix", True),
        "mlp.fc2.bias": ("other", False),
        **more,
    }
    return {f"blocks.{number}.{name}": ParameterGroup(number, *role) for name, role in names.items()}


EMBEDDING = {
    "patch_embed.proj.weight": ParameterGroup(-1, "embedding", True),
    "patch_embed.proj.bias": ParameterGroup(-1, "embedding", False),
}
CLS = {"cls_token": ParameterGroup(-1, "embedding", False)}
POSITIONS = {"pos_embed": ParameterGroup(-1, "embedding", False)}
NORM = {"norm.weight": ParameterGroup(2, "norm", False), "norm.bias": ParameterGroup(2, "norm", False)}
HEAD = {"head.weight": ParameterGroup(2, "classifier", True), "head.bias": ParameterGroup(2, "classifier", False)}
PLAIN = {**EMBEDDING, **CLS, **POSITIONS, **block(0), **block(1), **NORM, **HEAD}
RELATIVE = {"attn.rel_pos.relative_position_bias_table": ("other", False)}
POOL = {
    "attn_pool.latent": ParameterGroup(2, "other", False),
    **{
        f"attn_pool.{name}.{kind}": ParameterGroup(2, "other", kind == "weight")
        for name in ("q", "kv", "proj", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    },
    "attn_pool.norm.weight": ParameterGroup(2, "norm", False),
    "attn_pool.norm.bias": ParameterGroup(2, "norm", False),
}
ROLES = {
    "plain": ({}, PLAIN),
    "distilled": (
        {"distilled": True},
        {
            **PLAIN,
            "dist_token": ParameterGroup(-1, "embedding", False),
            "head_dist.weight": ParameterGroup(2, "classifier", True),
            "head_dist.bias": ParameterGroup(2, "classifier", False),
        },
    ),
    "registers": ({"registers": 2}, {**PLAIN, "reg_token": ParameterGroup(-1, "embedding", False)}),
    "learned-2d": (
        {"position": "learned-2d"},
        {
            **{name: role for name, role in PLAIN.items() if name != "pos_embed"},
            "pos_embed_y": ParameterGroup(-1, "embedding", False),
            "pos_embed_x": ParameterGroup(-1, "embedding", False),
        },
    ),
    "relative": (
        {"position": "relative"},
        {**EMBEDDING, **CLS, **block(0, **RELATIVE), **block(1, **RELATIVE), **NORM, **HEAD},
    ),
    "attention pool": ({"pool": "attention"}, {**PLAIN, **POOL}),
    "mlp classifier": (
        {"classifier": "mlp"},
        {
            **PLAIN,
            "pre_logits.fc.weight": ParameterGroup(2, "classifier", True),
            "pre_logits.fc.bias": ParameterGroup(2, "classifier", False),
        },
    ),
    "layer scale, qk norm": (
        {"layer_scale": 0.1, "qk_norm": True, "depth": 1},
        {
            **EMBEDDING,
            **CLS,
            **POSITIONS,
            **block(
                0,
                **{"ls1.gamma": ("other", False), "ls2.gamma": ("other", False)},
                **{f"attn.{one}_norm.{kind}": ("norm", False) for one in "qk" for kind in ("weight", "bias")},
            ),
            "norm.weight": ParameterGroup(1, "norm", False),
            "norm.bias": ParameterGroup(1, "norm", False),
            "head.weight": ParameterGroup(1, "classifier", True),
            "head.bias": ParameterGroup(1, "classifier", False),
        },
    ),
    "mean, norm after pooling, no classifier": (
        {"pool": "mean", "class_token": False, "norm_after_pool": True, "classes": 0},
        {
            **EMBEDDING,
            **POSITIONS,
            **block(0),
            **block(1),
            "fc_norm.weight": ParameterGroup(2, "norm", False),
            "fc_norm.bias": ParameterGroup(2, "norm", False),
        },
    ),
}


def test_the_roles_of_a_vits_parameters(subtests):
    for name, (changes, expected) in ROLES.items():
        with subtests.test(name):
            assert random_model(**changes).parameter_groups() == expected


def test_the_roles_with_a_low_rank_change(subtests):
    """The parametrised weight is no matrix for Muon any more, and its parts are decayed, as ever."""
    for name in ["plain", "relative"]:
        with subtests.test(name=name):
            changes, expected = ROLES[name]
            model = random_model(**changes)
            add_lora(model, 2)
            for number in (0, 1):
                del (expected := dict(expected))[f"blocks.{number}.attn.qkv.weight"]
                for kind in ("original", "0.up", "0.down"):
                    name = f"blocks.{number}.attn.qkv.parametrizations.weight.{kind}"
                    expected[name] = ParameterGroup(number, "other", True)
            assert model.parameter_groups() == expected
            learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
            changed = {
                f"blocks.{n}.attn.qkv.parametrizations.weight.0.{side}" for n in (0, 1) for side in ("up", "down")
            }
            assert learned == {"head.weight", "head.bias", *changed}


def test_every_parameter_of_every_variant_has_a_role(subtests):
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            model = random_model(**changes)
            assert model.parameter_groups().keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("changes", [{}, *ENCODERS.values()], ids=["paper", *ENCODERS])
def test_a_low_rank_change_is_folded_in(changes):
    model = random_model(**changes)
    images, plain = random_images(model), random_model(**changes)
    before = model(images)
    add_lora(model, 2, seed=3)
    torch.testing.assert_close(model(images), before)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".up"):
                parameter.fill_(0.1)
    plain.load_state_dict(merge_lora(model.state_dict()))
    assert not torch.allclose(model(images), before)
    torch.testing.assert_close(plain(images), model(images))


def test_layers_that_a_vit_exchanges_and_changes():
    distilled, bare = random_model(distilled=True), random_model(classes=0)
    assert distilled.classifiers() == [distilled.head, distilled.head_dist]
    assert bare.classifiers() == []
    assert bare.lora_targets() == [bare.blocks[0].attn.qkv, bare.blocks[1].attn.qkv]
    rest = distilled.without_classifier(distilled.state_dict())
    assert set(distilled.state_dict()) - set(rest) == {"head.weight", "head.bias", "head_dist.weight", "head_dist.bias"}
    assert bare.first_convolution() == ("patch_embed.proj", bare.patch_embed.proj)


def test_a_vits_row_in_the_table():
    c = preset("Ti/16", registers=4)
    assert (c.family, c.features, c.layers) == ("vit", 192, 12)
    assert c.describe() == "ViT of width 192, depth 12, patch 16"
    assert with_article(c.title()) == "A Vision Transformer"
    assert re.findall(r"\d+", c.architecture()["Tokens"]) == ["201", "196", "4"]
    assert network_cost(c) == vit_cost(c, 1.0)
    assert replace(c, classifier="mlp").for_classes(7) == replace(c, classes=7)
    with pytest.raises(UserError, match=r"100x224.*16.*96.*112"):
        c.check_size((100, 224))
    assert isinstance(build_network(replace(c, depth=1)), ViT)


def test_fewer_patches_cost_what_a_smaller_image_does():
    """Half of 4 x 6 patches are as many as an image of 2 x 6 has."""
    c = ViTConfig(**{**TINY, "image_size": (16, 24)})
    assert count_flops(c, 0.5) == count_flops(replace(c, image_size=(8, 24)))
    assert count_flops(c, 0.001) == count_flops(replace(c, image_size=(4, 4)))


def test_a_resized_vit_is_the_model_resized():
    model = random_model()
    state, config = (
        network_class(model.config).resize(model.state_dict(), model.config, (24, 8)),
        model.config.for_size((24, 8)),
    )
    resized = model.resized((24, 8))
    assert config == resized.config
    assert all(torch.equal(tensor, state[name]) for name, tensor in resized.state_dict().items())


def test_any_network_is_resized():
    """Of a family whose tensors do not depend on the size, they stay."""
    network = build_network(TinyConvConfig(), seed=3).double().eval()
    images = torch.rand(2, 3, 24, 24, dtype=torch.float64)
    resized = network.resized(24)
    assert resized.config == network.config.for_size((24, 24))
    assert not resized.training
    assert torch.equal(resized(images), network(images))


def test_a_configuration_and_its_json():
    c = ViTConfig(**TINY, sincos_grid=(3, 4))
    kept = model_to_json(c)
    assert kept["family"] == "vit"
    assert config_from_json({**kept, "image_size": [12, 16], "sincos_grid": [3, 4]}) == c
    assert config_from_json({name: value for name, value in kept.items() if name != "family"}) == c  # an older one's
    conv = TinyConvConfig(width=4)
    assert config_from_json(model_to_json(conv)) == conv
    with pytest.raises(UserError, match=r"c\.json.*'mamba'.*bit, efficientnet, tiny-conv, vit"):
        config_from_json({"family": "mamba"}, "c.json")
    with pytest.raises(UserError, match=r"c\.json.*'colour'"):
        config_from_json({**kept, "colour": 3}, "c.json")


def test_presets_of_any_family():
    assert named_config("tiny-conv-16", classes=2) == TinyConvConfig(width=16, classes=2)
    assert named_config("tiny-conv-16@32") == TinyConvConfig(width=16, image_size=(32, 32))
    with pytest.raises(UserError, match="'tiny-conv-16@large'"):
        named_config("tiny-conv-16@large")
    assert named_config("B/16@384") == preset("B/16@384")
    with pytest.raises(UserError, match=r"'tiny-conv-99'.*'tiny-conv-"):
        named_config("tiny-conv-99")
    with pytest.raises(UserError, match=r"'mixer'.*'B/16'"):
        named_config("mixer")


CONV = TinyConvConfig(width=4, depth=2, image_size=(16, 12), classes=5)


def test_what_a_new_family_costs_is_found_by_looking():
    """Stem 3*4*9; each block 2*4 of the norm and 4*4*9 + 4 of the convolution; classifier 4*5 + 5."""
    assert count_parameters(CONV) == 108 + 2 * (8 + 148) + 25
    model = build_network(CONV).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 16, 12))
    assert count_flops(CONV) == counter.get_total_flops() == 2 * (8 * 6) * (27 * 4 + 2 * 36 * 4) + 2 * 4 * 5
    with pytest.raises(UserError, match=r"patch_fraction=0\.5.*'tiny-conv'"):
        count_flops(CONV, 0.5)
    largest = 4 * 4 * 8 * 6  # bytes of four channels of 8 x 6
    assert inference_batch(CONV) == 128
    big = replace(CONV, image_size=(1024, 768))
    assert inference_batch(big) == max(4, 10_000_000 // (largest * 64 * 64))
    assert inference_batch(replace(CONV, image_size=(256, 192))) == 10_000_000 // (largest * 16 * 16) == 50


def test_activation_memory_of_a_new_family_is_what_autograd_keeps():
    kept = kept_bytes(build_network(CONV).train(), count=2)
    assert count_activation_bytes(CONV) == pytest.approx(kept / 2, rel=0.01)


def test_a_new_family_describes_itself():
    assert CONV.describe() == "Tiny ConvNet of width 4, depth 2"
    assert with_article(CONV.title()) == "A Tiny ConvNet"
    told = {name: re.findall(r"\d+", value) for name, value in CONV.architecture().items()}
    assert told == {"Input": ["16", "12", "3"], "Width": ["4"], "Depth": ["2"], "Features": ["4"], "Classes": ["5"]}


def test_a_new_family_needs_few_lines_to_be_changed():
    model = build_network(CONV, seed=1)
    assert torch.equal(build_network(CONV, seed=1).stem.weight, model.stem.weight)
    state, config = network_class(CONV).resize(model.state_dict(), CONV, (32, 32)), CONV.for_size((32, 32))
    assert config == replace(CONV, image_size=(32, 32))
    assert state is not None
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert CONV.for_classes(0) == replace(CONV, classes=0)
    with pytest.raises(UserError, match=r"lora=4.*'tiny-conv'"):
        add_lora(model, 4)
    roles = model.parameter_groups()
    assert roles["stem.weight"] == ParameterGroup(-1, "embedding", True)
    assert roles["blocks.1.0.weight"] == ParameterGroup(1, "norm", False)
    assert roles["blocks.1.2.weight"] == ParameterGroup(1, "other", True)  # four axes: not what Muon is made for
    assert roles["blocks.1.2.bias"] == ParameterGroup(1, "other", False)
    assert roles["head.weight"] == ParameterGroup(2, "classifier", True)


def test_what_a_network_can_do():
    vit, conv = random_model(), build_network(CONV)
    assert isinstance(vit, TracesAttention)
    assert isinstance(vit, LeavesPatchesOut)
    assert not isinstance(vit, HasFeatureMap)
    assert isinstance(conv, HasFeatureMap)
    assert not isinstance(conv, TracesAttention | LeavesPatchesOut)
    assert require(vit, TracesAttention, "rollout") is vit
    assert require(vit, ViT, "steps") is vit
    for capability in (TracesAttention, LeavesPatchesOut, ViT):
        with pytest.raises(UserError, match=r"^steps.*'tiny-conv'"):
            require(conv, capability, "steps")


def test_a_network_must_answer():
    with pytest.raises(TypeError, match="abstract"):
        Network()


def test_outputs_are_the_representation_and_the_logits_of_one_pass(subtests):
    """Of every family: what a classifier taken away leaves is the representation, and only one pass is computed."""
    models = {name: random_model(**shape) for name, shape in VARIANTS.items()}
    models |= {"bit": scrambled(SMALL_BIT), "efficientnet": scrambled(SMALL_EFFICIENTNET)}
    models["outside"] = build_network(TinyConvConfig()).eval()
    for name, model in models.items():
        with subtests.test(name), torch.no_grad():
            images = convolutional_images(model.config)
            passes: list[int] = []
            hook = next(model.children()).register_forward_hook(lambda *_, p=passes: p.append(1))
            y, logits = model.outputs(images)
            hook.remove()
            assert len(passes) == 1
            linear = {"classifier": "linear"} if isinstance(model.config, ViTConfig) else {}
            linear |= {"projection": 0} if linear else {}
            bare = build_network(replace(model.config, classes=0, **linear), seed=None).eval()
            bare.load_state_dict(model.without_classifier(model.state_dict()))
            torch.testing.assert_close(y, bare(images))
            if len(model.classifiers()) == 1 and getattr(model.config, "classifier", "linear") == "linear":
                torch.testing.assert_close(logits, model.classifiers()[0](bare(images)))
            assert torch.equal(logits, model(images))
            assert torch.equal(y, model.representation(images))
