"""The plan of a budget measures the very steps that the training then takes."""

from dataclasses import replace

import numpy as np
import torch

from vitreous import ViT, ViTConfig
from vitreous.config.data import Augment, Preprocess
from vitreous.config.objective import Supervised
from vitreous.config.train import Optimizer, Training
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.objectives.build import build_objective
from vitreous.objectives.setting import Setting
from vitreous.run import budget
from vitreous.run.budget import plan
from vitreous.train import loop
from vitreous.train.loop import Loop
from vitreous.train.meter import Meter
from vitreous.train.pace import Pace
from vitreous.world import World

MODEL = ViTConfig(width=16, depth=1, heads=2, mlp_width=16, patch=4, image_size=(8, 8), classes=2)
TRAINING = Training(
    model=MODEL,
    preprocess=Preprocess(size=(8, 8)),
    objective=Supervised(keep_schedule=((0.5, 0.5),)),
    augment=Augment(),
    optimizer=Optimizer(clip=0.125),
    batch_size=4,
)


def make(training=TRAINING):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8))
    source = ArraySource("noise", images, np.arange(12) % 2, ("a", "b"))
    loader = Loader(source, training.preprocess, training.augment, batch_size=training.batch_size)
    return build_objective(ViT(MODEL), training.objective, Setting()), loader


def test_it_clips_as_the_training_does(tmp_path, monkeypatch):
    norms, taken = [], []
    clip, step = torch.nn.utils.clip_grad_norm_, loop.train_step

    def counted_clip(parameters, norm, **more):
        norms.append(norm)
        return clip(parameters, norm, **more)

    def counted_step(learner, *more):
        taken.append(learner.training.optimizer.clip)
        return step(learner, *more)

    assert budget.train_step is loop.train_step
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", counted_clip)
    for room in (budget, loop):
        monkeypatch.setattr(room, "train_step", counted_step)
    objective, loader = make()
    planned, table = plan(TRAINING, objective, loader, None, world=World(), meter=Meter(), deadline=60, ending=0)
    assert len(table.stages) == 2
    measured = len(taken)
    assert measured >= 4  # in each stage one to warm up, and one at least
    Loop(objective, loader, replace(planned, epochs=1), Pace(3), tmp_path, evaluate=None).run()
    assert len(taken) == measured + 3
    assert norms == taken == [0.125] * len(taken)


def test_it_spoils_nothing():
    objective, loader = make()
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    plan(TRAINING, objective, loader, lambda found: None, world=World(), meter=Meter(), deadline=60, ending=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in objective.state_dict().items())
    assert all(parameter.grad is None for parameter in objective.parameters())
