import json
from dataclasses import asdict

import pytest

from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.errors import UserError


def test_sizes_and_channels():
    assert Preprocess(size=96).size == (96, 96)
    assert Preprocess(crop=0.9).resized == (248, 248)  # 248.9: rounded down, as timm does
    assert Preprocess(size=(224, 448), crop=0.875).resized == (256, 512)
    assert Preprocess(mean=[0.5], std=[0.5]).channels == 1
    assert Preprocess(mean=[0.5], std=[0.5]).mean == (0.5,)


def test_they_survive_json():
    for config in (Preprocess(size=(32, 64)), Augment(), Augment(crop_scale=None, mixup=0.2), MultiCrop()):
        assert type(config)(**json.loads(json.dumps(asdict(config)))) == config


def test_mistakes_are_named(subtests):
    for kind, fields, named in (
        (Preprocess, {"size": (0, 5)}, "size="),
        (Preprocess, {"mean": (), "std": ()}, "mean="),
        (Preprocess, {"std": (0.5,)}, r"std=.*\bmean\b"),
        (Preprocess, {"std": (0.5, 0.0, 0.5)}, "std=.* 0"),
        (Preprocess, {"mean": (float("nan"), 0, 0)}, r"mean\[0\]=nan"),
        (Preprocess, {"crop": 1.5}, "crop=1.5"),
        (Preprocess, {"interpolation": "cubic"}, "interpolation='cubic': .*bicubic"),
        (Augment, {"crop_scale": (0.5, 0.2)}, "crop_scale="),
        (Augment, {"crop_scale": (0.0, 1.0)}, "crop_scale="),
        (Augment, {"crop_ratio": (2, 1)}, "crop_ratio="),
        (Augment, {"policy": "auto"}, "policy='auto': .*none, randaugment, trivial"),
        (Augment, {"magnitude": 11}, "magnitude=11: .* 0 .* 10"),
        (Augment, {"mixup": -1}, "mixup=-1: .* 0"),
        (Augment, {"erase": 1.1}, "erase=1.1"),
        (MultiCrop, {"local_scale": (0, 1)}, "local_scale="),
        (MultiCrop, {"local_size": (0, 1)}, "local_size="),
        (MultiCrop, {"global_views": 0}, "global_views=0"),
    ):
        with subtests.test(named), pytest.raises(UserError, match=named):
            kind(**fields)
