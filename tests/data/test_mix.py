"""Mixup and CutMix in pairs: what the pixels say is what the targets say."""

from dataclasses import replace

import numpy as np
import torch

from vitreous.config.data import Augment
from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.batch_augment import mix
from vitreous.data.rng import MIX, generator

KINDS = {"mixup": Augment(mixup=0.8), "cutmix": Augment(cutmix=1.0), "both": Augment(mixup=0.8, cutmix=1.0)}


def batch(count: int = 6, epoch: int = 0) -> Batch:
    """Images of one value each, so that a share can be read from the pixels; their numbers are in no order."""
    targets = torch.arange(count)
    images = targets.float()[:, None, None, None].expand(-1, 3, 16, 16).clone()
    return Batch.of(images, targets, 7 * (targets + 1) % 31, epoch=epoch)


def test_mixup_blends_images_and_targets_by_the_same_share():
    plain, shares = batch(), set()
    for epoch in range(30):
        mixed = mix(plain, 6, Augment(mixup=0.8), seed=0, epoch=epoch)
        soft = mixed.targets
        torch.testing.assert_close(soft.sum(1), torch.ones(6))
        torch.testing.assert_close(mixed.images[:, 0, 0, 0], soft @ torch.arange(6.0))
        assert (soft > 0).sum(1).max() == 2
        assert mixed.images.shape == plain.images.shape
        assert (mixed.images == mixed.images[:, :1, :1, :1]).all()
        shares |= {round(float(share), 4) for share in soft.diagonal()[::2]}
    assert len(shares) > 85  # of 90 pairs: each has a share of its own
    assert plain.images.equal(batch().images)


def test_mixup_by_hand():
    """lambda x_1 + (1 - lambda) x_2 and the other way round, with a lambda of Beta(0.8, 0.8) for each pair."""
    plain = batch(4)
    mixed = mix(plain, 4, Augment(mixup=0.8), seed=5, epoch=2)
    one, two = (generator(5, 2, int(plain.index[first]), MIX).beta(0.8, 0.8) for first in (0, 2))
    expected = [[one, 1 - one, 0, 0], [1 - one, one, 0, 0], [0, 0, two, 1 - two], [0, 0, 1 - two, two]]
    np.testing.assert_allclose(mixed.targets, expected, atol=1e-6)
    values = [0 * one + 1 * (1 - one), 1 * one + 0 * (1 - one), 2 * two + 3 * (1 - two), 3 * two + 2 * (1 - two)]
    np.testing.assert_allclose(mixed.images[:, 1, 5, 9], values, atol=1e-6)


def test_cutmix_exchanges_one_rectangle_and_counts_its_pixels():
    plain, areas = batch(), set()
    for epoch in range(30):
        mixed = mix(plain, 6, Augment(cutmix=1.0), seed=0, epoch=epoch)
        for row in range(6):
            partner = row + 1 if row % 2 == 0 else row - 1
            foreign = mixed.images[row, 0] == partner
            assert ((mixed.images[row, 0] == row) | foreign).all()
            assert (mixed.images[row] == mixed.images[row, :1]).all()  # all channels alike
            count = int(foreign.sum())
            assert count == int(foreign.any(1).sum()) * int(foreign.any(0).sum())  # a rectangle
            expected = torch.zeros(6)
            expected[row] += 1 - count / 256
            expected[partner] += count / 256
            torch.testing.assert_close(mixed.targets[row], expected)
            areas.add(count)
        # what one lost, the other got
        assert ((mixed.images[0::2, 0] % 2 == 1) == (mixed.images[1::2, 0] % 2 == 0)).all()
    assert len(areas) > 30
    assert plain.images.equal(batch().images)


def test_nothing_changes_where_a_batch_is_divided_between_pairs(subtests):
    for augment in KINDS.values():
        with subtests.test(augment=augment):
            whole = mix(batch(10), 10, augment, seed=1, epoch=3)
            for sizes in ((2, 8), (4, 4, 2), (6, 4)):
                first = 0
                for size in sizes:
                    rows = slice(first, first + size)
                    own = Batch.of(batch(10).images[rows], batch(10).targets[rows], batch(10).index[rows])
                    part = mix(own, 10, augment, seed=1, epoch=3)
                    assert part.images.equal(whole.images[rows])
                    assert part.targets.equal(whole.targets[rows])
                    first += size


def test_of_an_odd_number_the_last_stays_itself(subtests):
    for augment in KINDS.values():
        for count in (1, 3, 7):
            with subtests.test(augment=augment, count=count):
                mixed = mix(batch(count), 8, augment, seed=0, epoch=0)
                assert mixed.images[-1].equal(batch(count).images[-1])
                assert mixed.targets[-1].tolist() == [float(k == count - 1) for k in range(8)]
                torch.testing.assert_close(mixed.targets.sum(1), torch.ones(count))
                assert all((mixed.images[row] != row).any() or augment.cutmix for row in range(count - 1))
                even = mix(batch(count + 1), 8, augment, seed=0, epoch=0)
                assert mixed.images[:-1].equal(even.images[: count - 1])


def test_one_of_both_for_each_pair_as_a_function_of_seed_epoch_and_index():
    plain, augment, cut = batch(2), KINDS["both"], 0
    for epoch in range(100):
        mixed = mix(plain, 6, augment, seed=1, epoch=epoch)
        again = mix(plain, 6, augment, seed=1, epoch=epoch)
        assert mixed.images.equal(again.images)
        assert mixed.targets.equal(again.targets)
        cut += bool((mixed.images == mixed.images.round()).all())
    assert 30 < cut < 70
    other = replace(plain, index=plain.index + 1)
    ways = [(plain, 0, 0), (plain, 1, 0), (plain, 0, 1), (other, 0, 0)]
    found = [mix(given, 6, augment, seed=seed, epoch=epoch).targets for given, seed, epoch in ways]
    assert len({soft.numpy().tobytes() for soft in found}) == 4


def test_everything_but_plain_views_and_targets_stays():
    plain = batch()
    local = ViewBatch(torch.rand(6, 2, 3, 8, 8), torch.rand(6, 2, 4), torch.rand(6, 2) < 0.5)
    mixed = mix(replace(plain, views={**plain.views, "local": local}), 6, KINDS["mixup"], seed=0, epoch=0)
    assert mixed.views["local"] is local
    assert mixed.views["image"].box.equal(plain.views["image"].box)
    assert mixed.views["image"].flipped.equal(plain.views["image"].flipped)
    assert mixed.index.equal(plain.index)
    assert mixed.keys.equal(plain.keys)
