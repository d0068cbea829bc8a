"""The neighbours' vote, against scikit-learn, DINO's formula written out, and a vote counted by hand."""

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from vitreous import UserError
from vitreous.evaluation.probe import vote_neighbours


def clouds(n, seed, classes=4, features=8, spread=1.2):
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = np.random.default_rng(99).normal(size=(classes, features))
    return torch.from_numpy(centres[labels] + spread * draw.normal(size=(n, features))).float(), torch.from_numpy(
        labels
    )


def test_against_scikit_learn(subtests):
    for k in [1, 7, 60]:
        with subtests.test(k=k):
            (known, labels), (asked, _) = clouds(60, 0), clouds(40, 1)
            votes = vote_neighbours(known, labels, asked, 4, [k])[k]
            reference = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
            reference.fit(known.numpy(), labels.numpy())
            expected = reference.predict_proba(asked.numpy())
            np.testing.assert_allclose((votes / votes.sum(1, keepdim=True)).numpy(), expected, atol=1e-5)


def test_a_vote_by_hand():
    """One very near neighbour outweighs two that are farther."""
    known = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    asked = torch.tensor([[4.0, 3.0]])  # cosines 0.8, 0.6, 0.6
    votes = vote_neighbours(known, torch.tensor([0, 1, 1]), asked, 2, [1, 3])
    assert votes[1].argmax().item() == votes[3].argmax().item() == 0
    assert votes[3][0].tolist() == pytest.approx([math.exp(0.8 / 0.07), 2 * math.exp(0.6 / 0.07)], rel=1e-4)
    assert vote_neighbours(known, torch.tensor([0, 1, 1]), asked, 2, [3], temperature=10.0)[3].argmax().item() == 1


def test_many_are_asked_in_parts(monkeypatch):
    (known, labels), (asked, _) = clouds(60, 0), clouds(40, 1)
    whole = vote_neighbours(known, labels, asked, 4, [5, 9])
    monkeypatch.setattr("vitreous.evaluation.probe.QUERY_CHUNK", 7)
    for k, votes in vote_neighbours(known, labels, asked, 4, [5, 9]).items():
        torch.testing.assert_close(votes, whole[k])


def test_mistakes(subtests):
    for neighbours in [[], [0], [61]]:
        with subtests.test(neighbours=neighbours):
            known, labels = clouds(60, 0)
            with pytest.raises(UserError, match=r"^neighbours=.* 60 "):
                vote_neighbours(known, labels, known, 4, neighbours)
