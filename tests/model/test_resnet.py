"""BiT against timm, `transformers` and NumPy, and the trunk that hybrids use against timm's."""

import re
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer_hybrid import _resnetv2
from transformers import BitConfig, BitForImageClassification

from support.random_networks import SMALL_BIT, check_parts, check_same_scores, flops_by_torch, random_images, scrambled
from vitreous import UserError
from vitreous.config.bit import BiTConfig
from vitreous.config.model import model_to_json
from vitreous.model.cost import measure_cost
from vitreous.model.family import (
    build_network,
    config_from_json,
    count_activation_bytes,
    count_flops,
    count_parameters,
    named_config,
)
from vitreous.model.resnet import Trunk

# with 1,000 classes; those of the paper's table, to the last one
PUBLISHED = {
    "bit-r50x1": 25_549_352,
    "bit-r50x3": 217_319_080,
    "bit-r101x1": 44_541_480,
    "bit-r101x3": 387_934_888,
    "bit-r152x2": 236_335_208,
    "bit-r152x4": 936_533_224,
}
SMALL = replace(SMALL_BIT, root="3x3")


def in_transformers(network):
    """The same network there, by the names that its code gives the tensors."""
    c = network.config
    config = BitConfig(
        num_channels=c.channels,
        embedding_size=c.root_width,
        hidden_sizes=list(c.stage_widths),
        depths=list(c.depths),
        num_labels=c.classes,
    )
    model = BitForImageClassification(config).eval()
    renamed = {}
    for name, tensor in network.state_dict().items():
        theirs = "bit." + name.replace("stem.conv", "embedder.convolution")
        theirs = theirs.replace("stages", "encoder.stages").replace("blocks", "layers")
        renamed[theirs.replace("bit.head.fc", "classifier.1")] = tensor
    model.load_state_dict(renamed)
    return model


@torch.no_grad()
def test_the_scores_are_those_of_transformers(subtests):
    for changes in [{}, {"channels": 1}, {"depths": (1, 1, 1, 1)}, {"width": 1.0, "channels": 5}]:
        for size in [(32, 32), (37, 50)]:
            with subtests.test(changes=changes, size=size):
                network = scrambled(replace(SMALL_BIT, **changes))
                check_same_scores(network, in_transformers(network), random_images(network.config, size=size))


@pytest.mark.slow
@torch.no_grad()
def test_the_scores_of_a_real_size_are_those_of_transformers_and_timm():
    network = scrambled(named_config("bit-r50x1"))
    images = random_images(network.config, 1, size=(96, 128))
    scores = network(images)
    assert (scores - in_transformers(network)(images).logits).abs().max() < 1e-4
    theirs = timm.create_model("resnetv2_50x1_bit").eval()
    state = network.state_dict()
    theirs.load_state_dict(state | {"head.fc.weight": state["head.fc.weight"][:, :, None, None]})
    assert (scores - theirs(images)).abs().max() < 1e-4


def test_every_size_has_as_many_parameters_as_published_and_timms_tensors(subtests):
    for name in PUBLISHED:
        with subtests.test(name=name):
            config = named_config(name)
            assert count_parameters(config) == PUBLISHED[name]
            with torch.device("meta"):
                ours = build_network(config, seed=None).state_dict()
                theirs = timm.create_model(f"resnetv2_{name.removeprefix('bit-r')}_bit").state_dict()
            assert sum(tensor.numel() for tensor in theirs.values()) == PUBLISHED[name]
            shapes = {key: tuple(tensor.shape) for key, tensor in theirs.items()}
            shapes["head.fc.weight"] = shapes["head.fc.weight"][:2]  # a 1x1 convolution there
            assert {key: tuple(tensor.shape) for key, tensor in ours.items()} == shapes


def test_the_small_one_is_for_images_of_32_pixels():
    config = named_config("bit-r11x0.5", classes=10)
    assert (config.image_size, config.depth, config.describe()) == ((32, 32), 11, "BiT ResNet-11x0.5")
    network = build_network(config)
    assert network.stem(torch.zeros(1, 3, 32, 32)).shape == (1, 32, 32, 32)  # no pixel is left out at the root
    assert network.feature_map(torch.zeros(1, 3, 32, 32)).shape == (1, 512, 8, 8)
    assert sum(parameter.numel() for parameter in network.parameters()) == count_parameters(config)


def test_operations_and_memory_are_those_that_torch_counts(subtests):
    for config in [SMALL_BIT, SMALL, SMALL_BIT.for_size((45, 70)), named_config("bit-r50x1")]:
        with subtests.test(config=config):
            assert count_flops(config) == flops_by_torch(config)
            with pytest.raises(UserError, match=r"patch_fraction=0.5.*'bit'"):
                count_flops(config, patch_fraction=0.5)
            with torch.device("meta"):
                network = build_network(config, seed=None)
            kernels = (
                sum(p.numel() for p in network.parameters() if p.ndim == 4) * 4
            )  # standardised once for all images
            kept = measure_cost(network).activation_bytes - kernels // 2
            assert count_activation_bytes(config) == pytest.approx(kept, rel=0.04)


