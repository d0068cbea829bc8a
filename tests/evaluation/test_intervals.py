"""Means, spreads and verdicts against NumPy, SciPy and examples by hand."""

import re
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from vitreous.evaluation.intervals import STUDENT_T_95, Accuracies, Paired, Verdict, difference, gap_change, rank_models


def by_seed(*values):
    return dict(enumerate(values))


def test_mean_and_deviation_are_those_of_a_sample():
    values = np.random.default_rng(0).uniform(0.4, 0.6, 5)
    found = Accuracies(by_seed(*values), 1000)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-15)
    assert found.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-15)
    seeds = stats.t.ppf(0.975, 4) * stats.sem(values)
    images = stats.norm.ppf(0.975) * np.sqrt(found.mean * (1 - found.mean) / 1000)
    half = np.hypot(seeds, images)
    assert found.interval == pytest.approx((found.mean - half, found.mean + half), abs=2e-4)  # t has three digits


def test_students_table():
    assert pytest.approx([stats.t.ppf(0.975, freedom) for freedom in range(1, 31)], abs=5e-4) == STUDENT_T_95


def test_an_interval_stays_among_shares():
    low, high = Accuracies(by_seed(0.98, 1.0), 50).interval
    assert 0 <= low < 0.99 < high == 1


def test_seeds_that_agree_do_not_make_few_images_many(subtests):
    for share in [0.0, 1.0]:
        with subtests.test(share=share):
            one, three = Accuracies(by_seed(share), 20).interval, Accuracies(by_seed(share, share, share), 20).interval
            assert three == pytest.approx(one)
            assert three[1] - three[0] == pytest.approx(0.1611, abs=1e-4)  # Wilson's, of none or all of twenty


def test_one_training_has_no_deviation_and_the_interval_of_its_images():
    found = Accuracies(by_seed(0.5), 100)
    assert found.deviation is None
    assert found.interval == pytest.approx((0.4038, 0.5962), abs=1e-4)  # Wilson's, from its published tables


def test_trainings_with_one_seed_are_compared_in_pairs():
    # the seeds differ by twenty points, the pairs by exactly two: which seed it is explains all of the spread
    one, other = Accuracies(by_seed(0.5, 0.6, 0.7), 10**9), Accuracies(by_seed(0.48, 0.58, 0.68), 10**9)
    found = difference(one, other)
    assert found.value == pytest.approx(0.02)
    assert found.margin < 1e-4
    assert found.significant
    # in another order the pairs differ, and the same means cannot be told apart
    assert not difference(one, Accuracies(by_seed(0.68, 0.48, 0.58), 10**9)).significant


def test_few_images_tell_nothing_apart():
    def told(n):
        return difference(Accuracies(by_seed(0.52, 0.52, 0.52), n), Accuracies(by_seed(0.5, 0.5, 0.5), n)).significant

    assert not told(1000)  # 1.96 x sqrt(0.4996 / 1000) = 4.4 points
    assert told(10_000)  # 1.4 points


def test_one_seed_is_never_ahead_but_a_finished_model_may_be():
    high, low = Accuracies({0: 0.9}, 10_000), Accuracies({0: 0.5}, 10_000)
    assert difference(high, low).margin is None
    assert not difference(high, low).significant
    fixed = Accuracies({0: 0.9}, 10_000, trained=False)
    assert not difference(fixed, low).significant
    assert difference(fixed, Accuracies({0: 0.5}, 10_000, trained=False)).significant
    assert difference(fixed, Accuracies(by_seed(0.5, 0.51, 0.52), 10_000)).significant


def test_only_seeds_that_both_have_are_compared():
    one, other = Accuracies({0: 0.5, 1: 0.6, 2: 0.99}, 10**9), Accuracies({0: 0.4, 1: 0.5}, 10**9)
    assert difference(one, other).value == pytest.approx(0.1)


def test_verdicts():
    a, b, c = (Accuracies(by_seed(m - 0.01, m, m + 0.01), 10_000) for m in (0.8, 0.6, 0.4))
    wide = Accuracies(by_seed(0.3, 0.6, 0.9), 10_000)
    for accuracies, tiers in (
        ({"B": b, "A": a, "C": c}, (("A",), ("B",), ("C",))),
        ({"A": a, "W": wide}, (("A", "W"),)),
        ({"C": c, "B": b, "D": b}, (("B", "D"), ("C",))),
        ({"A": a}, (("A",),)),
    ):
        verdict = rank_models(accuracies)
        assert verdict.tiers == tiers
        assert named(verdict) == "".join(name for tier in tiers for name in tier)
    assert str(rank_models({"A": a, "B": b})) != str(rank_models({"A": a, "B": wide})), (
        "the sentence tells a lead from none"
    )


def named(verdict):
    """The models in the order in which the sentence names them."""
    return "".join(re.findall(r"\b[A-Z]\b", str(verdict)))


