"""Several sources as one, and soft targets on their way through the loader and through mixing."""

import numpy as np
import pytest
import torch

from vitreous.config.data import Augment, Preprocess
from vitreous.data.joined import JoinedSource
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.data.rng import MIX, generator, permutation

SEEN = Preprocess(size=(8, 8))


def arrays(count, seed, side=8):
    images = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, 3, side, side), dtype=np.uint8))
    return ArraySource(f"made-{seed}", images, np.full(count, -1), ())


@pytest.fixture
def joined():
    """5 and 7 images, of the second the last one twice, with soft targets of three classes."""
    first, second = arrays(5, 1), arrays(7, 2).subset([0, 1, 2, 3, 4, 5, 6, 6])
    soft = np.random.default_rng(3).dirichlet([1, 1, 1], 13).astype(np.float32)
    parts = ((first, soft[:5]), (second, soft[5:]))
    return JoinedSource([part.with_labels(rows.argmax(axis=1), ("a", "b", "c"), rows) for part, rows in parts])


def test_a_image_is_its_own_sources(joined):
    assert len(joined) == 13
    assert [joined.name(4), joined.name(5), joined.name(12)] == ["made-1#4", "made-2#0", "made-2#6"]
    assert [joined.key(4), joined.key(5)] == ["0/4", "1/0"]
    assert joined.content(11) == joined.content(12) == arrays(7, 2).content(6)
    assert np.array_equal(np.asarray(joined.read(6)), np.asarray(arrays(7, 2).read(1)))
    some = joined.subset([12, 0, 5])
    assert [some.name(i) for i in range(3)] == ["made-2#6", "made-1#0", "made-2#0"]
    assert np.array_equal(some.soft, joined.soft[[12, 0, 5]])
    assert some.with_labels(np.zeros(3, dtype=np.int64), ("x",)).soft is None


def test_each_source_hears_which_of_its_own_are_read_next(joined, monkeypatch):
    """In the order of all, and the second does not make the first forget."""
    heard = []

    def hear(source, indices, keep_pending=False):
        heard.append((joined.parts.index(source), indices.tolist(), keep_pending))

    monkeypatch.setattr(ArraySource, "expect", hear)
    joined.subset([12, 0, 5, 7, 1]).expect(np.arange(5))
    assert heard == [(1, [7], False), (0, [0], True), (1, [0, 2], True), (0, [1], True)]


def test_small_images_in_memory_are_still_gathered_at_once(joined):
    assert joined.shape == (3, 8, 8)
    wanted = np.array([12, 0, 7, 4])
    for image, index in zip(joined.gather(wanted), wanted, strict=True):
        assert image.numpy().tobytes() == joined.content(int(index))
    assert JoinedSource([arrays(2, 1), arrays(2, 2, side=9)]).shape is None


def test_the_loader_gives_soft_targets_in_training_and_labels_otherwise(joined, subtests):
    """By batches at once, and image by image."""
    for policy in ("none", "randaugment"):
        with subtests.test(policy=policy):
            loader = Loader(joined, SEEN, Augment(crop_scale=None, policy=policy), batch_size=6)
            for epoch in range(2):
                for batch in loader.batches(epoch):
                    assert np.array_equal(batch.targets.numpy(), joined.soft[batch.index.numpy()])
            for batch in loader.plain_batches(4):
                assert np.array_equal(batch.targets.numpy(), joined.labels[batch.index.numpy()])


def test_mixup_blends_soft_targets(joined):
    """Against NumPy: a pair's share is the first draw of its own generator, and both get the rest of the other."""
    augment = Augment(crop_scale=None, mixup=0.4)
    for batch in Loader(joined, SEEN, augment, batch_size=6, seed=5).batches(2):
        index = batch.index.numpy()
        expected = joined.soft[index].astype(np.float64)
        for first in range(0, len(index) - 1, 2):
            share = generator(5, 2, int(index[first]), MIX).beta(0.4, 0.4)
            one, other = joined.soft[index[first]], joined.soft[index[first + 1]]
            expected[first] = share * one + (1 - share) * other
            expected[first + 1] = share * other + (1 - share) * one
        assert np.allclose(batch.targets.numpy(), expected, atol=1e-6)
        assert np.allclose(batch.targets.sum(dim=1), 1, atol=1e-5)


def test_cutmix_blends_soft_targets_by_the_area_that_is_left(joined):
    """What is left of an image is counted in its pixels; no image comes twice here, so that they can be told."""
    joined = joined.subset(range(12))
    plain = {
        int(i): image
        for batch in Loader(joined, SEEN, Augment(crop_scale=None, flip=False, pad=0), batch_size=6).batches(0)
        for i, image in zip(batch.index, batch.images, strict=True)
    }
    augment = Augment(crop_scale=None, flip=False, pad=0, cutmix=1.0)
    for batch in Loader(joined, SEEN, augment, batch_size=6).batches(0):
        index = batch.index.tolist()
        for row in range(len(index)):
            other = index[row ^ 1]
            kept = (batch.images[row] == plain[index[row]]).all(dim=0).float().mean().item()
            expected = kept * joined.soft[index[row]] + (1 - kept) * joined.soft[other]
            assert np.allclose(batch.targets[row].numpy(), expected, atol=1e-5)


def test_labels_alone_stay_as_they_were():
    source = JoinedSource([arrays(4, k).with_labels(np.arange(4) % 2, ("a", "b")) for k in (1, 2)])
    batch = next(iter(Loader(source, SEEN, Augment(crop_scale=None), batch_size=8).batches(0)))
    assert batch.targets.dtype == torch.int64
    assert np.array_equal(batch.targets.numpy(), source.labels[batch.index.numpy()])


def test_a_source_without_soft_targets_brings_its_labels(joined):
    plain = arrays(3, 4).with_labels(np.array([2, 0, 1]), joined.classes)
    both = JoinedSource([plain, joined])
    assert np.array_equal(both.soft, np.concatenate([np.eye(3)[[2, 0, 1]], joined.soft]).astype(np.float32))
    assert JoinedSource([plain, plain]).soft is None


class Backwards(ArraySource):
    """Read from its end to its start."""

    has_own_order = True

    def order(self, seed, epoch):
        return np.arange(len(self))[::-1].copy()


def test_each_source_keeps_its_own_order_and_their_turns_are_random():
    images = arrays(50, 1).images
    joined = JoinedSource([arrays(30, 2), Backwards("x", images, np.full(50, -1), ())])
    order = joined.order(0, 1)
    assert sorted(order.tolist()) == list(range(80))
    own = order[order >= 30]
    assert own.tolist() == sorted(own.tolist(), reverse=True)
    assert np.ptp(np.diff(np.flatnonzero(order >= 30))) > 0  # between those of the other, not all at once
    assert joined.order(0, 1).tolist() == order.tolist() != joined.order(0, 2).tolist()
    part = joined.subset(np.array([70, 3, 40, 50]))
    assert [i for i in part.order(0, 1) if i != 1] == [3, 2, 0]
    arrays_only = JoinedSource([arrays(30, 2), arrays(50, 1)])
    assert np.array_equal(arrays_only.order(3, 1), permutation(3, 1, 80))  # as of any other source


def test_damage_of_each_source_is_told(joined, monkeypatch):
    monkeypatch.setattr(ArraySource, "damage", lambda source: {source.where: "damaged"})
    assert set(joined.damage()) == {"made-1", "made-2"}
