"""Hugging Face folders in and out, against `transformers` itself with random weights."""

import json

import pytest
import timm
import torch
import transformers as hf
from safetensors.torch import load_file

from support.tiny_models import random_model
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.weights.bundle import save_bundle
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.source import open_weights

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224, "patch_size": 16}
DECODER = {
    "decoder_hidden_size": 64,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 128,
}
LABELS = {"id2label": dict(enumerate("abcde")), "label2id": {letter: k for k, letter in enumerate("abcde")}}

# name: (model, its configuration, what differs from the default, what of the file is not in the model)
FAMILIES = {
    "vit": (hf.ViTForImageClassification, hf.ViTConfig, LABELS, set()),
    "vit backbone": (hf.ViTModel, hf.ViTConfig, {}, {"pooler.dense.weight", "pooler.dense.bias"}),
    "deit": (hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig, LABELS, set()),
    "deit, one classifier": (hf.DeiTForImageClassification, hf.DeiTConfig, LABELS, set()),
    "mae": (hf.ViTMAEModel, hf.ViTMAEConfig, DECODER, set()),
    "dinov2": (hf.Dinov2ForImageClassification, hf.Dinov2Config, LABELS, {"dinov2.embeddings.mask_token"}),
    "dinov2 backbone": (hf.Dinov2Model, hf.Dinov2Config, {}, {"embeddings.mask_token"}),
    "dinov2, swiglu": (
        hf.Dinov2ForImageClassification,
        hf.Dinov2Config,
        {**LABELS, "use_swiglu_ffn": True},
        {"dinov2.embeddings.mask_token"},
    ),
    "dinov2 with registers": (
        hf.Dinov2WithRegistersForImageClassification,
        hf.Dinov2WithRegistersConfig,
        LABELS,
        {"dinov2_with_registers.embeddings.mask_token"},
    ),
    "dinov2, backbone with swiglu": (
        hf.Dinov2Model,
        hf.Dinov2Config,
        {"use_swiglu_ffn": True, "mlp_ratio": 3},
        {"embeddings.mask_token"},
    ),
    "dinov2 with registers, backbone": (
        hf.Dinov2WithRegistersModel,
        hf.Dinov2WithRegistersConfig,
        {},
        {"embeddings.mask_token"},
    ),
}


def make(name, sizes):
    """A model of `transformers` in which every weight is random."""
    kind, config, changes, _ = FAMILIES[name]
    if not name.startswith("dinov2"):
        sizes = {**sizes, "intermediate_size": 4 * sizes["hidden_size"]}
    model = kind(config(**sizes, **changes)).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.05)
    return model


def theirs(model, images):
    """What it says: logits, or tokens of a model without a classifier; ViTMAE's with nothing masked or shuffled."""
    with torch.inference_mode():
        if isinstance(model, hf.ViTMAEModel):
            model.config.mask_ratio = 0.0
            cells = (images.shape[2] // model.config.patch_size) ** 2
            return model(images, noise=torch.arange(float(cells)).expand(len(images), -1)).last_hidden_state
        found = model(images)
        return found.logits if hasattr(found, "logits") else found.last_hidden_state


def ours(model, images):
    with torch.inference_mode():
        return model(images) if model.config.classes else model.encode(*model.embed(images))


def check_both_ways(name, sizes, tmp_path):
    model = make(name, sizes)
    images = torch.randn(1, 3, sizes["image_size"], sizes["image_size"], generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path / "in")
    expected = theirs(model, images)

    bundle = open_weights(tmp_path / "in")
    torch.testing.assert_close(ours(bundle.model, images), expected, atol=1e-5, rtol=0)
    if bundle.labels:
        assert bundle.labels == tuple("abcde")
    left = FAMILIES[name][3]
    assert (f"({len(left)} tensor" in " ".join(bundle.notes)) == bool(left)

    write_huggingface(tmp_path / "out", bundle.model, bundle.preprocess, bundle.labels, bundle.info)
    again, report = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert {name.split("pooler")[0] for name in report["missing_keys"]} <= {""}, "at most a pooler"
    assert not any(report[what] for what in report if what != "missing_keys")
    torch.testing.assert_close(theirs(again.eval(), images), expected, atol=1e-5, rtol=0)

    before, after = (load_file(tmp_path / place / "model.safetensors") for place in ("in", "out"))
    assert before.keys() - left == after.keys() - left
    if "registers" in name:  # the class token comes in with its position added
        for state in (before, after):
            (token,), (table,) = ([k for k in state if k.endswith(end)] for end in ("cls_token", "position_embeddings"))
            state[token], state[table] = state[token] + state[table][:, :1], state[table][:, 1:]
    assert all(torch.equal(before[key], after[key]) for key in before.keys() - left)
    assert open_weights(tmp_path / "out").model.config == bundle.model.config


@pytest.mark.parametrize("name", FAMILIES)
def test_in_and_out_at_a_small_size(name, tmp_path):
    """With as many blocks as have numbers of two digits."""
    check_both_ways(name, {**SMALL, "num_hidden_layers": 11}, tmp_path)


@pytest.mark.parametrize(
    "name", [name for name, kind in FAMILIES.items() if not ("dinov2" in name and "id2label" in kind[2])]
)
def test_a_bundle_of_such_weights_is_opened_by_timm(name, tmp_path):
    """All but DINOv2's classifiers, which read the class token beside the mean."""
    model = make(name, SMALL)
    model.save_pretrained(tmp_path / "in")
    bundle = open_weights(tmp_path / "in")
    save_bundle(tmp_path / "bundle", bundle.model, bundle.preprocess, bundle.labels)
    opened = timm.create_model(f"local-dir:{tmp_path / 'bundle'}", pretrained=True).eval()
    images = torch.randn(1, 3, SMALL["image_size"], SMALL["image_size"])
    with torch.inference_mode():
        found = opened(images)
    expected = theirs(model, images)
    torch.testing.assert_close(found, expected if bundle.labels else expected[:, 0], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "deit", "mae", "dinov2", "dinov2 with registers"])
