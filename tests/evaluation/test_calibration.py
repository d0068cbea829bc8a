"""Temperature scaling, against scores whose true temperature is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from vitreous.evaluation.calibration import fit_temperature


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
