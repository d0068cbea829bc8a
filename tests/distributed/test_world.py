"""One process is a world of its own; several agree as if what they hold lay in one."""

import copy
import multiprocessing
import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.config.objective import Dino
from vitreous.config.train import Optimizer, Training
from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.data.rng import sample_keys
from vitreous.distributed.heartbeat import collectives
from vitreous.distributed.meter import Meter
from vitreous.distributed.world import SINGLE_PROCESS, World, find_device
from vitreous.model.batch_norm import BatchNorm
from vitreous.objectives.collapse import feature_std, information
from vitreous.objectives.dino import SelfDistillation, koleo_loss, sinkhorn_probabilities
from vitreous.objectives.objective import Setting
from vitreous.objectives.supervised import Classification
from vitreous.training.checkpoint import Saver, load_newest
from vitreous.training.loop import DivergedError, Loop
from vitreous.training.parallel import join_norms
from vitreous.training.step import StepSchedule

SIZES = (3, 5)
"""Rows that each of two processes holds."""
SECONDS = 120
SCORES = torch.rand(sum(SIZES), 7, generator=torch.Generator().manual_seed(0))
MODEL = ViTConfig(width=16, depth=1, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=0)
DINO = Dino(crops=MultiCrop(local_views=0), hidden=12, bottleneck=6, prototypes=7, ibot_weight=1.0)


def rows_of(rank):
    first = sum(SIZES[:rank])
    return slice(first, first + SIZES[rank])


def random_images(rows=slice(None)):
    """Some of eight images; in none of the first three is a patch masked."""
    images = torch.randn(sum(SIZES), 2, 3, 16, 16, generator=torch.Generator().manual_seed(1))[rows]
    index = torch.arange(sum(SIZES))[rows]
    view = ViewBatch(images, torch.zeros(*images.shape[:2], 4), torch.zeros(images.shape[:2], dtype=torch.bool))
    return Batch({"global": view}, index, index, torch.from_numpy(sample_keys(0, 0, index.numpy())))


def learn(settings, rows=slice(None), world=None):
    """The centres after one step."""
    objective = SelfDistillation(ViT(MODEL), settings, Setting(world=world or World())).train()
    seen, drawn = random_images(rows), objective._draw_masks
    many = (seen.index >= SIZES[0]).repeat(2)[:, None]  # (G*B, 1): view by view
    objective._draw_masks = lambda large, keys: drawn(large, keys) & many
    objective(seen, 1.0)
    objective.after_step(0.5)
    return objective.centre, objective.patch_centre


def weighed(rows, first):
    """A number that depends on every row, and on how many came before."""
    return (rows * torch.arange(1.0, len(rows) + 1)[:, None]).square().sum() * (1 + first)


def slope(function, rows):
    """The gradient of a function of the rows."""
    learned = rows.clone().requires_grad_()
    function(learned).backward()
    return learned.grad


def refused(world, rank):
    """What the second process hears of an error in the first."""

    def function():
        raise UserError("no room")

    with pytest.raises(UserError, match="no room") as error:
        world.on_main(function)
    return str(error.value)


def refused_rows(world):
    """What is said where no process has a row."""
    with pytest.raises(UserError) as error:
        world.all_gather_rows(None)
    return str(error.value)


NORMS = {
    "ours": lambda channels: BatchNorm(channels, 1e-3),
    "torch's": nn.BatchNorm2d,
    "cumulative": lambda channels: nn.BatchNorm2d(channels, momentum=None),
    "bare": lambda channels: nn.BatchNorm2d(channels, affine=False),
}


def normed(kind, rows, world=SINGLE_PROCESS):
    """Two batches of a batch norm in training: what it gives, its gradient, and its running statistics."""
    network = nn.Sequential(NORMS[kind](rows.shape[1]))
    join_norms(network, world)
    (norm,) = copy.deepcopy(network)  # as an average of the weights is
    with torch.no_grad():
        if norm.affine:
            norm.weight.copy_(torch.arange(1.0, rows.shape[1] + 1))
    learned = rows.clone()[:, :, None, None].requires_grad_()
    norm(3 * learned + 1)
    out = norm(learned)
    (out.sigmoid() * torch.arange(1.0, rows.shape[1] + 1)[:, None, None]).sum().backward()
    return out.detach(), learned.grad, norm.running_mean, norm.running_var, norm.eval()(learned).detach()


def told_of_all(world):
    """What one process hears of two images that it could not read, and two that the other could not."""
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    source = ArraySource("made", images, np.zeros(len(images), dtype=np.int64), ("a",))
    loader = Loader(source, Preprocess(size=(8, 8), mean=(0.5,), std=(0.5,)), Augment(), batch_size=8, world=world)
    assert not world.any_rank(loader.has_unshared)
    names = [source.name(2 * world.rank + number) for number in (0, 1)]
    loader.unreadable.update(zip(names, ("gone", "cut short"), strict=True))
    assert loader.has_unshared
    with pytest.raises(UserError) as error:
        loader.sync_unreadable()
    assert not loader.has_unshared
    return str(error.value)


