import json
from pathlib import Path

import numpy as np
from PIL import Image

from support.images import make_tree, smooth
from vitreous.data.builtin import builtin_data
from vitreous.data.duplicates import HASH_DISTANCE, PIXEL_DISTANCE, difference_hash, near_pairs
from vitreous.data.health import inspect_data
from vitreous.data.opening import open_data


def test_a_folder_with_every_ill(tmp_path: Path):
    make_tree(tmp_path / "train", {"a": 6, "b": 3}, size=(64, 48))
    make_tree(tmp_path / "test", {"a": 1}, size=(64, 48))
    for i, part in enumerate(("train/a", "test/b")):
        (tmp_path / part).mkdir(exist_ok=True)
        smooth(100, 120, seed=70).save(tmp_path / part / "near.jpg", quality=95 - 20 * i)
    copy = (tmp_path / "train" / "a" / "001.png").read_bytes()
    (tmp_path / "train" / "b" / "copy.png").write_bytes(copy)  # with another label
    smooth(64, 48, seed=99).save(tmp_path / "test" / "a" / "000.png")
    (tmp_path / "train" / "a" / "broken.jpg").write_text("no")
    Image.new("L", (10, 20), 7).save(tmp_path / "train" / "b" / "grey.png")
    done: list[tuple[int, int]] = []
    report = inspect_data(open_data(tmp_path), lambda *now: done.append(now))

    assert report.images == 15
    assert done[-1] == (15, 15)
    assert report.splits["train"].counts == {"a": 8, "b": 5}
    assert report.splits["train"].imbalance == 8 / 5
    assert report.modes == {"RGB": 13, "L": 1}
    assert report.formats == {"PNG": 12, "JPEG": 2}
    assert report.width == {"min": 10, "median": 48, "max": 120}
    assert report.height == {"min": 20, "median": 64, "max": 100}
    assert list(report.unreadable) == [str(tmp_path / "train" / "a" / "broken.jpg")]
    (same,) = report.exact_duplicates
    assert [Path(name).name for name in same.names] == ["001.png", "copy.png"]
    assert same.labels == ["a", "b"]
    (near,) = report.near_duplicates
    assert [Path(name).name for name in near.names] == ["near.jpg", "near.jpg"]
    assert report.leaks == [near]
    assert report.contradictions == [same, near]
    found = json.loads(json.dumps(report.to_json()))
    assert found["leaks"][0]["splits"] == ["test", "train"]


def test_hashes_bear_what_near_duplicates_suffer():
    image = smooth(200, 240, seed=5)
    variants = [image.resize((100, 90)), image.point(lambda value: min(value + 3, 255)), image.convert("L")]
    for variant in variants:
        assert (difference_hash(image) ^ difference_hash(variant)).bit_count() <= HASH_DISTANCE
    assert (difference_hash(image) ^ difference_hash(smooth(200, 240, seed=6))).bit_count() > 10
    steps = Image.fromarray(np.tile(np.arange(9, 0, -1, dtype=np.uint8) * 20, (8, 1)))
    assert difference_hash(steps) == 2**64 - 1
    assert difference_hash(steps.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) == 0


def test_pairs_are_those_of_comparing_all():
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, 300, dtype=np.uint64)
    thumbnails = random.integers(0, 256, (300, 16), dtype=np.uint8)
    for i in range(0, 100, 2):  # half of these are near in their hash, a quarter in their pixels too
        bits = random.choice(64, random.integers(0, 7), replace=False)
        hashes[i + 1] = hashes[i] ^ np.bitwise_or.reduce(np.uint64(1) << bits.astype(np.uint64))
        if i % 4:
            thumbnails[i + 1] = np.clip(thumbnails[i].astype(int) + random.integers(-6, 7, 16), 0, 255)
    expected = [
        (a, b)
        for a in range(300)
        for b in range(a + 1, 300)
        if (int(hashes[a]) ^ int(hashes[b])).bit_count() <= HASH_DISTANCE
        and np.abs(thumbnails[a].astype(int) - thumbnails[b]).mean() <= PIXEL_DISTANCE
    ]
    assert 5 < len(expected) < 50
    assert near_pairs(hashes, thumbnails) == expected
    assert near_pairs(hashes[:0], thumbnails[:0]) == []


def test_many_look_alikes_cost_no_square():
    hashes = np.zeros(20_000, dtype=np.uint64)
    thumbnails = np.zeros((20_000, 4), dtype=np.uint8)
    thumbnails[:, 0] = np.arange(20_000) % 251  # alike in hash, mostly not in pixels
    assert len(near_pairs(hashes, thumbnails)) < 20_000 * 64


def test_the_builtin_images_are_healthy():
    report = inspect_data(builtin_data())
    assert report.exact_duplicates == []
    assert report.near_duplicates == []
    assert report.modes == {"L": 3100}
    assert report.splits["train"].imbalance == 1
