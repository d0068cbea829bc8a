"""Names on the hub, from its cache on this machine and without a network."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import random_model

from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.weights import hub
from vitreous.weights.bundle import load_bundle
from vitreous.weights.huggingface import write_huggingface

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The hub's cache with one model in it, laid out as huggingface_hub does."""
    home = tmp_path_factory.mktemp("hub")
    model = random_model(width=64, heads=4, image_size=(16, 16))
    made = write_huggingface(home / "made", model, Preprocess(size=(16, 16), resize="stretch"), tuple("abcde"), {})
    place = home / "models--acme--tiny-vit"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        shutil.copy(made / name, snapshot)
    return home


def run(cache, *words):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    code = "from vitreous.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment)


def test_a_name_is_imported_from_the_cache(cache, tmp_path):
    done = run(cache, "import", "hf:acme/tiny-vit", str(tmp_path / "b"))
    assert done.returncode == 0, done.stderr
    assert "Hugging Face ViT(64 wide, 2 deep)/4, 16, 5 classes" in done.stderr
    bundle = load_bundle(tmp_path / "b")
    expected = load_file(cache / "models--acme--tiny-vit" / "snapshots" / COMMIT / "model.safetensors")
    assert torch.equal(bundle.model.head.weight, expected["classifier.weight"])
    assert bundle.labels == tuple("abcde")


def test_offline_means_offline(cache, tmp_path):
    done = run(cache, "predict", "hf:acme/another", "cat.jpg")
    assert done.returncode == 2
    assert "hf:acme/another: not on this machine yet, and the hub cannot be asked (HF_HUB_OFFLINE is set" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_is_none():
    with pytest.raises(UserError, match=r"hf:a/b/c: not a name on the hub; write hf:organisation/model"):
        hub.fetch("hf:a/b/c")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"hf:acme/tiny: .* pip install 'vitreous\[hub\]'"):
        hub.fetch("hf:acme/tiny")
