"""A new family: a small convolutional network with BatchNorm, and its row in the table."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from vitreous.config.model import ModelConfig
from vitreous.model.family import Family
from vitreous.model.network import Network, Outputs


@dataclass(frozen=True)
class TinyConvConfig(ModelConfig):
    family: ClassVar = "tiny-conv"
    family_title: ClassVar = "Tiny ConvNet"
    presets: ClassVar = {"tiny-conv-8": {"width": 8}, "tiny-conv-16": {"width": 16}}

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
    embedding = ("stem.",)

    def __init__(self, c, *, seed=0):
        super().__init__()
        self.config = c
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed)
            self.stem = nn.Conv2d(c.channels, c.width, 3, stride=2, padding=1, bias=False)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.BatchNorm2d(c.width), nn.ReLU(), nn.Conv2d(c.width, c.width, 3, padding=1))
                for _ in range(c.depth)
            )
            self.head = nn.Linear(c.width, c.classes) if c.classes else nn.Identity()

    def layers(self):
        return list(self.blocks)

    def classifiers(self):
        return [self.head] if self.config.classes else []

    def feature_map(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = x + block(x)
        return x

    def classify(self, feature_map):
        return self.head(feature_map.mean(dim=(2, 3)))

    def outputs(self, images, *, keys=None):
        features = self.feature_map(images)
        return Outputs(features.mean(dim=(2, 3)), self.classify(features))


FAMILY = Family(TinyConvConfig, TinyConv)
