"""What benchmarks/noisy_student.py divides, and what it makes of its cells; no training."""

import numpy as np
import pytest

import measured
import noisy_student

SETTING = noisy_student.Setting("P/4@32", 1, 0.25, 40, "soft", 0.3, 2.0, 4.0, "randaugment")


@pytest.fixture
def data(tmp_path):
    """60 training images and 4 for the test, of two classes; one test image is a training image too."""
    rng = np.random.default_rng(0)
    found = {}
    for split, count in (("train", 60), ("test", 4)):
        found[f"x_{split}"] = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        found[f"y_{split}"] = np.arange(count) % 2
    found["x_test"][0] = found["x_train"][0]
    np.savez(tmp_path / "data.npz", **found)
    return tmp_path / "data.npz"


def count(path):
    return len(np.load(path)["y_train"])


def test_another_share_or_number_of_images_has_files_of_its_own(data, tmp_path):
    first = noisy_student.divide(data, SETTING, tmp_path, 0)
    assert count(first.labelled) + count(first.unlabelled) in (39, 40)
    more = noisy_student.divide(data, SETTING._replace(share=0.5), tmp_path, 0)
    fewer = noisy_student.divide(data, SETTING._replace(images=20), tmp_path, 0)
    assert 9 <= count(first.labelled) <= 11  # a quarter of each class, rounded
    assert 19 <= count(more.labelled) <= 21
    assert count(fewer.labelled) + count(fewer.unlabelled) in (19, 20)
    assert len(np.load(first.test)["y_test"]) == 4
    copied = np.load(data)["x_train"][0]
    for parts in (first, more, fewer):
        assert not (np.load(parts.unlabelled)["x_train"] == copied).all(axis=(1, 2, 3)).any()
    assert len(first.truth) == count(first.unlabelled)
    assert np.array_equal(np.load(first.unlabelled)["y_train"], first.truth)


def cell(accuracy):
    return {"test_accuracy": accuracy, "n_test": 10_000, "n_labelled": 2250, "load_before": 0.5}


CELLS = {
    **{f"teacher/{seed}": cell(value) for seed, value in enumerate((0.50, 0.52, 0.51))},
    **{f"student/{seed}": cell(value) for seed, value in enumerate((0.60, 0.63, 0.60))},
    **{f"control/{seed}": cell(value) for seed, value in enumerate((0.60, 0.61, 0.62))},
}


def test_headlines_are_paired_by_seed():
    """Student less teacher 10, 11, 9 points: deviation 1, so seeds give 4.303 / sqrt 3 = 2.48, images 1.37."""
    found = noisy_student.summary(CELLS)
    assert found["ways"]["teacher"] == {
        "mean": pytest.approx(0.51),
        "deviation": pytest.approx(0.01),
        "seeds": 3,
        "n_test": 10_000,
    }
    ahead = found["differences"]["student minus teacher"]
    assert ahead["value"] == pytest.approx(0.10)
    assert ahead["margin"] == pytest.approx(0.0284, abs=2e-4)
    assert ahead["told_apart"]
    equal = found["differences"]["student minus control"]
    assert equal["value"] == pytest.approx(0.0, abs=1e-9)
    assert not equal["told_apart"]
    assert "student minus control-noised" not in found["differences"]


def test_the_table_of_the_page():
    found = {
        "setting": SETTING._asdict(),
        "cells": CELLS,
        "summary": noisy_student.summary(CELLS),
        "machine": {"threads": 2},
    }
    text = measured.noisy_student_table(found)
    assert "| control | 6 | 61.0 | 1.0 | 3 | 10,000 |" in text
    assert "student minus teacher: +10.0 ± 2.8 " in text
