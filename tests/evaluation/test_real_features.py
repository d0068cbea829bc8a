"""The real ViT-Ti/16 on real images: what its features are worth is known from timm's model.

The images are read here by hand, not by the package, so that the model alone is tested.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from vitreous import ViT
from vitreous.evaluation.probe import fit_linear


def pets(shared_data, classes, each):
    """{"train": (features (n, D), labels (n,)), "test": ...} of the first images of the first classes."""
    model = ViT("Ti/16", seed=None).eval()
    model.load_state_dict(load_file(shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors"))
    found = {}
    for split in ("train", "test"):
        folders = sorted((shared_data / "pets" / split).iterdir())[:classes]
        named = [(path, label) for label, one in enumerate(folders) for path in sorted(one.glob("*.jpg"))[:each]]
        with torch.no_grad():
            batches = (torch.stack([read(path) for path, _ in named[i : i + 32]]) for i in range(0, len(named), 32))
            features = torch.cat([model.representation(images) for images in batches])
        found[split] = features, torch.tensor([label for _, label in named])
    return found


def read(path):
    """Short side to 224/0.9, the centre, values in -1..1: the preprocessing that these weights were trained with."""
    image = Image.open(path).convert("RGB")
    scale = round(224 / 0.9) / min(image.size)
    image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BICUBIC)
    left, top = ((side - 224) // 2 for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
    return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1


def neighbours_accuracy(found):
    """Of the weighted vote of 10 neighbours, temperature 0.07."""
    (known, known_labels), (asked, labels) = found["train"], found["test"]
    similarity, neighbours = (F.normalize(asked) @ F.normalize(known).T).topk(10)
    votes = torch.zeros(len(asked), 37).scatter_add_(1, known_labels[neighbours], (similarity / 0.07).exp())
    return (votes.argmax(1) == labels).double().mean().item()


@pytest.mark.slow
def test_six_classes_of_pets(shared_data):
    """Of 60 images timm's model has 46 right by neighbours, and 50 by scikit-learn's logistic regression."""
    found = pets(shared_data, classes=6, each=10)
    assert neighbours_accuracy(found) == pytest.approx(46 / 60, abs=1.1 / 60)
    (x, y), (features, labels) = found["train"], found["test"]
    probe = fit_linear(x, y, 6, weight_decays=[0.1])
    assert (probe(features).argmax(1) == labels).sum().item() == pytest.approx(50, abs=1)
    scaler = StandardScaler().fit(x.double().numpy())
    reference = LogisticRegression(C=1 / (0.1 * len(x)), tol=1e-8, max_iter=10_000)
    reference.fit(scaler.transform(x.double().numpy()), y.numpy())
    expected = reference.predict_proba(scaler.transform(features.double().numpy()))
    np.testing.assert_allclose(probe(features).softmax(1).numpy(), expected, atol=1e-3)


@pytest.mark.exhaustive
def test_all_pets(shared_data):
    """Neighbours give 87.4 % with timm's model, and another L-BFGS 88.9 %."""
    found = pets(shared_data, classes=None, each=None)
    assert neighbours_accuracy(found) == pytest.approx(0.874, abs=0.005)
    (x, y), (features, labels) = found["train"], found["test"]
    aside = torch.arange(len(x)) % 10 == 0
    probe = fit_linear(x[~aside], y[~aside], 37, validation=(x[aside], y[aside]))
    probe = fit_linear(x, y, 37, weight_decays=[probe.weight_decay])
    assert (probe(features).argmax(1) == labels).double().mean().item() == pytest.approx(0.889, abs=0.01)
