"""Where tests find what a clone does not carry."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from vitreous import ViT

torch.set_num_threads(1)  # tiny models gain nothing from more, and lose much where tests share a machine

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data():
    """Real weights and pictures beside the project; a clone elsewhere does not have them."""
    if not SHARED.is_dir():
        pytest.skip("needs the real weights and pictures in ../shared/data, which are not part of the project")
    return SHARED


@pytest.fixture
def all_cores():
    """For the few tests that keep a real model busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def pets_features(shared_data):
    """{"train": (features (n, D), labels (n,)), "test": ...} of Pets by the real ViT-Ti/16.

    The pictures are read here by hand, not by the package, so that this is also a test of the model alone.
    """
    model = ViT("Ti/16", seed=None).eval()
    model.load_state_dict(load_file(shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors"))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    found = {split: _features(model, shared_data / "pets" / split) for split in ("train", "test")}
    torch.set_num_threads(threads)
    return found


def _features(model, folder):
    paths = sorted(folder.glob("*/*.jpg"))
    classes = sorted({path.parent.name for path in paths})
    rows = []
    with torch.no_grad():
        for start in range(0, len(paths), 32):
            rows.append(model.representation(torch.stack([_read(path) for path in paths[start : start + 32]])))
    return torch.cat(rows), torch.tensor([classes.index(path.parent.name) for path in paths])


def _read(path):
    """Short side to 224/0.9, the centre, values in -1..1: the preprocessing that these weights were trained with."""
    picture = Image.open(path).convert("RGB")
    scale = round(224 / 0.9) / min(picture.size)
    picture = picture.resize([round(side * scale) for side in picture.size], Image.Resampling.BICUBIC)
    left, top = ((side - 224) // 2 for side in picture.size)
    pixels = np.asarray(picture.crop((left, top, left + 224, top + 224)), np.float32)
    return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1
