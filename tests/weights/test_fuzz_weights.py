"""Random bytes, and real files with some bytes or values changed, for all readers of weights: a sentence or an answer.

30 examples each, the same at every run; in the exhaustive tests 500, or as many as the environment variable
VITREOUS_FUZZ says.
"""

import io
import json
import os
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.storage.manifest import write_manifest
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.labels import read_labels
from vitreous.weights.source import open_weights

CONFIG = ViTConfig(width=8, depth=1, heads=2, mlp_width=8, patch=2, image_size=(4, 4), classes=2)
EXAMPLES = [
    pytest.param(30, id="few"),
    pytest.param(int(os.environ.get("VITREOUS_FUZZ", "500")), marks=pytest.mark.exhaustive, id="many"),
]
pytestmark = pytest.mark.parametrize("examples", EXAMPLES)


def fuzz(examples, strategy, check):
    """`check` each of so many examples."""
    chosen = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    chosen(given(strategy)(check))()


def torch_bytes(state, old=False):
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=not old)
    return file.getvalue()


def npz_bytes(arrays, write=np.savez):
    file = io.BytesIO()
    write(file, **arrays)
    return file.getvalue()


def google():
    """Google's names for the same model."""
    block, attention = "Transformer/encoderblock_0", "Transformer/encoderblock_0/MultiHeadDotProductAttention_1"
    shapes = {
        "cls": (1, 1, 8),
        "embedding/kernel": (2, 2, 3, 8),
        "embedding/bias": (8,),
        "Transformer/posembed_input/pos_embedding": (1, 5, 8),
        "Transformer/encoder_norm/scale": (8,),
        "Transformer/encoder_norm/bias": (8,),
        "head/kernel": (8, 2),
        "head/bias": (2,),
        f"{block}/MlpBlock_3/Dense_0/kernel": (8, 8),
        f"{block}/MlpBlock_3/Dense_0/bias": (8,),
        f"{block}/MlpBlock_3/Dense_1/kernel": (8, 8),
        f"{block}/MlpBlock_3/Dense_1/bias": (8,),
        f"{attention}/out/kernel": (2, 4, 8),
        f"{attention}/out/bias": (8,),
    }
    for norm in ("LayerNorm_0", "LayerNorm_2"):
        shapes |= {f"{block}/{norm}/scale": (8,), f"{block}/{norm}/bias": (8,)}
    for name in ("query", "key", "value"):
        shapes |= {f"{attention}/{name}/kernel": (8, 2, 4), f"{attention}/{name}/bias": (2, 4)}
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


STATE = {name: tensor.clone() for name, tensor in ViT(CONFIG).state_dict().items()}
FILES = {
    "safetensors": save(STATE),
    "pth": torch_bytes(STATE),
    "old pth": torch_bytes(STATE, old=True),
    "npz": npz_bytes(google()),
    "compressed npz": npz_bytes(google(), np.savez_compressed),
}


@st.composite
def mutations(draw, whole):
    """Random bytes, or the file with some bytes overwritten, left out or put in, or cut; headers more than bodies."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        end = len(content) if draw(st.booleans()) else min(len(content), 1500)
        at = draw(st.integers(0, max(0, end - 1)))
        at = len(content) - 1 - at if draw(st.booleans()) else at  # a zip archive has its list at the end
        patch = draw(st.binary(min_size=1, max_size=8))
        how = draw(st.sampled_from(("over", "over", "in", "out", "cut", "bit")))
        if how == "over":
            content[at : at + len(patch)] = patch
        elif how == "in":
            content[at:at] = patch
        elif how == "out":
            del content[at : at + len(patch)]
        elif how == "cut" and draw(st.integers(0, 3)) == 0:
            del content[at:]
        elif content:
            content[at % len(content)] ^= 1 << draw(st.integers(0, 7))
    return bytes(content)


def sentence_or_answer(read):
    """What is raised is a `UserError` on one line, or nothing is."""
    try:
        return read()
    except UserError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 3000
    return None


@pytest.mark.parametrize("kind", FILES)
def test_files_of_weights(tmp_path, examples, kind):
    def check(content):
        path = tmp_path / f"w.{kind.split()[-1]}"
        path.write_bytes(content)
        found = sentence_or_answer(partial(open_weights, path, heads=2))
        if found is not None:
            assert all(tensor.isfinite().all() for tensor in found.model.state_dict().values())

    fuzz(examples, mutations(FILES[kind]), check)


NUMBERS = st.one_of(
    st.integers(-3, 20),
    st.sampled_from((10**9, 2**62, -(2**63), 10**30, 0.5, 1e-300, 1e300, 1e308)),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(("gelu", "class", "vit", "1"))),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


def places(value, path=()):
    """Where something may be changed: the way to each value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inside for place in places(one, (*path, key)))]


@st.composite
def changed(draw, original):
    """The JSON text of a description with one to three values replaced or left out, or with some bytes changed."""
    if draw(st.integers(0, 4)) == 0:
        return draw(mutations(json.dumps(original).encode()))
    value = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(value)[1:] or [("a",)]))
        owner = value
        for key in way:
            owner = owner[key]
        if isinstance(owner, dict) and draw(st.integers(0, 3)) == 0:
            owner.pop(last, None)
        elif isinstance(owner, dict | list):
            owner[last] = draw(VALUES)
    return json.dumps(value).encode()


TIMM = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 2,
    "num_features": 8,
    "global_pool": "token",
    "model_args": {"img_size": [4, 4], "patch_size": 2, "embed_dim": 8, "depth": 1, "num_heads": 2, "qk_norm": False},
    "label_names": ["a", "b"],
    "pretrained_cfg": {
        "input_size": [3, 4, 4],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
}


def test_descriptions_of_timm(tmp_path, examples):
    (tmp_path / "model.safetensors").write_bytes(FILES["safetensors"])

    def check(content):
        (tmp_path / "config.json").write_bytes(content)
        sentence_or_answer(partial(open_weights, tmp_path))

    fuzz(examples, changed(TIMM), check)


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_descriptions_of_hugging_face(tmp_path, examples, file):
    from vitreous.weights.huggingface import write_huggingface

    preprocess = Preprocess(size=(4, 4), crop=0.5, resize="stretch")
    write_huggingface(tmp_path / "hf", ViT(CONFIG).eval(), preprocess, ("a", "b"), {})
    (tmp_path / "hf" / "manifest.json").unlink()
    original = json.loads((tmp_path / "hf" / file).read_text())

    def check(content):
        (tmp_path / "hf" / file).write_bytes(content)
        sentence_or_answer(partial(open_weights, tmp_path / "hf"))

    fuzz(examples, changed(original), check)


@pytest.mark.parametrize("signed", [True, False])
def test_bundles(tmp_path, examples, signed):
    """config.json changed under a manifest that is right; or the manifest itself changed."""
    folder = save_bundle(tmp_path / "b", ViT(CONFIG), Preprocess(size=(4, 4)), ("a", "b"))
    file = folder / ("config.json" if signed else "manifest.json")

    def check(content):
        file.write_bytes(content)
        if signed:
            write_manifest(folder)
        sentence_or_answer(partial(load_bundle, folder))

    fuzz(examples, changed(json.loads(file.read_text())), check)


def test_labels(tmp_path, examples):
    def check(content):
        (tmp_path / "labels.json").write_bytes(content)
        sentence_or_answer(partial(read_labels, tmp_path / "labels.json"))

    lists = changed([["n01", "tench"], ["n02", "goldfish"]])
    fuzz(examples, st.one_of(lists, changed({"0": "a", "1": "b"}), st.binary()), check)
