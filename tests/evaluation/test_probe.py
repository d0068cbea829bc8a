"""The linear probe, against scikit-learn's logistic regression."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from vitreous import UserError
from vitreous.evaluation.probe import fit_linear, held_out


def clouds(n=240, features=12, classes=5, spread=1.6, seed=0):
    """Overlapping clouds of points whose features have very different scales."""
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = np.random.default_rng(99).normal(size=(classes, features))
    x = (centres[labels] + spread * draw.normal(size=(n, features))) * 10.0 ** np.linspace(-2, 2, features) + 3
    return torch.from_numpy(x).float(), torch.from_numpy(labels)


def test_the_same_optimum_as_scikit_learn(subtests):
    for strength in [1e-1, 1e-2, 1e-3]:
        with subtests.test(strength=strength):
            x, y = clouds()
            probe = fit_linear(x, y, 5, weight_decays=[strength])
            scaler = StandardScaler().fit(x.double().numpy())
            reference = LogisticRegression(C=1 / (strength * len(x)), tol=1e-8, max_iter=10_000)
            reference.fit(scaler.transform(x.double().numpy()), y.numpy())
            expected = reference.predict_proba(scaler.transform(x.double().numpy()))
            np.testing.assert_allclose(probe(x).softmax(1).numpy(), expected, atol=2e-4)


def test_class_weights_have_the_optimum_of_scikit_learn():
    """The loss is a mean over weights, scikit-learn's a sum over weighted images."""
    x, y = clouds()
    weights = torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0])
    probe = fit_linear(x, y, 5, weight_decays=[1e-2], class_weights=weights)
    scaler = StandardScaler().fit(x.double().numpy())
    strength = 1e-2 * weights[y].sum().item()
    reference = LogisticRegression(
        C=1 / strength, class_weight=dict(enumerate(weights.tolist())), tol=1e-8, max_iter=10_000
    )
    reference.fit(scaler.transform(x.double().numpy()), y.numpy())
    expected = reference.predict_proba(scaler.transform(x.double().numpy()))
    np.testing.assert_allclose(probe(x).softmax(1).numpy(), expected, atol=2e-4)


def test_validation_chooses_the_regularisation():
    """With few and noisy points a strong one must win, with many a weak one, as trying each by hand says."""
    for n, spread in ((30, 2.5), (600, 0.5)):
        x, y = clouds(n=n, spread=spread)
        validation = clouds(n=1000, spread=spread, seed=1)
        strengths = [1.0, 1e-1, 1e-2, 1e-3]
        probe = fit_linear(x, y, 5, weight_decays=strengths, validation=validation)
        accuracy = {}
        for strength in strengths:
            alone = fit_linear(x, y, 5, weight_decays=[strength])
            accuracy[strength] = (alone(validation[0]).argmax(1) == validation[1]).double().mean().item()
        assert accuracy[probe.weight_decay] == pytest.approx(max(accuracy.values()), abs=2e-3)
        assert list(probe.val_accuracies) == strengths
        assert probe.val_accuracies == pytest.approx(accuracy, abs=2e-3)


def test_of_those_that_validation_cannot_tell_apart_the_strongest_is_taken():
    x, y = clouds(n=60, spread=1.5)
    for n in (40, 4000):  # a standard error of several points, and of less than one
        probe = fit_linear(x, y, 5, weight_decays=[3.0, 1e-1, 1e-3], validation=clouds(n=n, spread=1.5, seed=1))
        accuracies = list(probe.val_accuracies.values())
        error = (max(accuracies) * (1 - max(accuracies)) / n) ** 0.5
        apart = {one for one, accuracy in probe.val_accuracies.items() if accuracy < max(accuracies) - error}
        assert probe.weight_decay == max({3.0, 1e-1, 1e-3} - apart)
    assert len(set(accuracies)) > 1  # else the rule had nothing to decide


def test_a_class_without_images_and_a_feature_without_variation():
    x, y = clouds()
    x[:, 3] = 7.0
    probe = fit_linear(x, y, 6)
    assert probe.weight.shape == (6, 12)
    assert torch.isfinite(probe.weight).all()
    assert not (probe(x).argmax(1) == 5).any()
    assert probe.weight[:, 3].abs().max() < 1e-6


def test_class_weights_move_the_border():
    x, y = clouds(n=400, classes=2, spread=3.0)
    plain = fit_linear(x, y, 2)
    leaning = fit_linear(x, y, 2, class_weights=torch.tensor([1.0, 5.0]))
    assert (leaning(x).argmax(1) == 1).sum() > (plain(x).argmax(1) == 1).sum()


def test_the_same_again():
    x, y = clouds()
    assert torch.equal(fit_linear(x, y, 5).weight, fit_linear(x, y, 5).weight)


def test_mistakes():
    x, y = clouds()
    with pytest.raises(UserError, match="weight_decays="):
        fit_linear(x, y, 5, weight_decays=[])
    with pytest.raises(UserError):
        fit_linear(x[:0], y[:0], 5)
    x[0, 0] = float("inf")
    with pytest.raises(UserError):
        fit_linear(x, y, 5)


def test_held_out_is_a_share_of_each_class():
    labels = torch.tensor([0] * 20 + [1] * 3 + [2])
    held = held_out(labels, 0.2, seed=0)
    assert torch.bincount(labels[held], minlength=3).tolist() == [4, 1, 0]
    assert not torch.equal(held, held_out(labels, 0.2, seed=1))
