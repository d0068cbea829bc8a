"""Tiny networks of every family, with weights that answer something: a fresh classifier is zero."""

import numpy as np
import torch

from vitreous.config.data import Preprocess
from vitreous.inference.engine import TorchEngine
from vitreous.model.family import build_network, named_config
from vitreous.weights.bundle import Bundle

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LABELS = ("ant", "bee", "cat", "dog")
TINY = {"depth": 2, "width": 32, "heads": 2, "mlp_width": 64}


def tiny_bundle(name="P/4@16", seed=0, classes=4, **changes):
    """A model of 4 classes; a ViT or hybrid has two blocks."""
    shape = {} if name.startswith(("bit", "eff")) else TINY
    network = build_network(named_config(name, classes=classes, **{**shape, **changes}), seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if not parameter.detach().abs().sum():
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    channels = network.config.channels
    preprocess = Preprocess(size=network.config.image_size, mean=MEAN[:channels], std=STD[:channels])
    return Bundle(network, preprocess, LABELS[:classes])


def random_images(bundle, count=5):
    """(count, C, H, W) uint8."""
    shape = (count, bundle.preprocess.channels, *bundle.preprocess.size)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def assert_same(engine, bundle):
    """An engine gives what the network does."""
    plain = TorchEngine(bundle.model, bundle.preprocess)
    images = random_images(bundle, 11)  # no multiple of any batch
    assert engine.classes == bundle.model.config.classes
    torch.testing.assert_close(engine.representations(images), plain.representations(images), atol=1e-4, rtol=1e-5)
    if engine.classes:
        for count in (1, 3, 11):
            found, expected = engine.logits(images[:count]), plain.logits(images[:count])
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