def test_kernels_are_standardised():
    network = build_network(SMALL_BIT, seed=3)
    kernel = network.stages[0].blocks[0].conv2.kernel_weight().detach().numpy()
    raw = network.stages[0].blocks[0].conv2.weight.detach().numpy().astype(np.float64)
    mean, variance = raw.mean(axis=(1, 2, 3), keepdims=True), raw.var(axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(kernel, (raw - mean) / np.sqrt(variance + 1e-8), atol=1e-5)


@torch.no_grad()
def test_the_trunk_of_hybrids_is_timms(subtests):
    for size in [(32, 32), (45, 70)]:
        with subtests.test(size=size):
            theirs = _resnetv2((1, 2)).eval()
            ours = Trunk((1, 2), preactivated=False, tf_padding=True)
            ours.load_state_dict(theirs.state_dict())
            images = torch.randn(2, 3, *size)
            assert (ours.feature_map(images) - theirs(images)).abs().max() < 1e-4


def test_the_parts_of_a_network():
    network = scrambled(SMALL_BIT)
    check_parts(network, (256, 4, 4))
    bare = build_network(replace(SMALL_BIT, classes=0))
    assert bare(random_images(SMALL_BIT)).shape == (2, SMALL_BIT.features)
    assert bare.classifiers() == []
    assert network.classifiers() == [network.head.fc]


def test_layers_and_roles():
    roles = build_network(SMALL_BIT).parameter_groups()
    layers = {name: role.layer for name, role in roles.items()}
    assert layers["stem.conv.weight"] == -1
    assert layers["stages.0.blocks.0.conv1.weight"] == 0
    assert layers["stages.1.blocks.0.downsample.conv.weight"] == 1
    assert layers["stages.1.blocks.1.norm3.bias"] == 2
    assert layers["norm.weight"] == layers["head.fc.weight"] == SMALL_BIT.layers == 3
    kinds = {name: (role.kind, role.decayed) for name, role in roles.items()}
    assert kinds["stem.conv.weight"] == ("embedding", True)
    assert kinds["stages.0.blocks.0.norm2.weight"] == ("norm", False)
    assert kinds["stages.0.blocks.0.conv2.weight"] == ("other", True)
    assert kinds["head.fc.bias"] == ("classifier", False)


def test_first_weights_follow_from_the_seed_alone():
    one, two, other = (build_network(SMALL_BIT, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["stem.conv.weight"], other["stem.conv.weight"])
    assert not one["head.fc.weight"].any()
    kernel = one["stages.1.blocks.0.conv1.weight"]  # 64 outputs of 1x1
    assert kernel.std().item() == pytest.approx((2 / 64) ** 0.5, rel=0.05)


def test_what_is_said_of_it():
    config = named_config("bit-r101x3@480")
    assert config.describe() == "BiT ResNet-101x3"
    assert re.findall(r"\d+", config.architecture()["Blocks"]) == ["33", "3", "4", "23", "3"]
    assert re.findall(r"\d+", config.architecture()["Input"]) == ["480", "480", "3"]
    assert config_from_json(model_to_json(config)) == config


def test_what_cannot_be(subtests):
    for changes, says in [
        ({"depths": ()}, "depths=()"),
        ({"depths": (1, 0)}, "depths[1]=0"),
        ({"depths": (1, 10**9)}, "depths[1]=1000000000"),
        ({"depths": (1,) * 40}, "depths: 40 "),
        ({"width": 1e6}, "width=1000000.0"),
        ({"width": -1.0}, "width=-1.0"),
        ({"root": "5x5"}, "root='5x5'"),
        ({"image_size": (0, 3)}, "image_size[0]=0"),
        ({"channels": 0}, "channels=0"),
        ({"classes": -1}, "classes=-1"),
    ]:
        with subtests.test(changes=changes):
            with pytest.raises(UserError) as caught:
                BiTConfig(**changes)
            assert str(caught.value).startswith(says)
    with pytest.raises(UserError, match=r"^width=0\.3: .* 0\.5"):
        BiTConfig(width=0.3)


def test_a_name_that_is_nearly_right():
    with pytest.raises(UserError, match=r"'bit-r50x2'.*'bit-r"):
        named_config("bit-r50x2")
    with pytest.raises(UserError, match=r"'bit-r50x1'.*'dephts'.*'depths'"):
        named_config("bit-r50x1", dephts=(1,))


def test_the_first_block_that_is_not_frozen_learns():
    network, images = scrambled(SMALL_BIT), random_images(SMALL_BIT)
    network(images).sum().backward()
    wanted = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}
    frozen = {name for name, role in network.parameter_groups().items() if role.layer < 1}
    for name, parameter in network.named_parameters():
        parameter.grad = None
        parameter.requires_grad_(name not in frozen)
    network(images.contiguous(memory_format=torch.channels_last)).sum().backward()  # torch itself crashes on such maps
    for name, parameter in network.named_parameters():
        if name in frozen:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, wanted[name], atol=1e-5, rtol=1e-4)
