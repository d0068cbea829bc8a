"""A new family: a small convolutional network with BatchNorm."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from vitreous.model.network import Network, Role
from vitreous.model.table import Family


@dataclass(frozen=True)
class ConvConfig:
    family: ClassVar[str] = "convnet"

    width: int
    image_size: tuple[int, int] = (24, 24)
    channels: int = 3
    classes: int = 1000

    def __post_init__(self):
        object.__setattr__(self, "image_size", tuple(self.image_size))

    @property
    def features(self):
        return 2 * self.width

    @property
    def layers(self):
        return 2


class ConvNet(Network):
    def __init__(self, config, seed=0):
        super().__init__()
        self.config, width = config, config.width
        self.stem = nn.Sequential(nn.Conv2d(config.channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.head = nn.Linear(2 * width, config.classes) if config.classes else nn.Identity()
        if seed is not None:
            draw = torch.Generator().manual_seed(seed)
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5, generator=draw)
            for layer in (self.stem[0], self.body[0], self.head):
                if getattr(layer, "bias", None) is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, images, *, keys=None):
        return self.classify(self.feature_map(images))

    def representation(self, images, *, keys=None):
        return self.feature_map(images).mean(dim=(2, 3))

    def feature_map(self, images):
        return self.body(self.stem(images))

    def classify(self, feature_map):
        return self.head(feature_map.mean(dim=(2, 3)))


LAYERS = {"stem": -1, "body": 0, "head": 2}


def roles(network):
    def role(name, parameter):
        place = name.split(".")[0]
        kind = "classifier" if place == "head" else "matrix" if parameter.ndim > 1 else "norm"
        return Role(LAYERS[place], "other" if kind == "matrix" else kind, parameter.ndim > 1)

    return {name: role(name, parameter) for name, parameter in network.named_parameters()}


FAMILY = Family(
    name="Convolutional network",
    config=ConvConfig,
    build=ConvNet,
    classifiers=lambda network: [network.head] if network.config.classes else [],
    roles=roles,
    preset=lambda name, **changes: replace(ConvConfig(width=16), **changes),
    names=("conv-s",),
)
