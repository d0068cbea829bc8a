"""Least squares from a few images per class, against the normal equations and scikit-learn's ridge regression."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from vitreous import UserError
from vitreous.evaluation.intervals import wilson
from vitreous.evaluation.probe import draw_shots, fit_least_squares, mean_interval


def clouds(n, features, classes=5, seed=0):
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    x = draw.normal(size=(classes, features))[labels] + draw.normal(size=(n, features))
    return torch.from_numpy(x * 10.0 ** np.linspace(-1, 1, features) + 5).float(), torch.from_numpy(labels)


def test_the_normal_equations(subtests):
    for n, features in [(40, 6), (10, 30)]:
        for strength in [1.0, 1024.0]:
            with subtests.test(n=n, features=features, strength=strength):
                x, y = clouds(n, features)
                weight, bias = fit_least_squares(x, y, 5, strength)
                raw = x.double().numpy()
                design = np.concatenate([(raw - raw.mean(0)) / (raw.std(0) + 1e-5), np.full((n, 1), 100.0)], axis=1)
                targets = np.where(np.arange(5) == y.numpy()[:, None], 1.0, -1.0)
                solved = np.linalg.inv(design.T @ design + strength * np.eye(features + 1)) @ design.T @ targets
                np.testing.assert_allclose((x @ weight.T + bias).numpy(), design @ solved, atol=2e-4)


def test_a_bias_that_is_hardly_regularised_is_almost_a_free_one():
    """With as many images of each class, a free bias is the targets' mean; scikit-learn does not regularise its."""
    x, y = clouds(200, 6)
    weight, bias = fit_least_squares(x, y, 5, strength=10.0)
    raw = x.double().numpy()
    standard = (raw - raw.mean(0)) / (raw.std(0) + 1e-5)
    reference = Ridge(alpha=10.0).fit(standard, np.where(np.arange(5) == y.numpy()[:, None], 1.0, -1.0))
    np.testing.assert_allclose((x @ weight.T + bias).numpy(), reference.predict(standard), atol=1e-3)


def test_shots_are_so_many_of_each_class_and_nested():
    labels = torch.arange(60) % 6
    drawn = draw_shots(labels, [1, 5, 10], seed=3)
    for count, index in drawn.items():
        assert torch.bincount(labels[index]).tolist() == [count] * 6
        assert len(set(index.tolist())) == 6 * count
    assert set(drawn[1].tolist()) < set(drawn[5].tolist()) < set(drawn[10].tolist())
    assert torch.equal(draw_shots(labels, [5], seed=3)[5], drawn[5])
    assert not torch.equal(draw_shots(labels, [5], seed=4)[5], drawn[5])


def test_a_class_that_no_label_names_is_left_out():
    drawn = draw_shots(torch.tensor([0, 0, 2, 2]), [2], seed=0)
    assert sorted(drawn[2].tolist()) == [0, 1, 2, 3]


def test_more_shots_than_images(subtests):
    for shots in [0, 3]:
        with subtests.test(shots=shots), pytest.raises(UserError, match=f"shots={shots}.* 1 .* 2"):
            draw_shots(torch.tensor([0, 0, 1, 1, 1]), [1, shots], seed=0)


def test_the_interval_grows_with_both_doubts():
    assert mean_interval([0.8] * 5, 100) == pytest.approx(wilson(80, 100))  # no doubt about the draw
    spread = [0.7, 0.75, 0.8, 0.85, 0.9]
    low, high = mean_interval(spread, 10**9)  # none about the judged images: Student's, by hand
    half = 2.776 * np.sqrt(0.00625) / np.sqrt(5)
    assert (low, high) == pytest.approx((0.8 - half, 0.8 + half), abs=1e-4)
    assert mean_interval(spread, 100)[0] < min(low, wilson(80, 100)[0])
    assert mean_interval([1.0] * 5, 20)[1] == 1.0
