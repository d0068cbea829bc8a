"""The plan of a budget measures the very steps that the training then takes."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitreous import ViT, ViTConfig
from vitreous.config.data import Augment, Preprocess
from vitreous.config.objective import Supervised
from vitreous.config.train import Optimizer, Training
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Setting
from vitreous.training import deadline as budget
from vitreous.training import loop
from vitreous.training.deadline import Reserved, plan_steps
from vitreous.training.loop import Loop
from vitreous.training.step import StepSchedule

MODEL = ViTConfig(width=16, depth=1, heads=2, mlp_width=16, patch=4, image_size=(8, 8), classes=2)
TRAINING = Training(
    model=MODEL,
    preprocess=Preprocess(size=(8, 8)),
    objective=Supervised(keep_schedule=((0.5, 0.5),)),
    augment=Augment(),
    optimizer=Optimizer(clip=0.125),
    batch_size=4,
)

FREE = Reserved(ending=0, evaluation=0, all_evaluations=0)


def make(training=TRAINING):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8))
    source = ArraySource("noise", images, np.arange(12) % 2, ("a", "b"))
    loader = Loader(source, training.preprocess, training.augment, batch_size=training.batch_size)
    return build_objective(ViT(MODEL), training.objective, Setting()), loader


class Stopped:
    """A deadline whose clock does not move."""

    def __init__(self, seconds):
        self.seconds = seconds

    def now(self):
        return 10.0


@pytest.fixture
def ticking(monkeypatch):
    """A tenth of a second passes whenever the plan looks at its clock."""
    ticks = count(0.0, 0.1)
    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))


def test_it_clips_as_the_training_does(tmp_path, monkeypatch, ticking):
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
    planned, table = plan_steps(TRAINING, objective, loader, FREE, Stopped(60))
    assert len(table.stages) == 2
    measured = len(taken)
    assert measured >= 4  # in each stage one to warm up, and one at least
    Loop(objective, loader, replace(planned, epochs=1), StepSchedule(3), tmp_path, evaluate=None).run()
    assert len(taken) == measured + 3
    assert norms == taken == [0.125] * len(taken)


def test_it_spoils_nothing(ticking):
    objective, loader = make()
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    plan_steps(TRAINING, objective, loader, FREE, Stopped(60))
    assert all(torch.equal(tensor, before[name]) for name, tensor in objective.state_dict().items())
    assert all(parameter.grad is None for parameter in objective.parameters())


def steps_of(planned, loader):
    return round(planned.epochs * loader.steps_per_epoch)


def planned(monkeypatch, deadline, each=1.0, **fields):
    """What is planned where a step takes a second."""
    monkeypatch.setattr(budget, "step_seconds", lambda learner, batches, progress, seconds: each)
    objective, loader = make()
    reserved = Reserved(**{"ending": 5.0, "evaluation": 2.0, "all_evaluations": 20.0, **fields})
    found, table = plan_steps(TRAINING, objective, loader, reserved, Stopped(deadline))
    return found, table, steps_of(found, loader)


def test_steps_and_evaluations_fill_the_time(monkeypatch):
    found, table, steps = planned(monkeypatch, deadline=115)
    assert found.evaluations == table.evaluations == 10
    assert steps == 77  # 0.97 of 100 s, less ten evaluations
    assert planned(monkeypatch, deadline=115, all_evaluations=7.0)[0].evaluations == 3
    found, table, steps = planned(monkeypatch, deadline=115, all_evaluations=7.0, fixed=True)
    assert (found.evaluations, table.evaluations, steps) == (10, 10, 77)  # as many as asked for, whatever they take
    assert table.deadline <= 115


def test_with_a_good_start_too_few_steps_are_none(monkeypatch):
    assert planned(monkeypatch, deadline=15 + 20, min_steps=10)[2] >= 10
    found, table, steps = planned(monkeypatch, deadline=15 + 10, min_steps=10)
    assert (found.epochs, table, steps) == (0, None, 0)


def test_from_nothing_at_least_one_step(monkeypatch):
    for deadline in (0.1, 15.0, 16.0):
        assert planned(monkeypatch, deadline=deadline)[1:] == (None, 1)


def test_no_step_is_tried_where_it_is_known_that_too_few_fit(monkeypatch):
    def forbidden(*_):
        raise AssertionError("it was tried")

    monkeypatch.setattr(budget, "time_stages", forbidden)
    assert planned(monkeypatch, deadline=15 + 20, min_steps=10, step=2.0)[2] == 0


def test_the_dearest_stage_stands_for_the_others_where_trying_takes_too_long(monkeypatch):
    """One that takes as long as there is time is not tried twice."""
    tried = []
    clock = iter(range(0, 1000, 50))

    def one(learner, batches, progress, seconds):
        tried.append(progress)
        return 2.0

    monkeypatch.setattr(budget, "step_seconds", one)
    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    objective, loader = make()
    assert budget.time_stages(TRAINING, objective, loader, left=60) == [(0.5, 2.0), (1.0, 2.0)]
    assert tried == [0.75]