def trained(folder, world):
    """A training of one step that each process would begin with weights of its own, after one hour, or two."""
    model, shape = ViT(replace(MODEL, classes=3), seed=world.rank), Preprocess(size=(16, 16))
    training = Training(model.config, shape, batch_size=4, ema=0.9, wise_ft_alpha=0.5, optimizer=Optimizer())
    source = ArraySource("made", torch.zeros(4, 3, 16, 16, dtype=torch.uint8), np.arange(4) % 3, ("a", "b", "c"))
    meter = Meter()
    meter._cpu -= 3600 * (1 + world.rank)
    loader = Loader(source, shape, Augment(), batch_size=4, world=world)
    objective = Classification(model, training.objective)
    loop = Loop(objective, loader, training, StepSchedule(1), folder, evaluate=None, meter=meter)
    found = {"average": loop.ema.model.state_dict(), "start": dict(loop.start)}
    found = {name: {key: tensor.clone() for key, tensor in kept.items()} for name, kept in found.items()}
    loop.run()
    hours = world.on_main(lambda: load_newest(folder / "checkpoints")[0].metadata["spent"]["core_hours"])
    point, _, start = Saver(folder / "checkpoints", world).load(with_start=True)
    kinds = {"module": point.module, "optimizers": point.optimizers, "ema": point.ema, "start": start}
    found["loaded"] = {(kind, name): tensor for kind, kept in kinds.items() for name, tensor in kept.items()}
    return {**found, "hours": hours, "step": point.step, "began": ViT(replace(MODEL, classes=3), seed=0).state_dict()}


def diverged(folder, world):
    """Where and how a training of three steps ends in which one process's loss is no number in the second."""
    model, shape = ViT(replace(MODEL, classes=3), seed=0), Preprocess(size=(16, 16))
    training = Training(model.config, shape, batch_size=4)
    source = ArraySource("made", torch.zeros(4, 3, 16, 16, dtype=torch.uint8), np.arange(4) % 3, ("a", "b", "c"))
    objective = Classification(model, training.objective)
    loader = Loader(source, shape, Augment(), batch_size=4, world=world)
    loop = Loop(objective, loader, training, StepSchedule(3), folder, evaluate=None)
    forward = objective.forward

    def spoiled(batch, progress):
        loss, metrics = forward(batch, progress)
        return (loss * float("nan") if (world.rank, loop.step) == (1, 1) else loss), metrics

    objective.forward = spoiled
    with pytest.raises(DivergedError) as error:
        loop.run()
    return loop.step, str(error.value)


def exchanges(folder, world):
    """The collectives from one step of a training to the next, DDP's own aside."""
    model, shape = ViT(replace(MODEL, classes=3), seed=0), Preprocess(size=(16, 16))
    training = Training(model.config, shape, batch_size=8, micro_batch=2)
    source = ArraySource("made", torch.zeros(8, 3, 16, 16, dtype=torch.uint8), np.arange(8) % 3, ("a", "b", "c"))
    loader, counts = Loader(source, shape, Augment(), batch_size=8, world=world), []
    objective = Classification(model, training.objective)
    loop = Loop(objective, loader, training, StepSchedule(4), folder, evaluate=None)
    loop.run(lambda event: counts.append(collectives.entered.number))
    return np.diff(counts[:-1]).tolist()


