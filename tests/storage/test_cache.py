"""One cache for all that is computed once: where it is, what it is called by, and what is removed when it is full."""

import os
import time

import pytest

from vitreous.storage import cache
from vitreous.storage.cache import cache_key, cache_path, cache_root, evict, mark_used


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "LIMIT_BYTES", 250)


def put(kind, name, hours_ago, size=100):
    """An entry of `size` bytes; a name with a dot is a file, else a folder of two files."""
    path = cache_path(kind, name)
    files = [path] if "." in name else [path / "x", path / "deep" / "y"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size // len(files)))
    then = time.time() - hours_ago * 3600
    os.utime(path, (then, then))
    return path


def entries(root):
    return sorted(str(path.relative_to(root / "computed")) for path in (root / "computed").glob("*/*"))


def test_where_it_is(monkeypatch, tmp_path):
    assert cache_path("features", "a") == tmp_path / "computed" / "features" / "a"
    monkeypatch.delenv("VITREOUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_root() == tmp_path / "x" / "vitreous"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "vitreous"


def test_a_key_follows_from_every_fact():
    keys = [cache_key("a"), cache_key("a", 1), cache_key("a", "1"), cache_key(["a", 1]), cache_key("a", {"b": [1]})]
    assert len(set(keys)) == 5
    assert cache_key("a", ("b", "c")) == cache_key("a", ["b", "c"])
    assert all(len(key) == 64 for key in keys)


def test_the_least_recently_used_of_all_kinds_is_removed_first(tmp_path):
    put("features", "old.safetensors", hours_ago=3)
    put("engines", "older", hours_ago=4)
    used = put("token-labels", "oldest", hours_ago=5)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pets").write_bytes(bytes(1000))  # datasets are no part of it
    mark_used(used)
    evict(except_for=put("shards", "new", hours_ago=0))
    assert entries(tmp_path) == ["shards/new", "token-labels/oldest"]
    assert (tmp_path / "data" / "pets").exists()


def test_within_the_limit_nothing_is_removed(tmp_path):
    put("features", "a.x", hours_ago=100)
    evict(except_for=put("features", "b.x", hours_ago=0))
    assert entries(tmp_path) == ["features/a.x", "features/b.x"]


def test_what_was_just_written_stays_though_it_is_too_large(tmp_path):
    put("features", "a.x", hours_ago=1)
    evict(except_for=put("engines", "b", hours_ago=2, size=1000))
    assert entries(tmp_path) == ["engines/b"]


def test_what_is_held_is_not_removed(tmp_path):
    held = put("token-labels", "held", hours_ago=50, size=1000)
    mark_used(held, hold_seconds=3600)
    evict(except_for=put("features", "new.x", hours_ago=0))
    assert entries(tmp_path) == ["features/new.x", "token-labels/held"]
    then = held.stat().st_mtime - 2 * 3600  # two hours pass
    os.utime(held, (then, then))
    evict(except_for=cache_path("features", "new.x"))
    assert entries(tmp_path) == ["features/new.x"]


def test_what_killed_processes_left_counts_too(tmp_path):
    put("features", ".new-0123456789abcdef", hours_ago=9, size=1000)
    put("engines", ".removed-0123456789abcdef", hours_ago=8, size=1000)
    evict(except_for=put("features", "new.x", hours_ago=0))
    assert entries(tmp_path) == ["features/new.x"]


def test_nothing_cached_yet_and_entries_that_cannot_be_marked(tmp_path):
    evict(except_for=tmp_path / "x")
    mark_used(tmp_path / "missing")
