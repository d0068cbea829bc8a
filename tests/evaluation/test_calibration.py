"""Temperature scaling, against scores whose true temperature is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from vitreous.evaluation.calibration import (
    calibration_bins,
    calibration_error_interval,
    confidence_gap,
    expected_calibration_error,
    fit_temperature,
)


def drawn(temperature, count, classes=5):
    """Scores, and labels drawn by their softmax at this temperature."""
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(count, classes))
    shares = np.exp(log_softmax(scores / temperature, axis=1))
    labels = np.array([draw.choice(classes, p=share) for share in shares])
    return torch.from_numpy(scores), torch.from_numpy(labels)


def test_it_finds_the_temperature_that_made_the_labels(subtests):
    for temperature in [1 / 0.3, 1.0, 1 / 5.0]:
        with subtests.test(temperature=temperature):
            assert fit_temperature(*drawn(temperature, 20_000)) == pytest.approx(temperature, rel=0.05)


def test_it_is_the_minimum_that_scipy_finds():
    scores, labels = drawn(0.5, 60)
    share = 1 / 61

    def loss(temperature):
        logs = log_softmax(scores.numpy() / temperature, axis=1)
        right = logs[np.arange(60), labels.numpy()]
        return -np.mean((1 - share) * right + share * logs.mean(axis=1))

    best = minimize_scalar(loss, bounds=(0.01, 100), method="bounded", options={"xatol": 1e-8}).x
    assert fit_temperature(scores, labels) == pytest.approx(best, rel=1e-3)


def test_images_that_are_all_right_do_not_ask_for_zero():
    scores = torch.eye(4).repeat(5, 1)
    assert 1 / 20 < fit_temperature(scores, torch.arange(4).repeat(5)) < 1


def sampled_bins(n, too_sure=0.0, seed=0):
    """Bins of n images by a model whose confidence is larger than its accuracy by `too_sure`, and the error."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 0.9, n)
    right = torch.from_numpy(rng.random(n) < confidence - too_sure)
    confidence = torch.from_numpy(confidence)
    return calibration_bins(confidence, right), expected_calibration_error(confidence, right)


def test_few_images_are_no_sign_that_a_model_is_overconfident(subtests):
    """A calibrated one is found guilty in 5 of 100 samples, however few images there are."""
    for n in (20, 200):
        with subtests.test(n=n):
            guilty = [confidence_gap(sampled_bins(n, seed=seed)[0]).significant for seed in range(300)]
            assert 0.01 < np.mean(guilty) < 0.1
    for seed in range(20):
        assert confidence_gap(sampled_bins(3000, 0.1, seed)[0]).value == pytest.approx(0.1, abs=0.03)
        assert confidence_gap(sampled_bins(3000, 0.1, seed)[0]).significant


def test_the_interval_of_the_calibration_error_holds_the_true_one():
    for n, too_sure in ((100, 0.0), (100, 0.2), (2000, 0.1)):
        found = [calibration_error_interval(sampled_bins(n, too_sure, seed)[0]) for seed in range(200)]
        assert np.mean([low - 1e-9 <= too_sure <= high for low, high in found]) > 0.85, (n, too_sure)
    (low, high), error = calibration_error_interval(sampled_bins(2000, 0.1)[0]), sampled_bins(2000, 0.1)[1]
    assert low < error < high < low + 0.1
