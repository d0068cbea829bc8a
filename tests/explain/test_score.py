"""Deletion, insertion, energy, pointing and IoU against plain loops and hand-made examples."""

import numpy as np
import pytest
import torch

from support.tiny_models import random_images, random_model
from vitreous.config.data import Preprocess
from vitreous.explain.patch_geometry import place_patches
from vitreous.explain.score import FRACTIONS, bootstrap_intervals, centre_map, centre_patches, localise, removal_curves


def test_a_hand_made_map():
    map = np.array([[4.0, 3.0], [2.0, 1.0]])
    found = localise(map, np.array([[True, False], [True, False]]))
    assert found.energy == 0.6
    assert found.pointing == 1
    assert found.iou == pytest.approx(2 / 3), "all above 1.5: three pixels, two of them right"


def test_iou_is_that_of_the_best_cut(subtests):
    """Every possible cut, one after the other; few heights, so that many pixels are equal."""
    for seed in range(5):
        with subtests.test(seed=seed):
            rng = np.random.default_rng(seed)
            map, mask = rng.integers(0, 6, (8, 9)).astype(float), rng.random((8, 9)) < 0.4
            best = max(((map >= height) & mask).sum() / ((map >= height) | mask).sum() for height in np.unique(map))
            found = localise(map, mask)
            assert found.iou == pytest.approx(best)
            assert found.pointing == pytest.approx(mask[map == map.max()].mean())


def test_an_even_map_scores_as_the_masks_area():
    mask = np.zeros((10, 10), bool)
    mask[:3] = True
    assert localise(np.ones((10, 10)), mask) == pytest.approx((0.3, 0.3, 0.3))
    assert localise(np.zeros((10, 10)), mask).energy == 0.3, "a map of nothing is even too"


def test_curves_leave_patches_out():
    model = random_model()
    images = random_images(model)
    order = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    targets = torch.tensor([1, 3])
    deletion, insertion = removal_curves(model, images, order, targets)
    assert deletion.shape == insertion.shape == (2, len(FRACTIONS))
    with torch.no_grad():
        for b in range(2):
            for s, taken in enumerate((1, 4, 6, 8, 11)):
                for curve, kept in ((deletion, order[b, taken:]), (insertion, order[b, :taken])):
                    chance = model(images[b : b + 1], keep_ids=kept[None]).softmax(1)[0, targets[b]]
                    assert curve[b, s].item() == pytest.approx(chance.item(), abs=1e-6)


def test_intervals_are_those_of_a_normal_mean():
    """Of many images, the bootstrap's percentiles are the mean and 1.96 standard errors to either side."""
    values = np.random.default_rng(0).normal(size=(400, 2)) * (1, 3)
    found = bootstrap_intervals(values)
    for (low, high), column in zip(found, values.T, strict=True):
        error = column.std() / 20
        assert low == pytest.approx(column.mean() - 1.96 * error, abs=0.2 * error)
        assert high == pytest.approx(column.mean() + 1.96 * error, abs=0.2 * error)
    assert bootstrap_intervals(values) == found
    assert bootstrap_intervals(np.ones((3, 1))) == [(1, 1)]


def test_the_baselines_are_gaussians_of_a_quarter_side():
    place = place_patches(30, 60, Preprocess(size=(16, 16)), patch=4)  # sees the middle 30x30
    whole, seen = centre_map(place), centre_map(place, seen=True)
    assert whole.shape == (30, 60)
    assert whole[15, 44] / whole[15, 30] == pytest.approx(np.exp(-((14.5**2 - 0.5**2) / 15**2) / 2), rel=1e-5)
    assert seen[15, 10] == 0
    assert seen[15, 37] / seen[15, 30] == pytest.approx(np.exp(-((7.5**2 - 0.5**2) / 7.5**2) / 2), rel=1e-5)
    patches = centre_patches(place)
    assert patches.shape == (4, 4)
    assert patches[0, 1] / patches[1, 1] == pytest.approx(np.exp(-((11.25**2 - 3.75**2) / 7.5**2) / 2), rel=1e-5)
