"""Data that several processes open: the same for all, or refused; of shards, one process per machine is the first."""

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest
import torch

from vitreous.data.packed import ArraySource
from vitreous.data.source import Data
from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.training.start import open_consistent


def data(last=1, classes=("a", "b")):
    labels = np.array([0, 1, 0, last])
    return Data({"train": ArraySource("made", torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels, classes)}, classes)


@dataclass(frozen=True)
class Told(World):
    """One of two processes that notes what it says of its data, and hears what the first is made to say."""

    size: int = 2
    heard: object = None
    said: list = field(default_factory=list)

    def any_rank(self, flag):
        self.said.append("met")
        return flag

    def all_gather_object(self, value):
        self.said.append(value)
        return [value if self.heard is None else self.heard, value]


def test_other_images_labels_or_classes_are_refused():
    for other, same in ((data(), True), (data(last=0), False), (data(classes=("a", "c")), False)):
        first = Told()
        open_consistent(lambda other=other: other, "photos", first)
        second = Told(rank=1, heard=first.said[-1])
        if same:
            assert open_consistent(data, "photos", second).classes == ("a", "b")
            continue
        with pytest.raises(UserError, match=r"photos: .*1"):
            open_consistent(data, "photos", second)


def test_of_shards_the_first_of_a_machine_makes_the_index(subtests, monkeypatch):
    for place, rank in product(("photos", "photos.tar"), (0, 1)):
        with subtests.test(place=place, rank=rank):
            monkeypatch.setattr("vitreous.training.start.local_rank", lambda rank=rank: rank)
            world = Told()

            def open_data(world=world):
                world.said.append("opened")
                return data()

            open_consistent(open_data, place, world)
            waits = place == "photos.tar" and rank == 1
            assert world.said[:2] == (["met", "opened"] if waits else ["opened", "met"])
