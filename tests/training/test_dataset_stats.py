"""What recipes are told, and the models that they make of it."""

from dataclasses import replace

import pytest
import torch

from vitreous import UserError, ViT, ViTConfig, fit
from vitreous.config.data import Preprocess
from vitreous.config.overrides import override
from vitreous.training.recipes.supervised import DatasetStats, recipe
from vitreous.training.start import starting_network
from vitreous.weights.bundle import Bundle

BASE = ViTConfig(
    width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=3, position="sincos-2d"
)  # fmt: skip


def test_at_another_size_positions_are_those_of_the_resized_model(subtests):
    """Fixed positions lie between the cells that were trained, as `ViT.resized` has them."""
    for position in ("sincos-2d", "learned-1d"):
        with subtests.test(position=position):
            base = ViT(replace(BASE, position=position), seed=1)
            preprocess = Preprocess(size=(16, 16))
            stats = DatasetStats(5, 100, 40, 3, base=base.config, base_preprocess=preprocess, image_size=32)
            network = starting_network(recipe("notebook", stats), Bundle(base, preprocess, ("a", "b", "c")))
            assert network.config.image_size == (32, 32)
            torch.testing.assert_close(network.cell_positions((8, 8)), base.resized(32).cell_positions((8, 8)))
            images = torch.randn(2, 3, 32, 32)
            torch.testing.assert_close(
                network.eval().representation(images), base.resized(32).eval().representation(images)
            )


def test_a_notebook_gives_values_and_a_shell_gives_texts():
    training = recipe("scratch", DatasetStats(3, 100, 100, 3))
    values = {"ema": 0.9, "compile": True, "freeze": 1, "augment.crop_scale": (0.5, 1.0), "optimizer.clip": None}
    texts = {"ema": "0.9", "compile": "true", "freeze": "1", "augment.crop_scale": "[0.5, 1]", "optimizer.clip": "none"}
    assert override(training, values) == override(training, texts)
    assert override(training, values).augment.crop_scale == (0.5, 1.0)


def test_preprocessing_without_weights_is_refused():
    with pytest.raises(UserError, match="preprocess"):
        fit("builtin", preprocess="mean=0.1")


def test_the_papers_pretraining_warms_up_as_long_as_the_papers():
    """10,000 steps of ImageNet, with or without a tenth set aside; fewer where there are few images."""
    for images, expected in ((1_281_167, 10_000), (1_153_051, 10_000), (5_000, 36)):
        training = recipe("paper-pretrain", DatasetStats(1000, images, 300, 3))
        steps = training.epochs * (images // training.batch_size)
        assert round(training.optimizer.warmup * steps) == expected
