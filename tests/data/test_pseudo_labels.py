"""Which labels a student learns from, by examples that were computed by hand."""

import numpy as np

from vitreous.data.pseudo_labels import MAX_REPEATS, choose_labels

THREE = np.array(
    [
        # cat, dog, owl
        [0.90, 0.05, 0.05],  # 0 cat, surest
        [0.50, 0.30, 0.20],  # 1 cat, fourth
        [0.80, 0.10, 0.10],  # 2 cat, second
        [0.38, 0.31, 0.31],  # 3 cat, not sure enough for 0.4
        [0.60, 0.20, 0.20],  # 4 cat, third
        [0.20, 0.70, 0.10],  # 5 dog, the only one
        [0.10, 0.35, 0.55],  # 6 owl, second
        [0.00, 0.00, 1.00],  # 7 owl, surest
    ],
    dtype=np.float32,
)


def test_as_many_of_each_class_the_surest_first():
    """7 labels are sure enough, so ceil(7 / 3) = 3 of each: three cats of four, the dog three times, owls 2 + 1."""
    choice = choose_labels(THREE, confidence=0.4)
    assert choice.labels.tolist() == [0, 0, 0, 0, 0, 1, 2, 2]
    assert choice.confident.tolist() == [4, 1, 2]
    assert choice.each == 3
    assert choice.repeats.tolist() == [1, 0, 1, 0, 1, 3, 1, 2]
    assert choice.rows.tolist() == [0, 2, 4, 5, 5, 5, 6, 7, 7]
    assert choice.taken(3).tolist() == [3, 1, 2]


def test_copies_end_somewhere():
    """Of 9 wanted, the one dog comes 3 times, two owls 6 times, four cats 9 times: the surest cat once more."""
    choice = choose_labels(THREE, confidence=0.4, each=9)
    assert MAX_REPEATS == 3
    assert choice.repeats.tolist() == [3, 2, 2, 0, 2, 3, 3, 3]


def test_fewer_than_there_are():
    choice = choose_labels(THREE, confidence=0.0, each=1)
    assert choice.repeats.tolist() == [1, 0, 0, 0, 0, 1, 0, 1]


def test_of_equals_the_first_is_taken_and_the_bound_counts_as_sure():
    same = np.array([[0.5, 0.5], [0.5, 0.5], [0.25, 0.75]], dtype=np.float32)
    choice = choose_labels(same, confidence=0.5, each=1)
    assert choice.labels.tolist() == [0, 0, 1]
    assert choice.repeats.tolist() == [1, 0, 1]


def test_all_of_one_class_and_none_at_all():
    one = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], dtype=np.float32)
    assert choose_labels(one, confidence=0.3).repeats.tolist() == [1, 1, 0]
    assert not choose_labels(one, confidence=0.95).repeats.any()


def test_no_class_has_more_than_another_that_could_have_as_many(subtests):
    """Of each class so many sure labels, from 0.99 downwards, and one more that is not sure enough."""
    for sure, each, counts in (
        ((5, 1), 3, [3, 3]),  # ceil(6 / 2): the single one three times
        ((8, 1), 5, [5, 3]),  # the single one cannot come five times
        ((10, 2, 1, 0), 4, [4, 4, 3, 0]),  # ceil(13 / 4)
        ((4, 4, 4), 4, [4, 4, 4]),
    ):
        with subtests.test(sure=sure):
            classes = len(sure)
            rows = []
            for label, many in enumerate(sure):
                for probability in [0.99 - 0.01 * k for k in range(many)] + [0.6]:
                    row = [(1 - probability) / (classes - 1)] * classes
                    row[label] = probability
                    rows.append(row)
            choice = choose_labels(np.array(rows, dtype=np.float32), confidence=0.7)
            assert choice.each == each
            assert np.bincount(choice.labels, weights=choice.repeats, minlength=classes).tolist() == counts
