"""Weights by name: the table against timm, and a hub on this machine that serves them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image

import vitreous
from support.commands import run_command
from support.hub import local_hub
from support.tiny_models import random_model
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.weights import published
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.hub import HubUnreachableError, fetch, is_cached
from vitreous.weights.published import WEIGHTS, Weights, hub_name
from vitreous.weights.timm import write_timm
from vitreous.weights.timm_config import SUPPORTED, unsupported_reason

TINY = Weights("vit_tiny.test", "ViT of a test", 1, "mit", "IN-1k", 50.0, "top-1")


@pytest.mark.slow
def test_timm_agrees_with_the_table(subtests):
    """Repository, licence and parameters are those that timm itself knows."""
    timm = pytest.importorskip("timm")
    for name, row in WEIGHTS.items():
        with subtests.test(name):
            known = timm.models.get_pretrained_cfg(row.timm_name)
            assert known.hf_hub_id == row.repository
            assert known.license == row.licence
            with torch.device("meta"):
                network = timm.create_model(row.timm_name)
            assert sum(weight.numel() for weight in network.parameters()) == row.parameters


def test_every_name_is_of_a_network_that_can_be_opened(subtests):
    from fnmatch import fnmatch

    for name, row in WEIGHTS.items():
        with subtests.test(name):
            architecture = row.timm_name.partition(".")[0]
            assert unsupported_reason(architecture) is None
            assert any(fnmatch(architecture, pattern) for pattern in SUPPORTED)


@pytest.fixture
def repository(tmp_path):
    """A folder as timm uploads it."""
    torch.manual_seed(0)
    folder = write_timm(
        tmp_path / "repository",
        random_model(classes=3),
        Preprocess(size=(12, 16), mean=(0.5,) * 3, std=(0.5,) * 3),
        ("ant", "bee", "cat"),
        {},
    )
    (folder / "manifest.json").unlink()  # nobody else has one
    return folder


@pytest.fixture
def hub(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_OFFLINE", "0")
    monkeypatch.setitem(WEIGHTS, "tiny", TINY)
    with local_hub({TINY.repository: repository, "acme/gated": repository}) as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", found.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield found


def test_all_that_a_bundle_needs_is_downloaded_and_nothing_else(hub, tmp_path):
    made = save_bundle(tmp_path / "bundle", random_model(), Preprocess(size=(12, 16)), tuple("abcde"))
    (made / "big.onnx").write_bytes(b"0")
    hub.repositories["acme/bundle"] = made
    assert load_bundle(fetch("hf:acme/bundle")).labels == tuple("abcde")
    assert "big.onnx" not in {name for name, _ in hub.served}


def image(folder):
    path = folder / "cat.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)).save(path)
    return path


def test_a_name_is_downloaded_once(hub, tmp_path, monkeypatch):
    expected = vitreous.load(hub.repositories[TINY.repository]).predict(image(tmp_path))
    first = run_command("predict", "tiny", image(tmp_path), "--json")
    assert first.status == 0, first.stderr
    assert json.loads(first.stdout.splitlines()[0])["prediction"] == expected.label
    asked = len(hub.served)
    assert "model.safetensors" in {name for name, _ in hub.served}
    monkeypatch.setenv("VITREOUS_OFFLINE", "1")
    assert vitreous.load("tiny").predict(image(tmp_path)) == expected
    assert vitreous.load(f"hf-hub:{TINY.repository}").predict(image(tmp_path)) == expected
    assert len(hub.served) == asked  # the cache is enough


def test_offline_and_without_a_server(hub, monkeypatch):
    monkeypatch.setenv("VITREOUS_OFFLINE", "1")
    with pytest.raises(HubUnreachableError):
        fetch(hub_name("tiny"))
    monkeypatch.setenv("VITREOUS_OFFLINE", "")
    hub.shutdown()
    hub.server_close()
    with pytest.raises(HubUnreachableError):
        fetch(hub_name("tiny"))
    assert not hub.served


def test_an_altered_file_is_refused_and_not_kept(hub):
    hub.altered = True
    with pytest.raises(UserError, match=r"model\.safetensors"):
        fetch(hub_name("tiny"))
    assert not is_cached(hub_name("tiny"))
    hub.altered = False
    assert (fetch(hub_name("tiny")) / "model.safetensors").exists()


def test_a_broken_download_is_resumed(hub, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)  # what came is written in such pieces
    size = (hub.repositories[TINY.repository] / "model.safetensors").stat().st_size
    hub.break_after = size // 2
    folder = fetch(hub_name("tiny"))
    ranges = [asked for name, asked in hub.served if name == "model.safetensors"]
    assert ranges == [None, f"bytes={size // 2 // 1024 * 1024}-"]
    original = hub.repositories[TINY.repository] / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == original.read_bytes()


def test_a_repository_that_asks_for_consent(hub):
    hub.gated.add("acme/gated")
    with pytest.raises(UserError, match="hf:acme/gated: "):
        fetch("hf:acme/gated")


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub_name("ti16") == f"hf:{WEIGHTS['ti16'].repository}"
    Path("ti16").mkdir()
    assert hub_name("ti16") is None


def test_an_unknown_name_suggests_a_known_one():
    assert published.similar_name("s17") in ("s16", "s32")
    with pytest.raises(UserError, match="dinov2-b14"):
        vitreous.load("dinov2b14")


def test_the_list(monkeypatch):
    done = run_command("models", "--weights", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == WEIGHTS.keys()
    assert rows["ti16"]["parameters"] == 5_717_416
    assert rows["ti16"]["megabytes"] == pytest.approx(22.9, abs=0.1)
    assert "ti16" in run_command("models", "--weights").stdout
