"""EfficientNet against timm and `transformers`, and what is random about it."""

import re
from dataclasses import replace

import pytest
import timm
import torch
from torch import nn
from transformers import EfficientNetConfig as TheirConfig
from transformers import EfficientNetForImageClassification

from support.random_networks import (
    SMALL_EFFICIENTNET,
    check_parts,
    check_same_scores,
    flops_by_torch,
    random_images,
    scrambled,
)
from vitreous import UserError
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.config.model import model_to_json
from vitreous.model.batch_norm import BatchNorm
from vitreous.model.cost import measure_cost
from vitreous.model.family import (
    build_network,
    config_from_json,
    count_activation_bytes,
    count_flops,
    count_parameters,
    named_config,
)

# with 1,000 classes: parameters, and the paper's billions of multiply-adds at the size's own resolution
PUBLISHED = {
    "b0": (5_288_548, 0.39),
    "b1": (7_794_184, 0.70),
    "b2": (9_109_994, 1.0),
    "b3": (12_233_232, 1.8),
    "b4": (19_341_616, 4.2),
    "b5": (30_389_784, 9.9),
    "b6": (43_040_704, 19.0),
    "b7": (66_347_960, 37.0),
    "l2": (480_309_308, None),
}


def in_transformers(network, **said):
    """The same network there: its tensors lie in the same order, but for the expansion's norm."""
    c = network.config
    config = TheirConfig(
        num_channels=c.channels,
        width_coefficient=c.width,
        depth_coefficient=c.depth,
        hidden_dim=c.features,
        num_labels=c.classes,
        **said,
    )
    model = EfficientNetForImageClassification(config).eval()
    theirs, ours = model.state_dict(), network.state_dict()
    assert [tuple(one.shape) for one in theirs.values()] == [tuple(one.shape) for one in ours.values()]
    model.load_state_dict(dict(zip(theirs, ours.values(), strict=True)))
    return model


@torch.no_grad()
def test_the_scores_are_those_of_transformers(subtests):
    for changes, size, odd in [
        ({}, (64, 64), []),
        ({"channels": 1}, (64, 96), []),
        ({"depth": 1.0}, (32, 32), []),
        ({}, (36, 36), [2, 3, 5]),  # after the stem 18, then 9, 5 and 3 places: theirs must be told
    ]:
        with subtests.test(changes=changes, size=size, odd=odd):
            network = scrambled(replace(SMALL_EFFICIENTNET, **changes))
            check_same_scores(
                network, in_transformers(network, depthwise_padding=odd), random_images(network.config, size=size)
            )


@pytest.mark.slow
@torch.no_grad()
def test_the_scores_of_a_real_size_are_those_of_transformers_and_timm():
    network = scrambled(named_config("efficientnet-b0"))
    images = random_images(network.config, 1, size=(96, 128))
    assert (network(images) - in_transformers(network)(images).logits).abs().max() < 1e-4
    theirs = timm.create_model("tf_efficientnet_b0").eval()
    theirs.load_state_dict(network.state_dict())
    for size in ((224, 224), (75, 98)):
        images = random_images(network.config, 1, size=size)
        assert (network(images) - theirs(images)).abs().max() < 1e-4


@torch.no_grad()
def test_padding_alike_on_both_sides_is_timms_own():
    network = scrambled(named_config("efficientnet-b0", padding="symmetric", norm_eps=1e-5, classes=7))
    theirs = timm.create_model("efficientnet_b0", num_classes=7).eval()
    theirs.load_state_dict(network.state_dict())
    images = random_images(network.config, 1, size=(50, 64))
    assert (network(images) - theirs(images)).abs().max() < 1e-4
    other = scrambled(replace(network.config, padding="same"))
    assert (network(images) - other(images)).abs().max() > 1e-3


def test_every_size_has_as_many_parameters_as_published_and_timms_tensors(subtests):
    for size in PUBLISHED:
        with subtests.test(size=size):
            config, (parameters, multiply_adds) = named_config(f"efficientnet-{size}"), PUBLISHED[size]
            assert count_parameters(config) == parameters
            with torch.device("meta"):
                ours = build_network(config, seed=None)
                theirs = timm.create_model(f"tf_efficientnet_{size}")
            assert sum(one.numel() for one in theirs.parameters()) == parameters
            assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {
                k: tuple(v.shape) for k, v in theirs.state_dict().items()
            }
            pretrained = timm.get_pretrained_cfg(f"tf_efficientnet_{size}.ns_jft_in1k")
            assert config.image_size == pretrained.input_size[1:]
            if multiply_adds:
                assert count_flops(config) / 2e9 == pytest.approx(multiply_adds, rel=0.05)


def test_operations_and_memory_are_those_that_torch_counts(subtests):
    for config in [SMALL_EFFICIENTNET, SMALL_EFFICIENTNET.for_size((75, 98)), named_config("efficientnet-b1")]:
        with subtests.test(config=config):
            assert count_flops(config) == flops_by_torch(config)
            with torch.device("meta"):
                kept = measure_cost(build_network(config, seed=None)).activation_bytes
            assert count_activation_bytes(config) == pytest.approx(kept, rel=0.07)


