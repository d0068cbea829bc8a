"""The family of `extensions/conv_family.py`, registered for a test, and a bundle of it that tells colours apart."""

import numpy as np
import torch

from support.colours import COLOURS, pixels
from support.extensions.conv_family import FAMILY, TinyConv, TinyConvConfig
from vitreous.config.data import Preprocess
from vitreous.evaluation.probe import fit_linear
from vitreous.model.family import FAMILIES
from vitreous.weights.bundle import save_bundle


def register(monkeypatch, family=FAMILY):
    monkeypatch.setitem(FAMILIES, "tiny-conv", family)


def make_conv_bundle(path):
    """A bundle that tells red, green and blue apart, with running means that a training left."""
    model = TinyConv(TinyConvConfig())
    views = [pixels(colour, 1000 + i, (16, 16)) for i in range(40) for colour in COLOURS]
    images = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        for part in images.split(40):
            model.train()(part)
        probe = fit_linear(model.eval().representation(images), torch.arange(3).repeat(40), 3, weight_decays=[1e-3])
        model.head.weight.copy_(probe.weight)
        model.head.bias.copy_(probe.bias)
    save_bundle(path, model, Preprocess(size=(16, 16)), COLOURS, info={"epochs": 1})
    return path, model
