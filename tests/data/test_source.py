import itertools
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch

from support.images import make_tree
from vitreous.data.folder import FolderSource, Names
from vitreous.data.opening import open_data
from vitreous.data.packed import ArraySource
from vitreous.data.source import Source, split_validation, take_fraction
from vitreous.errors import UserError


def listed(counts: dict[str, int], root: str = "somewhere") -> FolderSource:
    """A source of files that need not exist."""
    names = [f"{label}/{i}.jpg" for label, count in counts.items() for i in range(count)]
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    return FolderSource(Path(root), Names(names), labels, tuple(counts))


def keys(source: Source) -> set[str]:
    return {source.key(i) for i in range(len(source))}


def test_each_class_gives_its_share():
    source = listed({"a": 200, "b": 40, "c": 10, "d": 2, "e": 3})
    train, val = split_validation(source, fraction=0.1)
    assert Counter(val.labels.tolist()) == {0: 20, 1: 4, 2: 1, 3: 1, 4: 1}
    assert Counter(train.labels.tolist()) == {0: 180, 1: 36, 2: 9, 3: 1, 4: 2}
    assert keys(train) | keys(val) == keys(source)
    assert not keys(train) & keys(val)
    train, val = split_validation(source, fraction=0.99)
    assert set(train.labels.tolist()) == {0, 1, 2, 3, 4}


def test_the_split_depends_on_the_seed_and_the_names_only():
    source = listed({"a": 50, "b": 50})
    _, val = split_validation(source, seed=3)
    order = np.random.default_rng(0).permutation(100)
    _, shuffled = split_validation(source.subset(order), seed=3)
    _, moved = split_validation(listed({"a": 50, "b": 50}, root="elsewhere"), seed=3)
    assert keys(val) == keys(shuffled) == keys(moved)
    _, other = split_validation(source, seed=4)
    assert keys(other) != keys(val)
    # frozen: a new release must not move the validation images of an old run
    assert sorted(keys(split_validation(listed({"a": 20, "b": 10}))[1])) == ["a/16.jpg", "a/3.jpg", "b/6.jpg"]


def test_a_new_image_moves_at_most_one_other_of_its_class():
    for count in range(20, 60):
        _, before = split_validation(listed({"a": count, "b": 30}))
        _, after = split_validation(listed({"a": count + 1, "b": 30}))
        new = f"a/{count}.jpg"
        assert len((keys(before) ^ keys(after)) - {new}) <= 1
        assert {key for key in keys(before) ^ keys(after) if key.startswith("b/")} == set()


def test_a_class_with_one_image_cannot_be_split():
    with pytest.raises(UserError, match=r"b/0\.jpg: .*'b'"):
        split_validation(listed({"a": 5, "b": 1}))
    with pytest.raises(UserError, match=r"^1 "):
        split_validation(listed({"a": 1}))
    with pytest.raises(UserError, match="fraction=0"):
        split_validation(listed({"a": 5}), fraction=0)


def test_unlabelled_images_are_split_too():
    source = FolderSource(Path("x"), Names([f"{i}.png" for i in range(30)]), np.full(30, -1), ())
    train, val = split_validation(source)
    assert (len(train), len(val)) == (27, 3)


def test_data_get_a_validation_part_only_if_they_have_none(tmp_path: Path):
    data = open_data(make_tree(tmp_path / "x", {"a": 10, "b": 10}))
    split = data.with_validation(seed=1)
    assert {name: len(source) for name, source in split.splits.items()} == {"train": 18, "val": 2}
    assert split.with_validation() is split
    assert split.classes == data.classes


def test_labels_in_the_order_of_a_model():
    source = ArraySource("x", torch.zeros(4, 1, 2, 2, dtype=torch.uint8), np.array([0, 1, 1, -1]), ("cat", "dog"))
    assert source.relabelled(["ant", "dog", "cat"]).labels.tolist() == [2, 1, 1, -1]
    assert source.relabelled(["ant", "dog", "cat"]).classes == ("ant", "dog", "cat")
    with pytest.raises(UserError, match="class 'dog'"):
        source.relabelled(["ant", "cat"])
    assert source.subset([0]).relabelled(["cat"]).labels.tolist() == [0]


def test_a_share_takes_as_much_of_each_class():
    source = listed({"a": 200, "b": 40, "c": 25, "d": 5})
    counts = {share: Counter(take_fraction(source, share, 0).labels.tolist()) for share in (0.1, 0.5, 0.9)}
    assert counts[0.1] == {0: 20, 1: 4, 2: 3, 3: 1}  # 2.5 and 0.5 are rounded up
    assert counts[0.5] == {0: 100, 1: 20, 2: 13, 3: 3}
    assert counts[0.9] == {0: 180, 1: 36, 2: 23, 3: 5}  # 22.5 and 4.5
    assert keys(take_fraction(source, 1.0, 0)) == keys(source)


def test_shares_of_one_seed_are_nested_and_seeds_differ():
    source = listed({"a": 200, "b": 50})
    parts = [keys(take_fraction(source, share, 1)) for share in (0.02, 0.1, 0.11, 0.5, 1.0)]
    for smaller, larger in itertools.pairwise(parts):
        assert smaller < larger
    assert keys(take_fraction(source, 0.1, 2)) != parts[1]
    # neither where the data lie nor their order counts
    assert keys(take_fraction(listed({"a": 200, "b": 50}, root="elsewhere"), 0.1, 1)) == parts[1]
    order = np.random.default_rng(0).permutation(250)
    assert keys(take_fraction(source.subset(order), 0.1, 1)) == parts[1]


def test_a_share_takes_the_images_with_the_lowest_hashes():
    def rank(key):
        return int.from_bytes(blake2b(f"3\0{key}".encode(), digest_size=8).digest(), "little")

    chosen = (
        sorted((f"a/{i}.jpg" for i in range(20)), key=rank)[:5] + sorted((f"b/{i}.jpg" for i in range(8)), key=rank)[:2]
    )
    assert keys(take_fraction(listed({"a": 20, "b": 8}), 0.25, 3)) == set(chosen)


def test_a_share_is_above_0_and_at_most_1(subtests):
    for share in (0.0, -0.1, 1.5, float("nan")):
        with subtests.test(share=share), pytest.raises(UserError, match="share="):
            take_fraction(listed({"a": 5, "b": 5}), share, 0)


def test_a_share_that_leaves_a_class_empty_is_refused_with_the_least_that_does_not():
    source = listed({"a": 1000, "rare": 30})
    with pytest.raises(UserError, match=r"share=0.01: .*'rare' .*\b30\b.* 0.017"):
        take_fraction(source, 0.01, 0)
    assert Counter(take_fraction(source, 0.017, 0).labels.tolist()) == {0: 17, 1: 1}