def test_statistics_of_given_weights_are_kept_where_nobody_counted_their_batches():
    """Checkpoints of other programs often say 0 batches: the first one must not replace what a million images left."""
    norm = BatchNorm(2, eps=1e-3).train()
    norm.running_mean.copy_(torch.tensor([5.0, -3.0]))
    norm.running_var.fill_(4.0)
    for _ in range(2):
        norm(torch.zeros(4, 2, 3, 3))
    torch.testing.assert_close(norm.running_mean, torch.tensor([5.0, -3.0]) * 0.99**2)
    torch.testing.assert_close(norm.running_var, torch.full((2,), 4.0) * 0.99**2)


def statistics_fixed(config):
    """In training, but with batch norm's statistics as they are: what is left is what is random for each sample."""
    network = scrambled(config).train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return network


@torch.no_grad()
def test_what_is_dropped_is_a_function_of_the_sample():
    config = replace(SMALL_EFFICIENTNET, drop_path=0.9, depth=1.0, dropout=0.0)
    network, images = statistics_fixed(config), random_images(config, 1).expand(8, -1, -1, -1)
    keys = torch.arange(8)
    scores = network(images, keys=keys)
    assert len({tuple(row) for row in scores.tolist()}) > 2  # one image, and what was skipped differs
    torch.testing.assert_close(network(images[:3], keys=keys[5:]), scores[5:])
    torch.testing.assert_close(network.eval()(images), network(images, keys=keys))


@torch.no_grad()
def test_dropout_is_a_function_of_the_sample_and_keeps_the_mean():
    config = replace(SMALL_EFFICIENTNET, drop_path=0.0, dropout=0.5)
    network, images = statistics_fixed(config), random_images(config, 1)
    features = network.feature_map(images).expand(400, -1, -1, -1)
    keys = torch.arange(400)
    scores = network.classify(features, keys=keys)
    torch.testing.assert_close(network.classify(features[:5], keys=keys[9:14]), scores[9:14])
    expected = network.eval().classify(features[:1])[0]
    spread = scores.std(dim=0) / 20
    assert ((scores.mean(dim=0) - expected).abs() < 5 * spread).all()
    assert scores.std(dim=0).min() > 0


@torch.no_grad()
def test_the_first_hundred_batches_count_alike():
    norm = build_network(SMALL_EFFICIENTNET).bn1.train()
    draw = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 16, 3, 3, generator=draw) + 2 for _ in range(130)]
    means = torch.stack([batch.mean(dim=(0, 2, 3)) for batch in batches])
    for number, batch in enumerate(batches):
        norm(batch)
        if number == 9:
            torch.testing.assert_close(norm.running_mean, means[:10].mean(dim=0))
    expected = means[:100].mean(dim=0)
    for mean in means[100:]:
        expected = 0.99 * expected + 0.01 * mean
    torch.testing.assert_close(norm.running_mean, expected)


def test_later_blocks_are_skipped_more_often():
    network = build_network(named_config("efficientnet-b0"))
    rates = [block.drop_path for stage in network.blocks.children() for block in stage.children()]
    assert rates == pytest.approx([0.2 * number / 16 for number in range(16)])


def test_the_parts_of_a_network_and_its_roles():
    network = scrambled(SMALL_EFFICIENTNET)
    check_parts(network, (640, 2, 2))
    assert build_network(replace(SMALL_EFFICIENTNET, classes=0))(random_images(SMALL_EFFICIENTNET)).shape == (2, 640)
    roles = network.parameter_groups()
    layers = {name: role.layer for name, role in roles.items()}
    assert layers["conv_stem.weight"] == layers["bn1.weight"] == -1
    assert layers["blocks.0.0.bn1.weight"] == 0
    assert layers["blocks.6.0.conv_pwl.weight"] == SMALL_EFFICIENTNET.layers - 1
    assert layers["conv_head.weight"] == layers["bn2.bias"] == layers["classifier.weight"] == SMALL_EFFICIENTNET.layers
    assert (roles["blocks.1.0.bn3.weight"].kind, roles["blocks.1.0.bn3.weight"].decayed) == ("norm", False)
    assert (roles["blocks.1.0.se.conv_reduce.bias"].kind, roles["classifier.weight"].kind) == ("other", "classifier")


def test_what_is_said_of_it():
    config = named_config("efficientnet-b3@224")
    assert config.describe() == "EfficientNet-B3"
    assert SMALL_EFFICIENTNET.describe() == "EfficientNet of width 0.5, depth 0.3"
    assert re.findall(r"\d+", config.architecture()["Blocks"]) == ["26", *"2335562"]
    assert config_from_json(model_to_json(config)) == config


def test_what_cannot_be(subtests):
    for changes, says in [
        ({"width": 0.0}, "width=0.0"),
        ({"depth": -1.0}, "depth=-1.0"),
        ({"padding": "valid"}, "padding='valid'"),
        ({"norm_eps": 0.0}, "norm_eps=0.0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"drop_path": -0.1}, "drop_path=-0.1"),
        ({"image_size": (8,)}, "image_size=(8,)"),
        ({"channels": 0}, "channels=0"),
    ]:
        with subtests.test(changes=changes):
            with pytest.raises(UserError) as caught:
                EfficientNetConfig(**changes)
            assert str(caught.value).startswith(says)
