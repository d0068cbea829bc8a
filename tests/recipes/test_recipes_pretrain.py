"""The real recipes of pre-training: complete for every kind of picture, and sane."""

import pytest

from vitreous import UserError
from vitreous.recipes.pretrain import PRETRAINING
from vitreous.recipes.supervised import Situation

SITUATIONS = {
    "cifar": Situation(classes=0, pictures=50_000, side=32, channels=3),
    "mnist": Situation(classes=0, pictures=60_000, side=28, channels=1),
    "photographs": Situation(classes=0, pictures=1_000, side=500, channels=3),
    "asked": Situation(classes=0, pictures=1_000, side=500, channels=3, model="S/16"),
    "sized": Situation(classes=0, pictures=1_000, side=500, channels=3, image_size=96),
}


@pytest.mark.parametrize("name", PRETRAINING)
@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_every_recipe_fits_every_situation(name, situation):
    training, method = PRETRAINING[name](situation)
    assert training.model.classes == 0
    assert training.model.channels == situation.channels
    if name != "mae":
        side = method.crops.local_size[0]
        assert side % training.model.patch == 0
        assert training.model.patch < side < training.model.image_size[0]
        assert (training.model.registers > 0) == (name == "dinov2")


def test_sizes_that_make_no_sense():
    with pytest.raises(UserError, match="give a multiple of 4"):
        PRETRAINING["dino"](Situation(classes=0, pictures=10, side=32, channels=3, image_size=30))
