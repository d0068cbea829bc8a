"""Names on the hub, from its cache on this machine and without a network."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

from support.commands import check_refused, run_command
from support.published import timm_like
from support.tiny_models import random_model
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.weights import hub
from vitreous.weights.bundle import load_bundle, save_bundle
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


@pytest.fixture
def offline(cache, monkeypatch):
    """As HF_HUB_OFFLINE=1 and HF_HUB_CACHE say, which huggingface_hub reads when it is imported."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def run(*argv):
    outcome = run_command(*argv)
    assert outcome.status == 0, outcome.stderr
    return outcome


def test_the_environment_says_offline(cache):
    """In a process of its own, as its variables are read at the start."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    code = "import sys; from vitreous.weights.hub import fetch; print(fetch(sys.argv[1]))"
    for name, status in {"hf:acme/tiny-vit": 0, "hf:acme/another": 1}.items():
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, env=environment)
        assert done.returncode == status, done.stderr
        said = str(cache / "models--acme--tiny-vit" / "snapshots" / COMMIT) if status == 0 else "HF_HUB_OFFLINE"
        assert said in done.stdout + done.stderr


@pytest.mark.usefixtures("offline")
def test_a_name_is_imported_from_the_cache(cache, tmp_path):
    done = run("import", "hf:acme/tiny-vit", tmp_path / "b")
    assert "ViT(64 wide, 2 deep)/4, 16, 5 classes" in done.stderr
    bundle = load_bundle(tmp_path / "b")
    expected = load_file(cache / "models--acme--tiny-vit" / "snapshots" / COMMIT / "model.safetensors")
    assert torch.equal(bundle.model.head.weight, expected["classifier.weight"])
    assert bundle.labels == tuple("abcde")


@pytest.mark.usefixtures("offline")
def test_offline_means_offline():
    check_refused(run_command("predict", "hf:acme/another", "cat.jpg"), "hf:acme/another: ", "HF_HUB_OFFLINE")


def put(cache, name, files, revision=None):
    """A model in the hub's cache."""
    place = cache / f"models--acme--{name}"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / (revision or "main")).write_text(COMMIT)
    for file in files:
        shutil.copy(file, snapshot)


@pytest.mark.usefixtures("offline")
def test_a_bundle_on_the_hub(cache, tmp_path):
    model = random_model()
    made = save_bundle(tmp_path / "made", model, Preprocess(size=(12, 16)), tuple("abcde"))
    put(cache, "bundle", made.iterdir())
    run("import", "hf:acme/bundle", tmp_path / "b")
    assert load_bundle(tmp_path / "b").model.config == model.config


@pytest.mark.usefixtures("offline")
def test_an_older_model_at_a_revision(cache, tmp_path):
    """A model card does not stand for weights, and pytorch_model.bin is taken where there is nothing better."""
    (tmp_path / "README.md").write_text("# A model")
    torch.save(timm_like(), tmp_path / "pytorch_model.bin")
    put(cache, "old", [tmp_path / "README.md", tmp_path / "pytorch_model.bin"], revision="v1")
    run("import", "hf:acme/old@v1", tmp_path / "b")
    assert "`hf:acme/old@v1`" in (tmp_path / "b" / "README.md").read_text()


@pytest.mark.usefixtures("offline")
def test_half_a_model_in_the_cache_is_not_called_all_there_is(cache, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    put(cache, "half", [tmp_path / "config.json"])
    check_refused(run_command("import", "hf:acme/half", tmp_path / "b"), "hf:acme/half: ", "HF_HUB_OFFLINE")


def test_a_name_that_is_none():
    with pytest.raises(UserError, match=r"hf:a/b/c: .*organisation/model"):
        hub.fetch("hf:a/b/c")


@pytest.mark.usefixtures("offline")
def test_a_malformed_index_in_the_cache_is_named(cache, tmp_path):
    for number, content in enumerate(("{}", "[]", '{"weight_map": 3}', '{"weight_map": {"head.weight": 3}}')):
        (tmp_path / "model.safetensors.index.json").write_text(content)
        put(cache, f"malformed{number}", [tmp_path / "model.safetensors.index.json"])
        refused = run_command("predict", f"hf:acme/malformed{number}", "cat.jpg")
        check_refused(refused, "model.safetensors.index.json")
