"""Features and scores over batches."""

import weakref

import numpy as np
import pytest
import torch

from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.data.builtin import builtin_data
from vitreous.data.loader import Loader
from vitreous.evaluation.features import compute_features

PREPROCESS = Preprocess(size=(28, 28), mean=(0.3,), std=(0.3,))


@pytest.fixture(scope="module")
def model():
    config = ViTConfig(
        width=32, depth=2, heads=2, mlp_width=64, patch=7, image_size=(28, 28), channels=1, classes=10, dropout=0.5
    )
    model = ViT(config)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return model.eval()


@pytest.fixture(scope="module")
def source():
    return builtin_data().splits["test"].subset(np.arange(30))


def batches(source, size):
    return Loader(source, PREPROCESS, batch_size=size).batches()


def test_all_images_in_their_order(model, source):
    scores, labels = compute_features(model, batches(source, 16), 30)
    assert scores.shape == (30, 10)
    assert scores.dtype == torch.float32
    assert labels.tolist() == source.labels.tolist()
    one, _ = compute_features(model, batches(source, 7), 30)
    torch.testing.assert_close(one, scores)


def test_features_of_a_function_with_progress(model, source):
    done = []
    features, labels = compute_features(model.representation, batches(source, 12), 30, done.append)
    assert features.shape == (30, 32)
    assert done == [12, 24, 30]
    torch.nn.functional.linear(features, torch.ones(1, 32, requires_grad=True)).sum().backward()  # can be trained on
    assert labels.dtype == torch.int64


def test_no_batches_are_refused(model):
    with pytest.raises(UserError):
        compute_features(model, [], 5)


def test_fewer_images_than_expected(model, source):
    """Some could not be read."""
    scores, labels = compute_features(model, batches(source, 16), 50)
    assert (len(scores), len(labels)) == (30, 30)


def test_what_no_memory_holds_is_refused_before_it_is_made(model, source):
    with pytest.raises(UserError, match=r"100,000,000,000,000 .* 4\.0 "):
        compute_features(model, batches(source, 16), 10**14)


def test_no_batchs_own_result_is_kept(model, source):
    """Kept, small results would pin the heap around the freed activations of their batches."""
    given = []

    def watched(images):
        assert all(kept() is None for kept in given[:-1])
        found = model(images)
        given.append(weakref.ref(found))
        return found

    compute_features(watched, batches(source, 5), 30)
    assert len(given) == 6
