"""What a request is said to need, against what torch really takes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vitreous import UserError, ViT, preset
from vitreous.config.data import Preprocess
from vitreous.config.objective import Dino, Mae
from vitreous.config.train import Optimizer, Training
from vitreous.distributed.world import World
from vitreous.inference import memory_needs as needs
from vitreous.model.family import count_forward_bytes, count_parameters
from vitreous.training.parallel import count_parts
from vitreous.training.recipes.supervised import DatasetStats, paper_pretrain
from vitreous.training.step import check_training_memory, training_bytes
from vitreous.weights.bundle import Bundle


class Live(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive within it, and the most there ever were."""

    def __init__(self):
        super().__init__()
        self.alive, self.most = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.alive[storage._cdata] = torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: (ref, size) for key, (ref, size) in self.alive.items() if not ref.expired()}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return made


def test_a_forward_pass_takes_about_what_is_said(subtests):
    for name in ("F/4@32", "Ti/4@32", "N/4@28"):
        with subtests.test(name=name):
            config = replace(preset(name), classes=10)
            model = ViT(config).eval()
            images = torch.zeros(16, 3, *config.image_size)
            with torch.inference_mode(), Live() as live:
                model(images)
            taken = live.most
            assert 0.5 * taken < 16 * count_forward_bytes(config) < 1.5 * taken


def training(**changes):
    config = replace(preset("Ti/16@32"), classes=10)
    return Training(model=config, preprocess=Preprocess(size=(32, 32)), **changes)


def test_a_training_needs_weights_gradients_moments_and_a_batch():
    plain = training_bytes(training(batch_size=64), images=1000)
    weights = 4 * count_parameters(training().model)
    assert plain > 4 * weights
    assert training_bytes(training(batch_size=64, ema=0.9), 1000) - plain == weights
    assert plain - training_bytes(training(batch_size=64, optimizer=Optimizer(name="sgd")), 1000) == weights
    assert training_bytes(training(batch_size=64), images=16) == training_bytes(training(batch_size=16), images=1000)
    parts = training_bytes(training(batch_size=64, micro_batch=16), 1000)
    assert parts < plain
    assert training_bytes(training(batch_size=64, micro_batch=100), 1000) == plain


def test_hidden_patches_need_nothing_and_views_add_up():
    plain = training_bytes(training(batch_size=64), 1000)
    assert training_bytes(training(batch_size=64, objective=Mae(mask=0.75)), 1000) < plain
    assert training_bytes(training(batch_size=64, objective=Dino()), 1000) > 2 * plain


def test_many_gpus_work_through_parts_as_large_as_one_gpu_does():
    """Of the paper's 4,096 images one process has 64 parts of 64, and each of 64 processes has one."""
    asked = paper_pretrain(DatasetStats(classes=10, images=10**6, side=224, channels=3))
    assert asked.batch_size == 4096
    assert [count_parts(asked.micro_batch, 4096, processes) for processes in (1, 8, 64)] == [64, 8, 1]


def test_every_process_has_as_many_parts_and_none_is_empty(subtests):
    """Of 14 images four processes get 3, 4, 3 and 4; in pairs, 2, 4, 4 and 4."""
    for micro_batch, unit, parts in ((None, 1, 1), (4, 1, 1), (3, 1, 2), (2, 1, 2), (1, 1, 3), (3, 2, 2), (1, 2, 2)):
        with subtests.test(micro_batch=micro_batch, unit=unit):
            assert count_parts(micro_batch, 14, 4, unit) == parts


def test_processes_of_one_machine_share_its_memory_and_a_gpu_has_its_own(monkeypatch):
    asked = training(batch_size=64)
    one = training_bytes(training(batch_size=16), 1000)
    monkeypatch.setattr("vitreous.memory.available_memory", lambda: int(3.5 * one))
    check_training_memory(asked, 1000, World(size=4), beside=3)
    with pytest.raises(UserError, match=r"\b16 .*4 "):
        check_training_memory(asked, 1000, World(size=4), beside=4)
    check_training_memory(asked, 1000, World(size=4, sharded=True), beside=4)  # each has a quarter of the weights
    check_training_memory(asked, 1000, World(size=4, device=torch.device("cuda")), beside=4)


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr("vitreous.memory.available_memory", lambda: 100_000_000)
    check_training_memory(training(batch_size=1), 1000)
    with pytest.raises(UserError, match=r"32x32 .*999 .* 100 "):
        check_training_memory(training(batch_size=10**9), 999)
    model = ViT("Ti/16@32", classes=10)
    bundle = Bundle(model, Preprocess(size=(32, 32)), tuple("abcdefghij"), {}, Path("b"))
    needs.check_inference_memory(model.config, bundle.preprocess, 8)
    with pytest.raises(UserError, match=r" 100 .*batch_size"):
        needs.check_inference_memory(model.config, bundle.preprocess, 10**6)
    needs.check_explanation_memory(bundle, "relevance")
    large = replace(bundle, preprocess=Preprocess(size=(2048, 2048)))
    with pytest.raises(UserError, match=r"attention .*2048x2048"):
        needs.check_explanation_memory(large, "attention")
