"""What is predicted is what the logits say, for one image, a batch or a grid, and among equals the first class."""

import numpy as np
import pytest
import torch

from vitreous.model.predictions import class_probabilities, is_right, predicted_class, ranked_classes

LOGITS = torch.tensor([[1.0, 3.0, 3.0], [0.5, -1.0, 0.0]])


def test_the_predicted_class_is_the_first_of_the_highest():
    assert predicted_class(LOGITS).tolist() == predicted_class(LOGITS.numpy()).tolist() == [1, 0]
    assert is_right(LOGITS, torch.tensor([2, 0])).tolist() == [False, True]
    assert predicted_class(LOGITS.expand(4, 2, 3)).shape == (4, 2)


def test_probabilities_are_the_softmax_in_the_logits_type():
    for kind in (torch.float32, torch.float64):
        found = class_probabilities(LOGITS.to(kind))
        exact = np.exp(LOGITS.double().numpy())
        assert found.dtype == kind
        np.testing.assert_allclose(found.numpy(), exact / exact.sum(axis=1, keepdims=True), rtol=1e-6)


def test_the_likeliest_classes_come_first_and_there_are_no_more_than_the_model_has():
    assert ranked_classes(LOGITS[1], 2) == [(0, pytest.approx(0.5)), (2, pytest.approx(0.0))]
    assert len(ranked_classes(LOGITS[1], 9)) == 3
