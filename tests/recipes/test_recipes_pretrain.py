"""The real recipes of pre-training: complete for every kind of picture, and sane."""

import numpy as np
import pytest
import torch

from vitreous import UserError, ViT
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.jobs.pretrain import build_objective
from vitreous.objectives.collapse import TELLS
from vitreous.recipes.pretrain import PRETRAINING
from vitreous.recipes.supervised import Situation
from vitreous.train.optimizer import make_optimizers

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


@pytest.mark.parametrize("name", PRETRAINING)
def test_every_recipe_takes_its_first_steps(name):
    training, method = PRETRAINING[name](SITUATIONS["cifar"])
    draw = torch.Generator().manual_seed(0)
    colours, noise = torch.rand(8, 3, 1, 1, generator=draw), torch.rand(8, 3, 32, 32, generator=draw)
    pictures = (255 * (0.8 * colours + 0.2 * noise)).to(torch.uint8)
    source = ArraySource("some", pictures, np.full(8, -1), ())
    crops = None if name == "mae" else method.crops
    loader = Loader(source, training.preprocess, training.augment, batch_size=8, crops=crops, shuffle=True)
    objective = build_objective(ViT(training.model, seed=0), method, 0).train()
    optimizers = make_optimizers(objective, training.optimizer)
    before = {name: p.clone() for name, p in objective.named_parameters()}
    for progress, batch in zip((0.5, 0.6), (next(loader.batches(epoch)) for epoch in range(2)), strict=True):
        loss, figures = objective(batch, progress)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        objective.after_step(progress)
        assert loss.isfinite()
        assert figures.get("information", 1.0) > TELLS
    learned = {name for name, p in objective.named_parameters() if not p.equal(before[name])}
    assert len(learned) > 0.9 * len(before)


def test_sizes_that_make_no_sense():
    with pytest.raises(UserError, match="give a multiple of 4"):
        PRETRAINING["dino"](Situation(classes=0, pictures=10, side=32, channels=3, image_size=30))