def work(rank, folder):
    """What one of two processes finds, written to a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS / 2)
    )
    world, own = World(rank, 2), SCORES[rows_of(rank)]
    found = {
        "sums": world.sum_numbers(rank + 1, 10 * rank),
        "gathered": world.all_gather_rows(own),
        "numbers": world.all_gather_rows(torch.arange(rank)),
        "none": world.all_gather_rows(own if rank else None),
        "largest": world.all_reduce_max(torch.tensor([1.0, 10.0]) * (1 - 2 * rank)),
        "slope": slope(lambda rows: weighed(*world.all_gather_with_grad(rows)), own),
        "agree": [world.any_rank(flag) for flag in (False, True, rank == 0, rank == 1)],
        "first": world.on_main(lambda: f"said by {rank}"),
        "refused": refused(world, rank),
        "no rows": refused_rows(world),
        "unreadable": told_of_all(world),
        "trained": trained(Path(folder), world),
        "diverged": diverged(Path(folder) / "diverged", world),
        "exchanges": exchanges(Path(folder) / "exchanges", world),
        "union": world.union({str(rank): "unreadable"}),
        "sinkhorn": sinkhorn_probabilities(own, 0.05, 3, world),
        "nothing": sinkhorn_probabilities(own if rank else own[:0], 0.05, 3, world),
        "koleo": [koleo_loss(own, world), slope(lambda rows: koleo_loss(rows, world), own)],
        "told apart": [information(own.softmax(dim=1), world), feature_std(own, world)],
        "norm": {kind: normed(kind, own, world) for kind in NORMS},
        "centres": learn(DINO, rows_of(rank), world),
        "balanced": learn(replace(DINO, sinkhorn_iterations=3), rows_of(rank), world),
        "own": own,
    }
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=work, args=(rank, str(folder))) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(SECONDS)
        assert [process.exitcode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
def test_what_each_process_has_is_joined(found):
    """The sums, the largest, and tensors of unequal length in the order of ranks; one may have nothing to gather."""
    for one in found:
        assert one["sums"] == [3.0, 10.0]
        assert one["largest"].tolist() == [1.0, 10.0]
        assert one["gathered"].equal(SCORES)
        assert one["numbers"].tolist() == [0]
        assert one["numbers"].dtype == torch.int64
        assert one["none"].equal(SCORES[rows_of(1)])
        assert one["agree"] == [False, True, True, True]  # if one says so, all know
        assert one["no rows"] == found[0]["no rows"] != "", "where nothing could be read, all are told"


@pytest.mark.slow
def test_gradients_flow_back_to_the_process_that_has_a_row(found):
    """Of the sum over both processes of (sum of w_i^2 x_i^2) (1 + rows before): by hand."""
    factors = 1 + torch.tensor([0.0, SIZES[0]]).sum() + 1  # (1 + 0) + (1 + 3)
    by_hand = 2 * SCORES * torch.arange(1.0, 9.0)[:, None].square() * factors
    for rank, one in enumerate(found):
        torch.testing.assert_close(one["slope"], by_hand[rows_of(rank)])
        assert one["own"].equal(SCORES[rows_of(rank)])  # and what was given stays as it is


@pytest.mark.slow
def test_the_first_process_does_it_for_all_and_fails_for_all(found):
    assert [one["first"] for one in found] == ["said by 0"] * 2
    assert [one["refused"] for one in found] == ["no room"] * 2
    assert [one["union"] for one in found] == [{"0": "unreadable", "1": "unreadable"}] * 2


def test_rows_are_shared_in_order_and_units_stay_whole():
    worlds = [World(rank, 3) for rank in range(3)]
    assert [world.rank_slice(8) for world in worlds] == [slice(0, 2), slice(2, 5), slice(5, 8)]
    assert [world.rank_slice(8, unit=2) for world in worlds] == [slice(0, 2), slice(2, 4), slice(4, 8)]
    assert [world.rank_slice(7, unit=2) for world in worlds] == [slice(0, 2), slice(2, 4), slice(4, 7)]
    assert [world.rank_slice(2) for world in worlds] == [slice(0, 0), slice(0, 1), slice(1, 2)]
    assert World().rank_slice(7, unit=2) == slice(0, 7)


@pytest.mark.slow
def test_the_nearest_other_is_looked_for_in_all_processes(found):
    """KoLeo of the whole batch: its mean is that of the processes', weighed by their rows, and so are its gradients."""
    whole = koleo_loss(SCORES)
    losses = [one["koleo"][0] * size for one, size in zip(found, SIZES, strict=True)]
    torch.testing.assert_close(sum(losses) / len(SCORES), whole)
    alone = koleo_loss(SCORES[rows_of(0)])
    assert (found[0]["koleo"][0] - alone).abs() > 1e-3


@pytest.mark.slow
def test_spread_and_information_are_those_of_the_joined_batch(found):
    """Against NumPy."""
    answers = SCORES.double().softmax(dim=1).numpy()
    mean = answers.mean(axis=0)
    told = -(mean * np.log(mean)).sum() + (answers * np.log(answers)).sum(axis=1).mean()
    directions = SCORES.double().numpy() / np.linalg.norm(SCORES.double().numpy(), axis=1, keepdims=True)
    spread = directions.std(axis=0).mean() * np.sqrt(SCORES.shape[1])
    for one in found:
        np.testing.assert_allclose([float(value) for value in one["told apart"]], [told, spread], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NORMS)
def test_batch_norm_has_the_statistics_of_the_joined_batch(found, kind):
    """Of any batch norm, as a network of a family from outside has."""
    out, gradient, mean, variance, evaluated = normed(kind, SCORES)
    found = [one["norm"][kind] for one in found]
    torch.testing.assert_close(torch.cat([one[0] for one in found]), out)
    torch.testing.assert_close(torch.cat([one[1] for one in found]), gradient, atol=1e-5, rtol=1e-4)
    for one in found:
        torch.testing.assert_close(one[2], mean)
        torch.testing.assert_close(one[3], variance)
    torch.testing.assert_close(torch.cat([one[4] for one in found]), evaluated)


