"""One process is a world of its own; several agree as if what they hold lay in one."""

import multiprocessing
import os
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch

from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import MultiCrop
from vitreous.config.objective import Dino
from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.chance import sample_keys
from vitreous.objectives.dino import SelfDistillation
from vitreous.objectives.dino_loss import balanced_answers
from vitreous.world import World, find_device

SIZES = (3, 5)
"""Rows that each of two processes holds."""
SECONDS = 120
SCORES = torch.rand(sum(SIZES), 7, generator=torch.Generator().manual_seed(0))
MODEL = ViTConfig(width=16, depth=1, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=0)
DINO = Dino(crops=MultiCrop(local_views=0), hidden=12, bottleneck=6, prototypes=7, ibot_weight=1.0)


def rows_of(rank):
    first = sum(SIZES[:rank])
    return slice(first, first + SIZES[rank])


def pictures(rows=slice(None)):
    """Some of eight pictures; in none of the first three is a patch masked."""
    images = torch.randn(sum(SIZES), 2, 3, 16, 16, generator=torch.Generator().manual_seed(1))[rows]
    index = torch.arange(sum(SIZES))[rows]
    view = ViewBatch(images, torch.zeros(*images.shape[:2], 4), torch.zeros(images.shape[:2], dtype=torch.bool))
    return Batch({"global": view}, index, index, torch.from_numpy(sample_keys(0, 0, index.numpy())))


def learn(settings, rows=slice(None), world=None):
    """The centres after one step."""
    objective = SelfDistillation(ViT(MODEL), settings, world=world).train()
    seen, drawn = pictures(rows), objective._draw_masks
    many = (seen.index >= SIZES[0]).repeat(2)[:, None]  # (G*B, 1): view by view
    objective._draw_masks = lambda large, keys: drawn(large, keys) & many
    objective(seen, 1.0)
    objective.after_step(0.5)
    return objective.centre, objective.patch_centre


def doubled(rows):
    return 2 * rows - rows.mean(dim=0)


def work(rank, folder):
    """What one of two processes finds, written to a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS / 2)
    )
    world, own = World(rank, 2), SCORES[rows_of(rank)]
    found = {
        "mean": world.mean(torch.tensor([1.0, 10.0]) * (rank + 1)),
        "gathered": world.gather(own),
        "numbers": world.gather(torch.arange(rank)),
        "jointly": world.jointly(doubled, own),
        "agree": [world.agree(flag) for flag in (False, True, rank == 0, rank == 1)],
        "sinkhorn": world.jointly(lambda scores: balanced_answers(scores, 0.05, 3), own),
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


def test_the_mean_is_that_of_all(found):
    assert [one["mean"].tolist() for one in found] == [[1.5, 15.0]] * 2


def test_tensors_of_unequal_length_are_gathered_in_the_order_of_ranks(found):
    for one in found:
        assert [len(piece) for piece in one["gathered"]] == list(SIZES)
        assert torch.cat(one["gathered"]).equal(SCORES)
        assert [piece.tolist() for piece in one["numbers"]] == [[], [0]]
        assert one["numbers"][1].dtype == torch.int64


def test_a_function_of_all_rows_gives_each_process_its_own(found):
    for rank, one in enumerate(found):
        assert one["jointly"].equal(doubled(SCORES)[rows_of(rank)])
        assert one["own"].equal(SCORES[rows_of(rank)])  # and what was given stays as it is


def test_if_one_says_so_all_know(found):
    assert [one["agree"] for one in found] == [[False, True, True, True]] * 2


def test_sinkhorn_balances_the_joined_batch(found):
    """Algorithm 1 of SwAV on all rows."""
    q = np.exp(SCORES.double().numpy() / 0.05).T
    for _ in range(3):
        q /= q.sum(axis=1, keepdims=True) * q.shape[0]
        q /= q.sum(axis=0, keepdims=True) * q.shape[1]
    wanted = (q * q.shape[1]).T
    np.testing.assert_allclose(torch.cat([one["sinkhorn"] for one in found]).numpy(), wanted, atol=1e-5)
    alone = balanced_answers(SCORES[rows_of(0)], 0.05, 3)
    assert (found[0]["sinkhorn"] - alone).abs().max() > 0.01  # a batch of its own would be balanced otherwise


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
    assert world.mean(rows) is rows
    assert [piece is rows for piece in world.gather(rows)] == [True]
    assert world.jointly(doubled, rows).equal(doubled(rows))
    assert [world.agree(flag) for flag in (False, True)] == [False, True]
    assert not torch.distributed.is_initialized()


def test_devices_by_name():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device().type == (torch.accelerator.current_accelerator() or torch.device("cpu")).type
    refused = {
        "toaster": "there is no such kind; give auto, cpu or cuda",
        "cuda:99": r"not available here \(.*\); give auto or cpu",
    }
    for name, reason in refused.items():
        with pytest.raises(UserError, match=f"device '{name}': {reason}"):
            find_device(name)
