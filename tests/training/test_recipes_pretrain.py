"""The real recipes of pre-training: complete for every kind of image, and sane."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from vitreous import UserError, ViT
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.objectives.build import build_objective
from vitreous.objectives.collapse import MIN_INFORMATION
from vitreous.objectives.objective import Setting
from vitreous.training.folder import training_from_json, training_to_json
from vitreous.training.recipes.pretrain import PRETRAINING
from vitreous.training.recipes.supervised import DatasetStats
from vitreous.training.step import make_optimizers

SITUATIONS = {
    "cifar": DatasetStats(classes=0, images=50_000, side=32, channels=3),
    "mnist": DatasetStats(classes=0, images=60_000, side=28, channels=1),
    "photographs": DatasetStats(classes=0, images=1_000, side=500, channels=3),
    "asked": DatasetStats(classes=0, images=1_000, side=500, channels=3, model="S/16"),
    "sized": DatasetStats(classes=0, images=1_000, side=500, channels=3, image_size=96),
}


def test_every_recipe_fits_every_situation(subtests):
    for name, (title, stats) in product(PRETRAINING, SITUATIONS.items()):
        with subtests.test(title, name=name):
            training = PRETRAINING[name](stats)
            assert training.model.classes == 0
            assert training.model.channels == stats.channels
            assert training.objective.kind == name.removesuffix("v2")
            if training.objective.kind == "dino":
                side = training.objective.crops.local_size[0]
                assert side % training.model.patch == 0
                assert training.model.patch < side < training.model.image_size[0]
                assert (training.model.registers > 0) == (name == "dinov2")
            kept = json.loads(json.dumps(training_to_json(training)))
            assert training_from_json(kept, Path("config.json")) == training


def test_every_recipe_takes_its_first_steps(subtests):
    for name in PRETRAINING:
        with subtests.test(name=name):
            training = PRETRAINING[name](SITUATIONS["cifar"])
            draw = torch.Generator().manual_seed(0)
            colours, noise = torch.rand(8, 3, 1, 1, generator=draw), torch.rand(8, 3, 32, 32, generator=draw)
            images = (255 * (0.8 * colours + 0.2 * noise)).to(torch.uint8)
            source = ArraySource("some", images, np.full(8, -1), ())
            views = training.objective.views
            loader = Loader(source, training.preprocess, training.augment, batch_size=8, views=views, shuffle=True)
            objective = build_objective(ViT(training.model, seed=0), training.objective, Setting()).train()
            optimizers = make_optimizers(objective, training.optimizer)
            before = {name: p.clone() for name, p in objective.named_parameters()}
            for progress, batch in zip((0.5, 0.6), (next(loader.batches(epoch)) for epoch in range(2)), strict=True):
                loss, metrics = objective(batch, progress)
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                objective.after_step(progress)
                assert loss.isfinite()
                assert metrics.get("information", 1.0) > MIN_INFORMATION
            learned = {name for name, p in objective.named_parameters() if not p.equal(before[name])}
            assert len(learned) > 0.9 * len(before)


def test_what_dinov2_adds():
    plain, more = (PRETRAINING[name](SITUATIONS["cifar"]).objective for name in ("dino", "dinov2"))
    assert (plain.koleo_weight, plain.ibot_weight) == (0.0, 0.0)
    assert (more.koleo_weight, more.ibot_weight, more.keep) == (0.1, 1.0, 1.0)
    assert plain.sinkhorn_iterations == more.sinkhorn_iterations == 3


def test_sizes_that_make_no_sense():
    with pytest.raises(UserError, match=r"30.*4"):
        PRETRAINING["dino"](DatasetStats(classes=0, images=10, side=32, channels=3, image_size=30))
