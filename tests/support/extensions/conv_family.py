"""A new family: a small convolutional network with BatchNorm, and its row in the table."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from vitreous.model.family import Family
from vitreous.model.network import Network
from vitreous.model.roles import module_roles


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


FAMILY = Family(
    name="Tiny ConvNet",
    config=TinyConvConfig,
    build=build,
    classifiers=lambda network: [network.head] if network.config.classes else [],
    roles=lambda network: module_roles(network, layer_of(network), [network.head]),
    preset=lambda name, **changes: TinyConvConfig(**{"width": {"tiny-conv-8": 8, "tiny-conv-16": 16}[name], **changes}),
    names=("tiny-conv-8", "tiny-conv-16"),
)
