"""What the tests of self-distillation share: the paper's loss in NumPy, and batches of views."""

import warnings
from contextlib import contextmanager

import numpy as np
import torch

from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.rng import sample_keys


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def numpy_dino(teacher, student, centre, t, s):
    """Algorithm 1 of the paper, for any number of views: all pairs of a teacher's view and another one."""
    total, pairs = 0.0, 0
    for g in range(len(teacher)):
        for v in range(len(student)):
            if g == v:
                continue
            for b in range(teacher.shape[1]):
                answer = softmax((teacher[g, b] - centre) / t)
                total -= np.sum(answer * np.log(softmax(student[v, b] / s)))
            pairs += 1
    return total / (pairs * teacher.shape[1])


def views(images):
    """Views (B, V, C, H, W) of whole images."""
    return ViewBatch(images, torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(*images.shape[:2], 4), images[:, :, 0, 0, 0] > 9)


def batch(count=6, small=3, dtype=torch.float32, epoch=0):
    draw = torch.Generator().manual_seed(0)
    found = {"global": views(torch.randn(count, 2, 3, 16, 16, generator=draw).to(dtype))}
    if small:
        found["local"] = views(torch.randn(count, small, 3, 8, 8, generator=draw).to(dtype))
    keys = torch.from_numpy(sample_keys(0, epoch, np.arange(count)))
    return Batch(found, torch.full((count,), -1), torch.arange(count), keys)


def keys_of(*index, epoch=0, seed=0):
    return torch.from_numpy(sample_keys(seed, epoch, np.array(index)))


@contextmanager
def own_products():
    """torch multiplies bfloat16 by itself: some machines only claim to have the instructions that oneDNN would use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration")  # nobody asked for it
        with torch.backends.mkldnn.flags(enabled=False):
            yield
