"""Small trainings of every kind, by one process or by two that train together."""

import json
import multiprocessing
import os

import numpy as np
import torch

import vitreous.training.train
from support.ports import free_port
from vitreous import fit, pretrain
from vitreous.callbacks import Callbacks

SECONDS = 900
TINY = {"model.width": 16, "model.depth": 2, "model.heads": 2, "model.mlp_width": 32, "save_seconds": 1e9}
BATCH = {"batch_size": 15, "evaluations": 2}  # two processes cannot divide it evenly
VIEWS = {"objective.hidden": 16, "objective.bottleneck": 8, "objective.prototypes": 16, "augment.jitter": 0.2}
KINDS = {
    "supervised": {
        "augment.mixup": 0.2,
        "augment.cutmix": 1.0,
        "objective.keep_schedule": [[0.5, 0.5]],
        "model.drop_path": 0.2,
        "ema": 0.9,
        "micro_batch": 4,
    },
    "weighed": {"objective.class_weights": True, "optimizer.name": "adamw", "activation_checkpointing": True},
    "mae": {"objective.decoder_width": 16, "objective.decoder_heads": 2, "objective.decoder_depth": 1},
    "dino": {**VIEWS, "objective.sinkhorn_iterations": 0, "objective.freeze_last_layer": 0.3},
    "dinov2": {**VIEWS, "objective.sinkhorn_iterations": 3, "objective.koleo_weight": 0.1},
}
STEPS = 20
STOP = 9


def draw_images(place):
    """60 images with a bright band, the higher the commoner.

    Four classes cannot be equally often among 15 images: else a bias would have no gradient at first but rounding,
    and Adam makes a whole step of it, up or down.
    """
    chance = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, 3], [24, 16, 12, 8])
    images = chance.integers(0, 60, (len(labels), 16, 16, 3))
    for image, label in zip(images, labels, strict=True):
        image[4 * label : 4 * label + 4] += 150
    np.savez(place, images=images.astype(np.uint8), labels=labels)
    return place


def train(kind, place, out, stop=None, settings=None, epochs=STEPS / 3, **more):
    """A training of this kind into the folder `out`; `stop`: after so many steps it is interrupted."""
    steps = []
    callbacks = Callbacks(
        step=lambda event: steps.append(event.step), should_stop=lambda: bool(stop and len(steps) >= stop)
    )
    settings = settings or {**TINY, **BATCH, **KINDS[kind]}
    common = {"model": "Ti/4@16", "epochs": epochs, "out": out, "workers": 0, "callbacks": callbacks, "device": "cpu"}
    if kind in ("supervised", "weighed"):
        return fit(place / "images.npz", overrides=settings, **common, **more)
    return pretrain(place / "images.npz", method=kind, overrides=settings, **common, **more)


def without_report():
    """Leave out the pages: they are not what is looked at."""
    vitreous.training.train.write_run_page = lambda *_: None
    torch.cpu.get_capabilities = dict  # float32 on every processor


def records(run):
    """What a training logged."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def two_processes(function, place):
    """Call function(place) in two processes, which find each other as torchrun's do."""
    spawn = multiprocessing.get_context("spawn")
    port = free_port()
    processes = [spawn.Process(target=_become, args=(function, place, rank, port)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(SECONDS)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def one_of_two(rank, port):
    """The environment that torchrun gives to a process."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _become(function, place, rank, port):
    os.environ.update(one_of_two(rank, port))
    torch.set_num_threads(1)
    without_report()
    function(place)
