"""Two models on the same images, by examples that were computed by hand."""

import numpy as np
import pytest

from vitreous.evaluation.paired import Paired, pair_answers


def test_images_that_one_model_only_has_right_are_counted():
    first = np.array([1, 1, 1, 0, 0, 0, 1], dtype=bool)
    second = np.array([1, 0, 0, 1, 0, 0, 1], dtype=bool)
    assert pair_answers("test", first, second) == Paired("test", 7, only_first=2, only_second=1)


def test_the_interval_by_hand():
    """n + 2 = 100, cells 4.5 and 12.5: 0.08 +- 1.96 sqrt(17 - 8^2 / 100) / 100 = 0.08 +- 1.96 x 0.0404475."""
    found = Paired("test", 98, only_first=4, only_second=12)
    assert found.difference == pytest.approx(8 / 98)
    assert found.interval == pytest.approx((0.08 - 0.079275, 0.08 + 0.079275), abs=1e-5)
    assert found.told_apart
    assert not Paired("test", 98, only_first=5, only_second=12).told_apart  # 0.07 +- 1.96 x 0.0417


def test_accuracies_whose_own_intervals_overlap_may_be_told_apart():
    """500 and 520 of 1,000 right: Wilson's are 46.9 to 53.1 and 48.9 to 55.1 %. Yet no image was lost, and 20 won."""
    low, high = Paired("test", 1000, only_first=0, only_second=20).interval
    assert 0.01 < low < 0.02 < high < 0.03


def test_models_that_agree_on_all_are_not_told_apart():
    """+- 1.96 sqrt(1) / 12, not nothing."""
    assert Paired("val", 10, 0, 0).interval == pytest.approx((-0.16333, 0.16333), abs=1e-5)
