"""A family that vitreous does not have: a small convolutional network with BatchNorm, and its row in the table."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from colours import COLOURS, pixels
from torch import nn

from vitreous.config.data import Preprocess
from vitreous.evaluate.probe import fit_linear
from vitreous.model.family import FAMILIES, Family
from vitreous.model.network import Network
from vitreous.model.roles import module_roles
from vitreous.weights.bundle import save_bundle


@dataclass(frozen=True)
class TinyConvConfig:
    family: ClassVar[str] = "tiny-conv"

    width: int = 8
    depth: int = 2
    image_size: tuple[int, int] = (16, 16)
    channels: int = 3
    classes: int = 3

    @property
    def features(self):
        return self.width

    @property
    def layers(self):
        return self.depth


class TinyConv(Network):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.stem = nn.Conv2d(c.channels, c.width, 3, stride=2, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c.width), nn.ReLU(), nn.Conv2d(c.width, c.width, 3, padding=1))
            for _ in range(c.depth)
        )
        self.head = nn.Linear(c.width, c.classes) if c.classes else nn.Identity()

    def feature_map(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = x + block(x)
        return x

    def classify(self, feature_map):
        return self.head(feature_map.mean(dim=(2, 3)))

    def forward(self, images, *, keys=None):
        return self.classify(self.feature_map(images))

    def representation(self, images, *, keys=None):
        return self.feature_map(images).mean(dim=(2, 3))


def build(config, seed):
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        return TinyConv(config)


def layer_of(network):
    def found(name):
        if name.startswith("stem"):
            return -1
        return int(name.split(".")[1]) if name.startswith("blocks") else network.config.depth

    return found


TINY_CONV = Family(
    name="Tiny ConvNet",
    config=TinyConvConfig,
    build=build,
    classifiers=lambda network: [network.head] if network.config.classes else [],
    roles=lambda network: module_roles(network, layer_of(network), [network.head]),
    preset=lambda name, **changes: TinyConvConfig(**{"width": {"tiny-conv-8": 8, "tiny-conv-16": 16}[name], **changes}),
    names=("tiny-conv-8", "tiny-conv-16"),
)


def register(monkeypatch, family=TINY_CONV):
    monkeypatch.setitem(FAMILIES, "tiny-conv", family)


def make_conv_bundle(path):
    """A bundle that tells red, green and blue apart, with running means that a training left."""
    model = build(TinyConvConfig(), 0)
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