def test_in_and_out_at_the_shape_of_b16(name, tmp_path):
    check_both_ways(name, BASE, tmp_path)


def test_maes_decoder_is_left_aside_and_said(tmp_path):
    config = hf.ViTMAEConfig(**SMALL, intermediate_size=512, **DECODER)
    model = hf.ViTMAEForPreTraining(config).eval()
    model.save_pretrained(tmp_path)
    bundle = open_weights(tmp_path)
    assert any("(24 tensors)" in note for note in bundle.notes)
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(ours(bundle.model, images), theirs(model.vit, images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["dinov2", "dinov2 with registers"])
def test_dinov2_at_another_resolution(name, tmp_path):
    """Its processor's images are never of the size that its positions were trained at."""
    model = make(name, SMALL)
    model.save_pretrained(tmp_path)
    images = torch.randn(1, 3, 48, 24, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(open_weights(tmp_path).model, images), theirs(model, images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["vit", "deit", "mae", "dinov2", "dinov2 with registers"])
def test_without_config_json_the_family_is_told_by_the_names(name, tmp_path):
    model = make(name, {**SMALL, "num_attention_heads": 2})  # heads 64 wide, which is what is taken as usual
    model.save_pretrained(tmp_path)
    with_config = open_weights(tmp_path).model
    (tmp_path / "config.json").unlink()
    found = open_weights(tmp_path / "model.safetensors").model
    assert found.config == with_config.config


def test_a_pytorch_bin_beside_its_config(tmp_path):
    model = make("vit", SMALL)
    model.save_pretrained(tmp_path)
    images = torch.randn(1, 3, 32, 32)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    torch.testing.assert_close(ours(open_weights(tmp_path).model, images), theirs(model, images), atol=1e-5, rtol=0)


def test_weights_in_shards(tmp_path):
    model = make("vit", SMALL)
    model.save_pretrained(tmp_path, max_shard_size="500KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(ours(open_weights(tmp_path).model, images), theirs(model, images), atol=1e-5, rtol=0)


def test_a_model_of_our_own_opens_in_transformers(tmp_path):
    model = random_model(width=64, heads=4, image_size=(16, 24), norm_eps=1e-6)
    preprocess = Preprocess(size=(16, 24), resize="stretch")
    write_huggingface(tmp_path / "out", model, preprocess, tuple("abcde"), {})
    peer = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    images = torch.randn(2, 3, 16, 24)
    torch.testing.assert_close(theirs(peer.eval(), images), ours(model, images), atol=1e-4, rtol=1e-5)
    assert peer.config.id2label == dict(enumerate("abcde"))


def test_classes_of_one_name_keep_their_numbers(tmp_path):
    """ImageNet has two kinds of crane: a name is shown as it is, and each class is found by a name of its own."""
    model = random_model(width=64, heads=4)
    labels = ("crane", "bee", "crane", "crane (0)", "dog")
    write_huggingface(tmp_path / "out", model, Preprocess(size=(12, 16), resize="stretch"), labels, {})
    peer = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert peer.config.id2label == dict(enumerate(labels))
    assert peer.config.label2id == {"crane (0) (0)": 0, "bee": 1, "crane (2)": 2, "crane (0)": 3, "dog": 4}
    assert peer.num_labels == 5
    peer.save_pretrained(tmp_path / "again")
    for place in ("out", "again"):
        assert open_weights(tmp_path / place).labels == labels


# What is refused, and what the sentence names.
REFUSED = [
    ({"classifier": "mlp"}, "tanh"),
    ({"position": "relative"}, "relative"),
    ({"class_token": False, "pool": "mean"}, "class token"),
    ({"pool": "mean"}, "'mean'"),
    ({"registers": 3}, "3 registers .*LayerScale"),
    ({"mlp": "swiglu"}, "swiglu .*LayerScale"),
    ({"layer_scale": 1.0}, "class token .*LayerScale"),
    ({"layer_scale": 1.0, "pool": "class+mean"}, " 24"),
]


def test_what_they_have_no_word_for_is_refused(subtests, tmp_path):
    preprocess = Preprocess(size=(12, 16), resize="stretch")
    for changes, name in REFUSED:
        with subtests.test(str(changes)):
            with pytest.raises(UserError, match=name):
                write_huggingface(tmp_path / "out", random_model(**changes), preprocess, tuple("abcde"), {})
            assert not (tmp_path / "out").exists()


def test_a_config_that_cannot_be_followed(tmp_path):
    make("vit", SMALL).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, name in (({"model_type": "beit"}, "'beit'"), ({"hidden_act": "quick_gelu"}, "GELU .*ReLU")):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=name):
            open_weights(tmp_path)


def test_an_error_speaks_in_the_files_own_names(tmp_path):
    model = make("vit", SMALL)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["vit.encoder.layer.1.attention.attention.key.bias"]
    state["vit.encoder.layer.0.output.dense.weight"] = state["vit.encoder.layer.0.output.dense.weight"][:100]
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError) as caught:
        open_weights(tmp_path)
    for name in (
        "vit.encoder.layer.1.attention.attention.key.bias",
        "vit.encoder.layer.0.output.dense.weight",
        "(100, 512)",
        "(128, 512)",
    ):
        assert name in str(caught.value)