@pytest.mark.slow
def test_a_loss_that_is_no_number_in_one_process_stops_all_before_the_step(found):
    assert [one["diverged"][0] for one in found] == [1, 1]
    assert all(one["diverged"][1].startswith("step 2: ") for one in found)


@pytest.mark.slow
def test_a_step_exchanges_twice_however_many_metrics_and_parts(found):
    """Before: whether to stop, and what the batch weighs; after: loss, metrics and the gradient's norm."""
    assert [one["exchanges"] for one in found] == [[2, 2]] * 2


@pytest.mark.slow
def test_unreadable_images_of_all_processes_count(found):
    """Two of 200 may be unreadable, whoever finds them."""
    assert all(number in found[0]["unreadable"] for number in ("4 of 200", "1%"))
    assert found[0]["unreadable"] == found[1]["unreadable"]


@pytest.mark.slow
def test_average_and_start_are_those_of_the_first_process(found):
    for one in found:
        for kept in (one["trained"]["average"], one["trained"]["start"]):
            assert kept.keys() == one["trained"]["began"].keys()
            assert all(tensor.equal(kept[name]) for name, tensor in one["trained"]["began"].items())


@pytest.mark.slow
def test_a_checkpoint_comes_to_every_process(found):
    one, other = (each["trained"]["loaded"] for each in found)
    assert list(one) == list(other)
    assert len(one) > 50
    assert all(tensor.dtype == other[name].dtype and tensor.equal(other[name]) for name, tensor in one.items())
    assert [each["trained"]["step"] for each in found] == [1, 1]


@pytest.mark.slow
def test_a_checkpoint_has_the_processor_time_of_all(found):
    assert found[0]["trained"]["hours"] == pytest.approx(3, abs=0.1)


@pytest.mark.slow
def test_sinkhorn_balances_the_joined_batch(found):
    """Algorithm 1 of SwAV on all rows."""
    q = np.exp(SCORES.double().numpy() / 0.05).T
    for _ in range(3):
        q /= q.sum(axis=1, keepdims=True) * q.shape[0]
        q /= q.sum(axis=0, keepdims=True) * q.shape[1]
    wanted = (q * q.shape[1]).T
    np.testing.assert_allclose(torch.cat([one["sinkhorn"] for one in found]).numpy(), wanted, atol=1e-5)
    alone = sinkhorn_probabilities(SCORES[rows_of(0)], 0.05, 3)
    assert (found[0]["sinkhorn"] - alone).abs().max() > 0.01  # a batch of its own would be balanced otherwise


@pytest.mark.slow
def test_sinkhorn_with_a_process_that_has_no_rows(found):
    """Masked patches may all lie in one process."""
    alone = sinkhorn_probabilities(SCORES[rows_of(1)], 0.05, 3)
    assert found[0]["nothing"].shape == (0, 7)
    torch.testing.assert_close(found[1]["nothing"], alone)


@pytest.mark.slow
def test_centres_are_those_of_the_joined_batch_though_one_process_masks_nothing(found):
    centre, patch_centre = learn(DINO)
    assert patch_centre.abs().sum() > 0
    for one in found:
        torch.testing.assert_close(one["centres"][0], centre, atol=1e-6, rtol=0)
        torch.testing.assert_close(one["centres"][1], patch_centre, atol=1e-6, rtol=0)
        assert not torch.cat(one["balanced"]).any()  # answers that are balanced have no centre


def test_one_process_is_left_alone():
    world, rows = World(), torch.rand(4, 3)
    assert (world.rank, world.size, world.device) == (0, 1, torch.device("cpu"))
    assert world.sum_numbers(3, 0.5) == [3, 0.5]
    assert world.all_gather_rows(rows) is rows
    assert world.all_gather_with_grad(rows) == (rows, 0)
    assert world.all_reduce(rows) is rows
    assert world.on_main(lambda: "said") == "said"
    assert [world.any_rank(flag) for flag in (False, True)] == [False, True]
    assert not torch.distributed.is_initialized()


def test_a_gpu_multiplies_in_tf32_and_a_cpu_as_before(monkeypatch):
    found = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", found.append)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for name in ("mps", "cuda"):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda name=name: torch.device(name))
        assert find_device().type == name
        find_device("cpu")
    assert found == ["high"]


def test_devices_by_name():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device().type == (torch.accelerator.current_accelerator() or torch.device("cpu")).type
    for name in ("toaster", "cuda:99", "meta", "xla", "privateuseone"):
        with pytest.raises(UserError, match=f"device '{name}': ") as error:
            find_device(name)
        assert len(str(error.value)) < 300, "not all that torch says of it"
        assert re.search(r"\bauto\b.*\bcpu\b", str(error.value)), "what to give instead"
