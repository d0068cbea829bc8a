"""What the recipe for good weights and few images makes of a stats."""

from __future__ import annotations

from dataclasses import replace

from vitreous.config.data import Preprocess
from vitreous.config.model import preset
from vitreous.training.recipes.supervised import DatasetStats, small_data

GIVEN = DatasetStats(
    classes=37,
    images=1480,
    side=240,
    channels=3,
    base=preset("Ti/16", classes=1000),
    base_preprocess=Preprocess(size=(224, 224), crop=0.9),
)


def test_things_look_as_large_as_in_training(subtests):
    """Crops of 0.35 to 1 of the area: a mean area of 0.675, the square of 0.82."""
    for size, crop in ((96, 0.82), (None, 0.82), (256, 0.94), (288, 1.0), (384, 1.0)):
        with subtests.test(size=size, crop=crop):
            training = small_data(replace(GIVEN, image_size=size))
            assert training.preprocess.crop == crop
            assert training.augment.crop_scale == (0.35, 1.0)


def test_fewer_images_are_set_aside_where_there_is_a_test_split():
    assert small_data(GIVEN).validation == 0.1
    assert small_data(replace(GIVEN, tested=True)).validation == 0.05


def test_only_given_weights_are_a_start_to_stay_near_to():
    assert small_data(GIVEN).wise_ft_alpha == 0.5
    assert small_data(replace(GIVEN, images=50_000)).wise_ft_alpha == 1.0
    assert (
        small_data(replace(GIVEN, base=replace(GIVEN.base, classes=0))).wise_ft_alpha == 1.0
    )  # as a masked autoencoder
    alone = small_data(replace(GIVEN, base=None, base_preprocess=None))
    assert (alone.wise_ft_alpha, alone.freeze, alone.probe) == (1.0, 0, False)


def test_with_thousands_of_classes_there_is_no_classifier_on_frozen_features():
    """Its gradient has images x classes logits: of 10,000 x 10,000 in double precision, 800 MB several times."""
    assert small_data(GIVEN).probe
    assert small_data(replace(GIVEN, classes=1000, images=10_000)).probe
    many = small_data(replace(GIVEN, classes=10_000, images=10_000))
    assert not many.probe
    assert many.wise_ft_alpha == 1.0  # there is no trained classifier to stay near to
