"""Features are found again for the same weights, preprocessing and images, and for nothing else."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

from support.colours import PREPROCESS, make_images
from vitreous import ViT, ViTConfig
from vitreous.data.opening import open_data
from vitreous.evaluation.features import FeatureCache, StoredFeatures, features_key
from vitreous.storage.cache import cache_path

STORED = StoredFeatures(
    torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 3, 4]), {2: "no"}
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))


def model(seed=0):
    return ViT(ViTConfig(width=16, depth=1, heads=2, mlp_width=16, patch=8, image_size=(16, 16), classes=0), seed=seed)


def same(one, other):
    assert torch.equal(one.features, other.features)
    assert torch.equal(one.index, other.index)
    assert one.unreadable == other.unreadable


def test_what_is_put_is_got():
    cache = FeatureCache()
    assert cache.get("a") is None
    cache.put("a", STORED)
    same(cache.get("a"), STORED)
    assert cache.get("b") is None
    file = cache_path("features", "a.safetensors")
    assert list(file.parent.iterdir()) == [file]  # nothing half-written is left
    assert not cache.remarks


def test_every_damaged_bit_is_noticed():
    cache = FeatureCache()
    cache.put("a", STORED)
    file = cache_path("features", "a.safetensors")
    whole = file.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in [0, 9, *range(start, len(whole), 7)]:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert cache.get("a") is None, place
    for length in (0, 5, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert cache.get("a") is None
    assert "a.safetensors" in cache.remarks[0]
    cache.put("a", STORED)
    same(cache.get("a"), STORED)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "cache").write_text("in the way")
    cache = FeatureCache()
    cache.put("a", STORED)
    assert "VITREOUS_CACHE" in cache.remarks[0]


def test_the_key_is_of_the_content(tmp_path):
    make_images(tmp_path / "p")
    source = open_data(tmp_path / "p").train
    key = features_key(model(), PREPROCESS, source)
    (tmp_path / "p").rename(tmp_path / "moved")
    source = open_data(tmp_path / "moved").train
    assert features_key(model(), PREPROCESS, source) == key
    others = {
        features_key(model(seed=1), PREPROCESS, source),
        features_key(model(), dataclasses.replace(PREPROCESS, crop=0.9), source),
        features_key(model(), PREPROCESS, source.subset([1, 0, *range(2, 12)])),
        features_key(model(), PREPROCESS, source.subset(range(11))),
    }
    (tmp_path / "moved" / "red" / "0.png").write_bytes((tmp_path / "moved" / "red" / "1.png").read_bytes())
    others.add(features_key(model(), PREPROCESS, source))
    (tmp_path / "moved" / "red" / "0.png").unlink()
    others.add(features_key(model(), PREPROCESS, source))
    assert len(others | {key}) == 7


def test_the_file_is_plain_safetensors_without_labels():
    """Labels are the data's affair, and may change while the images stay."""
    FeatureCache().put("a", STORED)
    found = load_file(cache_path("features", "a.safetensors"))
    assert set(found) == {"features", "index"}
    assert torch.equal(found["features"], STORED.features)
