"""Floating-point operations of a training, against PyTorch's own counter."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.objective import Supervised
from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Setting
from vitreous.training.start import starting_network
from vitreous.training.step import StepSchedule, training_work

MODEL = ViTConfig(width=64, depth=4, heads=2, mlp_width=256, patch=4, image_size=(32, 32), classes=10, pool="mean")
TRAINING = Training(MODEL, Preprocess(size=(32, 32)))


def counted(training, progress):
    """Operations of one image's step, forward and backward, by `torch.utils.flop_counter`."""
    objective = build_objective(starting_network(training, None), training.objective, Setting())
    batch = Batch.of(torch.rand(4, 3, 32, 32), torch.arange(4))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the fused one is not counted
        objective(batch, progress)[0].backward()
    return counter.get_total_flops() / 4


def test_operations_of_a_step(subtests):
    for changes in ({}, {"freeze": 2}, {"freeze": 4}, {"lora": 2}, {"lora": 2, "freeze": 2}):
        with subtests.test(overrides=changes):
            training = replace(TRAINING, **changes)
            work = training_work(training, 1, StepSchedule(1), 1)
            assert work.flops == pytest.approx(counted(training, 0.5), rel=0.03)


def test_nothing_is_frozen_unless_layers_are(subtests):
    """`freeze` counts the layers from the first on, and with any of them what stands before them stays too."""
    for freeze, learned in ((0, {-1, 0, 1, 2, 3, 4}), (1, {1, 2, 3, 4}), (4, {4})):
        with subtests.test(freeze=freeze):
            network = starting_network(replace(TRAINING, freeze=freeze), None)
            groups = network.parameter_groups()
            found = {groups[name].layer for name, parameter in network.named_parameters() if parameter.requires_grad}
            assert found == learned


def test_low_rank_changes_are_learned_above_the_frozen_layers_only():
    network = starting_network(replace(TRAINING, lora=2, freeze=2), None)
    groups = network.parameter_groups()
    learned = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert {groups[name].layer for name in learned} == {2, 3, 4}
    assert any("parametrizations" in name for name in learned)


def test_the_keep_schedule_counts_as_far_as_it_went():
    training = replace(TRAINING, objective=Supervised(keep_schedule=((0.5, 0.25),)))
    few, all_ = counted(training, 0.0), counted(training, 1.0)
    assert few < 0.4 * all_
    assert training_work(training, 100, StepSchedule(10), 5).flops == pytest.approx(100 * few, rel=0.05)
    assert training_work(training, 100, StepSchedule(10), 10).flops == pytest.approx(50 * (few + all_), rel=0.05)


def test_a_bent_pace_counts_the_steps_that_were_taken():
    """Half the training in five steps with few patches, the other half in one with all."""
    training = replace(TRAINING, objective=Supervised(keep_schedule=((0.5, 0.25),)))
    few, all_ = counted(training, 0.0), counted(training, 1.0)
    work = training_work(training, 6, StepSchedule(10, [(5, 6)]), 6)
    assert work.flops == pytest.approx(5 * few + all_, rel=0.05)


def test_nothing_done_nothing_spent():
    assert training_work(TRAINING, 0, StepSchedule(10), 0).flops == 0
