"""BiT and EfficientNet in the formats of Google, timm and Hugging Face: those libraries open what is written, with the
same scores; what is read back is the same to the last bit; what is something else is refused by name."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoModelForImageClassification, EfficientNetImageProcessor

from support.random_networks import SMALL_BIT, SMALL_EFFICIENTNET, random_images, scrambled
from vitreous import UserError, export_weights
from vitreous.config.bit import PRESETS as BITS
from vitreous.config.data import Preprocess
from vitreous.config.efficientnet import PRESETS as EFFICIENTNETS
from vitreous.model.family import named_config
from vitreous.weights.adapt import adapt
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.huggingface_cnn import efficientnet_config
from vitreous.weights.processor import from_processor
from vitreous.weights.source import open_weights
from vitreous.weights.timm_config import timm_config

LABELS = tuple("abcde")
B0 = named_config("efficientnet-b0", classes=5, image_size=(64, 64))
R50 = named_config("bit-r50x1", classes=5, image_size=(64, 64))


def prepared(config, **changes):
    flat = (0.5,) * config.channels
    return Preprocess(**{"size": config.image_size, "mean": flat, "std": flat, **changes})


def saved(place, config, **changes):
    network = scrambled(config)
    save_bundle(place, network, prepared(config, **changes), LABELS[: config.classes])
    return network


def assert_same(found, network):
    state = network.state_dict()
    assert list(found.state_dict()) == list(state)
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, state[name]), name


ROUND_TRIPS = {
    "bit google": (SMALL_BIT, "google", "m.npz"),
    "bit google, small root": (replace(SMALL_BIT, root="3x3"), "google", "m.npz"),
    "bit google, grey, no classifier": (replace(SMALL_BIT, channels=1, classes=0), "google", "m.npz"),
    "bit huggingface": (SMALL_BIT, "huggingface", "m"),
    "bit huggingface, grey, no classifier": (replace(SMALL_BIT, channels=1, classes=0), "huggingface", "m"),
    "bit timm": (R50, "timm", "m"),
    "efficientnet huggingface": (SMALL_EFFICIENTNET, "huggingface", "m"),
    "efficientnet huggingface, grey, no classifier": (
        replace(SMALL_EFFICIENTNET, channels=1, classes=0),
        "huggingface",
        "m",
    ),
    "efficientnet timm": (B0, "timm", "m"),
    "efficientnet timm, its own padding": (replace(B0, padding="symmetric", norm_eps=1e-5), "timm", "m"),
    "efficientnet timm, another epsilon, grey, no classifier": (
        replace(B0, norm_eps=2e-3, channels=1, classes=0),
        "timm",
        "m",
    ),
}


@pytest.mark.parametrize(
    ("config", "to", "name"),
    [pytest.param(*row, id=name, marks=pytest.mark.slow if row[0] is R50 else ()) for name, row in ROUND_TRIPS.items()],
)
def test_out_and_in_and_out_again_to_the_last_bit(tmp_path, config, to, name):
    network = saved(tmp_path / "bundle", config, resize="stretch", interpolation="bilinear")
    out = export_weights(tmp_path / "bundle", tmp_path / "one" / name, to=to)
    size = f"size={config.image_size[0]}x{config.image_size[1]}"
    found = open_weights(out, size if to == "google" else None)
    assert found.model.config == config
    assert_same(found.model, network)
    if to != "google":
        assert found.preprocess == prepared(config, resize="stretch", interpolation="bilinear")
        assert found.labels == LABELS[: config.classes]
    again = export_weights(found, tmp_path / "two" / name, to=to)
    file = "" if to == "google" else "model.safetensors"
    read = np.load if to == "google" else load_file
    first, second = read(out / file if file else out), read(again / file if file else again)
    assert sorted(first) == sorted(second)
    assert all(np.array_equal(np.asarray(first[key]), np.asarray(second[key])) for key in first)


@pytest.mark.parametrize(
    "config",
    [R50, replace(R50, channels=4), B0, replace(B0, channels=1), replace(B0, padding="symmetric", norm_eps=1e-5)],
    ids=["bit", "bit, 4 channels", "efficientnet", "efficientnet, grey", "efficientnet, timm's padding"],
)
@pytest.mark.slow
@torch.no_grad()
def test_timm_opens_a_bundle_as_it_is(tmp_path, config):
    network = saved(tmp_path / "bundle", config, crop=0.875)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'bundle'}", pretrained=True).eval()
    images = random_images(config)
    assert (theirs(images) - network(images)).abs().max() < 1e-4
    assert theirs.pretrained_cfg["input_size"] == [config.channels, 64, 64]
    assert theirs.pretrained_cfg["crop_pct"] == 0.875
    assert theirs.pretrained_cfg["classifier"] in dict(theirs.named_modules())
    if config.channels == 3:
        assert theirs.pretrained_cfg["first_conv"] in dict(theirs.named_modules())
    assert_same(load_bundle(tmp_path / "bundle").model, network)


def test_every_published_size_has_its_name_in_timm(subtests):
    for name in (*BITS, *EFFICIENTNETS):
        if name == "bit-r11x0.5":  # our own
            continue
        with subtests.test(name):
            config = named_config(name)
            said = timm_config(config, prepared(config), [""] * 1000)
            assert said["architecture"] in timm.list_models()
            assert said["num_features"] == config.features
            expected = name.replace("bit-r", "resnetv2_") + "_bit" if "bit" in name else "tf_" + name.replace("-", "_")
            assert said["architecture"] == expected


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (named_config("bit-r11x0.5"), "3x3"),
        (SMALL_BIT, " 1, 2 .* 0.5 "),
        (SMALL_EFFICIENTNET, " 0.5 .* 0.3 .* B0"),
    ],
)
def test_what_timm_has_no_word_for(tmp_path, config, missing):
    saved(tmp_path / "bundle", replace(config, classes=5))
    said = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert said["architecture"] == "vitreous"
    assert re.search(missing, said["timm"])
    with pytest.raises(UserError, match="timm"):
        export_weights(tmp_path / "bundle", tmp_path / "out", to="timm")


@pytest.mark.parametrize(
    "config",
    [SMALL_BIT, SMALL_EFFICIENTNET, replace(SMALL_EFFICIENTNET, image_size=(36, 36))],
    ids=["bit", "efficientnet", "efficientnet, odd maps"],
)
@torch.no_grad()
def test_transformers_opens_what_is_written(tmp_path, config):
    network = saved(tmp_path / "bundle", config, crop=0.8)
    out = export_weights(tmp_path / "bundle", tmp_path / "out", to="huggingface")
    theirs = AutoModelForImageClassification.from_pretrained(out).eval()
    images = random_images(config)
    assert (theirs(images).logits - network(images)).abs().max() < 1e-4
    assert theirs.config.id2label == dict(enumerate(LABELS))
    assert AutoImageProcessor.from_pretrained(out).crop_size["height"] == config.image_size[0]


def test_the_blocks_that_hugging_face_must_be_told_of_are_the_published_ones():
    published = {
        "b0": [],
        "b1": [16],
        "b2": [5, 8, 16],
        "b3": [5, 18],
        "b4": [6],
        "b5": [13, 27],
        "b6": [31],
        "b7": [18],
    }
    for size, blocks in published.items():
        c = named_config(f"efficientnet-{size}")
        assert efficientnet_config(c)["depthwise_padding"] == blocks, size


def test_what_hugging_face_has_no_word_for(tmp_path):
    for number, (config, names) in enumerate(
        [
            (named_config("bit-r11x0.5", classes=5), "3x3"),
            (replace(SMALL_EFFICIENTNET, padding="symmetric"), "out: "),
            (replace(SMALL_EFFICIENTNET, image_size=(75, 75)), "75x75"),
            (replace(SMALL_EFFICIENTNET, image_size=(36, 64)), "36x64"),
        ]
    ):
        saved(tmp_path / str(number), config)
        with pytest.raises(UserError, match=names):
            export_weights(tmp_path / str(number), tmp_path / "out", to="huggingface")


def test_efficientnet_is_no_npz(tmp_path):
    saved(tmp_path / "bundle", SMALL_EFFICIENTNET)
    with pytest.raises(UserError, match=r"'efficientnet' .*'huggingface'"):
        export_weights(tmp_path / "bundle", tmp_path / "m.npz", to="google")


@pytest.mark.slow
@torch.no_grad()
def test_timm_reads_googles_file_as_we_write_it(tmp_path):
    network = saved(tmp_path / "bundle", R50)
    out = export_weights(tmp_path / "bundle", tmp_path / "m.npz", to="google")
    theirs = timm.create_model("resnetv2_50x1_bit", num_classes=5).eval()
    theirs.load_pretrained(out)
    images = random_images(R50)
    assert (theirs(images) - network(images)).abs().max() < 1e-4
    found = open_weights(out)
    assert found.preprocess == Preprocess(crop=0.875, interpolation="bilinear")
    assert "does not say how its images were prepared" in found.notes[-1]
    export_weights(tmp_path / "bundle", out, to="google")  # an earlier export is replaced
    (tmp_path / "other.npz").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"other\.npz: "):
        export_weights(tmp_path / "bundle", tmp_path / "other.npz", to="google")


@pytest.mark.parametrize("variant", ["resnetv2_50x1_bit.goog_in21k_ft_in1k", "tf_efficientnet_b0.ns_jft_in1k"])
def test_a_hub_folder_of_timms_with_its_own_preprocessing(tmp_path, variant):
    said = timm.get_pretrained_cfg(variant).to_dict()
    config = replace(R50 if "resnetv2" in variant else B0)
    network = scrambled(config)
    state = network.state_dict()
    if "resnetv2" in variant:
        state["head.fc.weight"] = state["head.fc.weight"][:, :, None, None].contiguous()
    save_file(state, tmp_path / "model.safetensors")
    described = {"architecture": variant.partition(".")[0], "pretrained_cfg": said}
    (tmp_path / "config.json").write_text(json.dumps(described))
    found = open_weights(tmp_path)
    assert_same(found.model, network)
    assert found.model.config == replace(config, image_size=said["input_size"][1:])
    expected = {name: said[theirs] for name, theirs in (("mean", "mean"), ("std", "std"), ("crop", "crop_pct"))}
    assert found.preprocess == Preprocess(size=said["input_size"][1:], interpolation=said["interpolation"], **expected)


def test_a_bare_file_is_taken_for_googles(tmp_path):
    save_file(scrambled(B0).state_dict(), tmp_path / "m.safetensors")
    found = open_weights(tmp_path / "m.safetensors")
    assert (found.model.config.padding, found.model.config.image_size) == ("same", (224, 224))
    assert any("tf_efficientnet_b0" in note for note in found.notes)
    torch.save({"optimizer": {"lr": torch.zeros(1)}, "ema": scrambled(B0).state_dict()}, tmp_path / "t.pth")
    assert open_weights(tmp_path / "t.pth").model.config.family == "efficientnet"  # the entry that holds a model


@torch.no_grad()
def test_hugging_faces_processor_of_efficientnet_divides_twice():
    said = {
        "image_processor_type": "EfficientNetImageProcessor",
        "do_center_crop": False,
        "do_normalize": True,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.47853944, 0.4732864, 0.47434163],
        "include_top": True,
        "resample": 2,
        "size": {"height": 224, "width": 224},
    }
    found = from_processor(said, B0, "here")
    assert found.std == pytest.approx((0.229, 0.224, 0.225), abs=1e-5)
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    theirs = EfficientNetImageProcessor(**{k: v for k, v in said.items() if k != "image_processor_type"})
    expected = np.asarray(theirs(pixels, return_tensors="np")["pixel_values"][0])
    ours = (pixels / 255 - np.array(found.mean)) / np.array(found.std)
    np.testing.assert_allclose(ours.transpose(2, 0, 1), expected, atol=1e-4)
    with pytest.raises(UserError, match="rescale_offset"):
        from_processor(said | {"rescale_offset": True}, B0, "here")


def folder(place, config, said):
    """An export to Hugging Face, with these fields of its config.json changed."""
    saved(place / "bundle", config)
    export_weights(place / "bundle", place / "out", to="huggingface")
    file = place / "out" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))
    (place / "out" / "manifest.json").unlink()  # as anybody's folder
    return place / "out"


# A field of config.json, the value that no such network has, and what the sentence names.
OTHER_NETWORKS = [
    (SMALL_BIT, {"layer_type": "bottleneck"}, "layer_type 'bottleneck'"),
    (SMALL_BIT, {"global_padding": "SAME"}, "global_padding 'SAME'"),
    (SMALL_BIT, {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    (SMALL_BIT, {"num_groups": 8}, "num_groups 8"),
    (SMALL_BIT, {"output_stride": 16}, "output_stride 16"),
    (SMALL_BIT, {"depths": [2, 2]}, "depths [2, 2]", "[1, 2]"),
    (SMALL_BIT, {"embedding_size": 64}, "embedding_size 64"),
    (SMALL_BIT, {"num_channels": 1}, "num_channels 1"),
    (SMALL_BIT, {"id2label": {str(k): k for k in range(5)}}, "id2label[0]=0"),
    (SMALL_EFFICIENTNET, {"num_channels": 1}, "num_channels 1"),
    (SMALL_EFFICIENTNET, {"hidden_act": "relu"}, "hidden_act relu"),
    (SMALL_EFFICIENTNET, {"strides": [1, 2, 2, 2, 1, 1, 1]}, "strides"),
    (SMALL_EFFICIENTNET, {"width_coefficient": "wide"}, "width='wide'"),
    (SMALL_EFFICIENTNET, {"depth_coefficient": 5.0}, "out"),
    (SMALL_EFFICIENTNET, {"depthwise_padding": [1]}, "depthwise_padding"),
]


def test_a_folder_that_asks_for_another_network(subtests, tmp_path):
    for number, (config, said, *names) in enumerate(OTHER_NETWORKS):
        with subtests.test(f"{config.family} {said}"):
            out = folder(tmp_path / str(number), config, said)
            with pytest.raises(UserError) as caught:
                open_weights(out)
            for name in (*names, str(out)):
                assert name in str(caught.value)


@pytest.mark.parametrize("config", [R50, B0], ids=["bit", "efficientnet"])
def test_a_file_that_is_not_whole(subtests, tmp_path, config):
    state = scrambled(config).state_dict()
    if config is R50:
        state["head.fc.weight"] = state["head.fc.weight"][:, :, None, None].contiguous()
    kernel = next(name for name in state if "conv3" in name or "conv_pwl" in name)
    norm = "norm.weight" if "norm.weight" in state else "bn2.weight"
    first = "stem.conv.weight" if "stem.conv.weight" in state else "conv_stem.weight"
    spoiled = {
        "one tensor is missing": {name: tensor for name, tensor in state.items() if name != kernel},
        "one is left over": state | {"surprise": torch.zeros(2)},
        "one has another shape": state | {norm: torch.zeros(3)},
        "the first kernel is flat": state | {first: torch.zeros(64, 3)},
    }
    for name, changed in spoiled.items():
        with subtests.test(name):
            save_file(changed, tmp_path / "m.safetensors")
            with pytest.raises(UserError, match=r"m\.safetensors: "):
                open_weights(tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", ["resnetv2_50", "resnetv2_18", "mobilenetv3_small_050", "efficientnet_lite0"])
def test_other_networks_of_timms_are_not_taken_for_one(tmp_path, name):
    save_file(timm.create_model(name, num_classes=2).state_dict(), tmp_path / "m.safetensors")
    with pytest.raises(UserError, match=r"m\.safetensors: "):
        open_weights(tmp_path / "m.safetensors")


@torch.no_grad()
def test_other_channels_and_classes():
    for config in (SMALL_BIT, SMALL_EFFICIENTNET):
        network = scrambled(config)
        changed, preprocess = adapt(network, prepared(config), classes=3, channels=6, image_size=40)
        assert changed(torch.zeros(1, 6, 40, 40)).shape == (1, 3)
        assert (preprocess.channels, preprocess.size) == (6, (40, 40))
        twice, _ = adapt(network, prepared(config), channels=6)
        images = random_images(config)
        torch.testing.assert_close(twice(images.repeat(1, 2, 1, 1)), network(images), atol=1e-4, rtol=1e-3)
