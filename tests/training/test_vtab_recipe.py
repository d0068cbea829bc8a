"""The paper's fine-tuning for VTAB-1k: every value of appendix B.1.1 and table 4."""

from dataclasses import replace

from vitreous.config.data import Preprocess
from vitreous.config.model import preset
from vitreous.training.recipes.supervised import DatasetStats, recipe

GIVEN = DatasetStats(
    classes=37,
    images=1000,
    side=240,
    channels=3,
    base=preset("Ti/16", classes=1000),
    base_preprocess=Preprocess(size=(224, 224), crop=0.9),
)


def test_table_4():
    training = recipe("vtab", GIVEN)
    optimizer = training.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.learning_rate) == ("sgd", 0.9, 0.01)
    assert (optimizer.decay, optimizer.weight_decay, optimizer.clip) == ("cosine", 0.0, 1.0)
    assert training.batch_size == 512
    assert training.epochs * (1000 // 512) == 2500  # steps: an epoch of 1,000 images is one whole batch
    assert training.model.image_size == (384, 384)
    assert (training.preprocess.size, training.preprocess.crop) == ((384, 384), 1.0)
    assert training.model.classes == 37


def test_another_resolution(subtests):
    """A side of whole patches; or the one that was asked for."""
    for base, size, side in (("H/14", None, 378), ("Ti/16", 224, 224)):
        with subtests.test(base=base, size=size, side=side):
            training = recipe("vtab", replace(GIVEN, base=preset(base, classes=1000), image_size=size))
            assert training.model.image_size == (side, side)
