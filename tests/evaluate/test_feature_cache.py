"""Features are found again for the same weights, preprocessing and images, and for nothing else."""

import dataclasses
import os

import torch
from safetensors.torch import load_file

from support.colours import PREPROCESS, make_images
from vitreous import ViT, ViTConfig
from vitreous.data.source import open_data
from vitreous.evaluate.feature_cache import FeatureCache, StoredFeatures, default_folder, features_key

STORED = StoredFeatures(
    torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 3, 4]), {2: "no"}
)


def model(seed=0):
    return ViT(ViTConfig(width=16, depth=1, heads=2, mlp_width=16, patch=8, image_size=(16, 16), classes=0), seed=seed)


def same(one, other):
    assert torch.equal(one.features, other.features)
    assert torch.equal(one.index, other.index)
    assert one.unreadable == other.unreadable


def test_what_is_put_is_got(tmp_path):
    cache = FeatureCache(tmp_path / "new" / "folder")
    assert cache.get("a") is None
    cache.put("a", STORED)
    same(cache.get("a"), STORED)
    assert cache.get("b") is None
    assert [path.name for path in cache.folder.iterdir()] == ["a.safetensors"]  # nothing half-written is left
    assert not cache.remarks


def test_every_damaged_bit_is_noticed(tmp_path):
    cache = FeatureCache(tmp_path)
    cache.put("a", STORED)
    file = tmp_path / "a.safetensors"
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
    (tmp_path / "file").write_text("in the way")
    cache = FeatureCache(tmp_path / "file")
    cache.put("a", STORED)
    assert "VITREOUS_CACHE" in cache.remarks[0]


def test_the_least_used_go_when_it_is_full(tmp_path, monkeypatch):
    cache = FeatureCache(tmp_path)
    cache.put("a", STORED)
    size = (tmp_path / "a.safetensors").stat().st_size
    monkeypatch.setattr("vitreous.evaluate.feature_cache.LIMIT", 2 * size + 10)
    cache.put("b", STORED)
    for age, key in enumerate("ab"):
        os.utime(tmp_path / f"{key}.safetensors", (age, age))
    cache.get("a")  # now it is b that was not used for longest
    cache.put("c", STORED)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c"]


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


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    assert default_folder() == tmp_path / "features"
    monkeypatch.delenv("VITREOUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_folder() == tmp_path / "x" / "vitreous" / "features"


def test_the_file_is_plain_safetensors_without_labels(tmp_path):
    """Labels are the data's affair, and may change while the images stay."""
    FeatureCache(tmp_path).put("a", STORED)
    found = load_file(tmp_path / "a.safetensors")
    assert set(found) == {"features", "index"}
    assert torch.equal(found["features"], STORED.features)