def seeded(low, high):
    """The mean is between them, and the seeds make up all of the margin: 4.303 x (high - low) / 2 / sqrt(3)."""
    return Accuracies({0: low, 1: (low + high) / 2, 2: high}, 10**9)


def test_a_verdict_says_nothing_false_of_models_behind_a_wide_one():
    """A has the highest mean and a wide spread: level with B and with C, of which one is clearly ahead."""
    verdict = rank_models({"A": seeded(0.3, 1.0), "B": seeded(0.59, 0.61), "C": seeded(0.49, 0.51)})
    assert verdict.ahead == (("B", "C"),)
    assert verdict.groups == (("A", "B"), ("A", "C"))
    assert verdict.tiers is None
    assert named(verdict) == "BC" + "AB" + "AC"  # who is ahead of whom, then the groups
    assert verdict.pairs == 3


def test_a_verdict_says_nothing_false_of_a_model_in_between():
    """A and B are level, B and C are level, and A is ahead of C."""
    a, c = seeded(0.59, 0.61), seeded(0.49, 0.51)
    b = Accuracies({0: 0.65, 1: 0.45, 2: 0.54}, 10**9)
    verdict = rank_models({"C": c, "B": b, "A": a})
    assert verdict.ahead == (("A", "C"),)
    assert named(verdict) == "AC" + "AB" + "BC"
    assert verdict.tiers is None


def test_groups_that_cross_are_told_pair_by_pair():
    verdict = Verdict(("A", "B", "C"), (("A", "B"), ("B", "C")))  # A and C are level all the same
    assert verdict.groups == (("A", "C"), ("B",))
    assert named(verdict) == "AB" + "BC" + "AC"


def test_groups_are_the_largest_sets_of_which_no_two_are_told_apart(subtests):
    for seed in range(20):
        with subtests.test(seed=seed):
            names = "ABCDEF"
            draw = np.random.default_rng(seed)
            ahead = tuple(pair for pair in combinations(names, 2) if draw.random() < 0.5)
            level = [
                set(some)
                for count in range(1, 7)
                for some in combinations(names, count)
                if not any(pair in ahead for pair in combinations(some, 2))
            ]
            expected = {frozenset(one) for one in level if not any(one < other for other in level)}
            assert {frozenset(group) for group in Verdict(tuple(names), ahead).groups} == expected


def test_whether_a_gap_closes_is_a_difference_of_differences_by_seed():
    few = Accuracies(by_seed(0.50, 0.52, 0.54), 10_000), Accuracies(by_seed(0.40, 0.43, 0.43), 10_000)
    many = Accuracies(by_seed(0.80, 0.81, 0.82), 10_000), Accuracies(by_seed(0.78, 0.80, 0.79), 10_000)
    found = gap_change(few, many)
    each = np.array([0.10, 0.09, 0.11]) - np.array([0.02, 0.01, 0.03])
    assert found.value == pytest.approx(each.mean())
    images = sum(p * (1 - p) / 10_000 for p in (0.52, 0.42, 0.81, 0.79))
    seeds = stats.t.ppf(0.975, 2) * stats.sem(each)
    assert found.margin == pytest.approx(np.hypot(seeds, stats.norm.ppf(0.975) * np.sqrt(images)), abs=1e-5)
    assert found.significant
    one = gap_change(*((Accuracies({0: a}, 10_000), Accuracies({0: b}, 10_000)) for a, b in ((0.5, 0.4), (0.8, 0.8))))
    assert one.value == pytest.approx(0.1)
    assert not one.significant  # one seed


def test_images_that_one_model_only_has_right_are_counted():
    first = np.array([1, 1, 1, 0, 0, 0, 1], dtype=bool)
    second = np.array([1, 0, 0, 1, 0, 0, 1], dtype=bool)
    assert Paired.of("test", first, second) == Paired("test", 7, only_first=2, only_second=1)


def test_the_interval_by_hand():
    """n + 2 = 100, cells 4.5 and 12.5: 0.08 +- 1.96 sqrt(17 - 8^2 / 100) / 100 = 0.08 +- 1.96 x 0.0404475."""
    found = Paired("test", 98, only_first=4, only_second=12)
    assert found.difference == pytest.approx(8 / 98)
    assert found.interval == pytest.approx((0.08 - 0.079275, 0.08 + 0.079275), abs=1e-5)
    assert found.significant
    assert not Paired("test", 98, only_first=5, only_second=12).significant  # 0.07 +- 1.96 x 0.0417


def test_accuracies_whose_own_intervals_overlap_may_be_told_apart():
    """500 and 520 of 1,000 right: Wilson's are 46.9 to 53.1 and 48.9 to 55.1 %. Yet no image was lost, and 20 won."""
    low, high = Paired("test", 1000, only_first=0, only_second=20).interval
    assert 0.01 < low < 0.02 < high < 0.03


def test_models_that_agree_on_all_are_not_told_apart():
    """+- 1.96 sqrt(1) / 12, not nothing."""
    assert Paired("val", 10, 0, 0).interval == pytest.approx((-0.16333, 0.16333), abs=1e-5)
