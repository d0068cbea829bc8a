"""The real ViT-Ti/16 on real pictures: what its features are worth is known from another implementation."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from vitreous import ViT


def read(path):
    """Short side to 224/0.9, the centre, values in -1..1: the preprocessing that these weights were trained with."""
    picture = Image.open(path).convert("RGB")
    scale = round(224 / 0.9) / min(picture.size)
    picture = picture.resize([round(side * scale) for side in picture.size], Image.Resampling.BICUBIC)
    left, top = ((side - 224) // 2 for side in picture.size)
    pixels = np.asarray(picture.crop((left, top, left + 224, top + 224)), np.float32)
    return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1


def features(model, folder):
    """Unit-length representations (n, D) and labels (n,) of a folder with a folder for each class."""
    paths = sorted(folder.glob("*/*.jpg"))
    classes = sorted({path.parent.name for path in paths})
    rows = []
    with torch.inference_mode():
        for start in range(0, len(paths), 32):
            rows.append(model.representation(torch.stack([read(path) for path in paths[start : start + 32]])))
    labels = torch.tensor([classes.index(path.parent.name) for path in paths])
    return torch.nn.functional.normalize(torch.cat(rows)), labels


@pytest.mark.slow
def test_nearest_neighbours_of_pets(shared_data):
    """Weighted 10-NN, temperature 0.07, gives 87.4 % with timm's model."""
    model = ViT("Ti/16", seed=None).eval()
    model.load_state_dict(load_file(shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors"))
    known, known_labels = features(model, shared_data / "pets" / "train")
    asked, labels = features(model, shared_data / "pets" / "test")
    similarity, neighbours = (asked @ known.T).topk(10)
    votes = torch.zeros(len(asked), 37).scatter_add_(1, known_labels[neighbours], (similarity / 0.07).exp())
    accuracy = (votes.argmax(1) == labels).float().mean().item()
    assert accuracy == pytest.approx(0.874, abs=0.005)
