"""How sure a classifier should be, against scores whose true factor is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from vitreous.evaluate.sureness import fit_sureness


def drawn(factor, count, classes=5):
    """Scores, and labels drawn by their softmax after multiplication with the factor."""
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(count, classes))
    shares = np.exp(log_softmax(factor * scores, axis=1))
    labels = np.array([draw.choice(classes, p=share) for share in shares])
    return torch.from_numpy(scores), torch.from_numpy(labels)


@pytest.mark.parametrize("factor", [0.3, 1.0, 5.0])
def test_it_finds_the_factor_that_made_the_labels(factor):
    assert fit_sureness(*drawn(factor, 20_000)) == pytest.approx(factor, rel=0.05)


def test_it_is_the_minimum_that_scipy_finds():
    scores, labels = drawn(2.0, 60)
    share = 1 / 61

    def loss(factor):
        logs = log_softmax(factor * scores.numpy(), axis=1)
        right = logs[np.arange(60), labels.numpy()]
        return -np.mean((1 - share) * right + share * logs.mean(axis=1))

    best = minimize_scalar(loss, bounds=(0.01, 100), method="bounded", options={"xatol": 1e-8}).x
    assert fit_sureness(scores, labels) == pytest.approx(best, rel=1e-3)


def test_pictures_that_are_all_right_do_not_ask_for_infinity():
    scores = torch.eye(4).repeat(5, 1)
    assert 1 < fit_sureness(scores, torch.arange(4).repeat(5)) < 20
