"""The order of a part, and how a made-up clock ends the looking."""

from collections import Counter

import numpy as np
import pytest
import torch

from vitreous.config.data import Preprocess
from vitreous.data.loader import Loader
from vitreous.data.packed import ArraySource
from vitreous.data.rng import balanced_order
from vitreous.data.source import random_subset
from vitreous.distributed.world import World
from vitreous.training.image_plan import ImageEstimate, ImageWork
from vitreous.training.measuring import _by_rank, features_in_time, logits_in_time, time_images


def source(count=40, classes=4):
    """Each image is as bright as its number."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    return ArraySource("made", images, np.arange(count) % classes, tuple("abcdefgh"[:classes]))


def test_any_beginning_of_the_order_has_every_class_alike():
    labels = np.array([0] * 50 + [1] * 7 + [2] * 20)
    order = balanced_order(labels, seed=3)
    assert sorted(order) == list(range(77))
    assert Counter(labels[order[:21]]) == {0: 7, 1: 7, 2: 7}
    assert Counter(labels[order[:47]]) == {0: 20, 1: 7, 2: 20}
    assert not np.array_equal(order, balanced_order(labels, seed=4))
    assert np.array_equal(order, balanced_order(labels, seed=3))


def test_a_part_is_the_beginning_of_a_random_order_of_all():
    found = random_subset(source(), seed=1)
    names = [found.name(i) for i in range(len(found))]
    part = random_subset(source(), seed=1, count=10)
    assert [part.name(i) for i in range(10)] == names[:10]
    assert names != [source().name(i) for i in range(40)]
    assert sorted(names) == sorted(source().name(i) for i in range(40))


class FakeDeadline:
    """A clock that images move."""

    seconds_per_image = 0.5

    def __init__(self, budget, each, writing=1.0, start=2.0):
        self.seconds, self.each, self.writing, self.time = budget, each, writing, start
        self.text, self.seen = f"{budget}s", []

    def now(self):
        return self.time

    def writing_if(self, slowness):
        return slowness * self.writing

    def look(self, images):
        """Brightness; takes its time."""
        self.time += self.each(len(self.seen)) * len(images)
        self.seen += (images[:, 0, 0, 0] * 255).round().int().tolist()
        return images[:, :, 0, 0]


def loader(count=40, batch=4):
    return Loader(source(count), Preprocess((4, 4), mean=(0.0,), std=(1.0,)), batch_size=batch)


def test_features_of_as_many_images_as_fit_and_the_same_again():
    machine, said = FakeDeadline(20, lambda seen: 0.5), []
    estimate = ImageEstimate(ImageWork(40, 0, 0, 1), machine, said.append)
    (features, labels), tried = features_in_time(machine.look, loader(), 4, 0, count=None, estimate=estimate)
    assert tried == len(features) == 32  # 19.4 - 2 - 1 = 16.4 s are enough for 32.8
    assert Counter(labels.tolist()) == {0: 8, 1: 8, 2: 8, 3: 8}
    assert len(said) == 1
    assert "32 of 40" in said[0]
    again, tried = features_in_time(machine.look, loader(), 4, 0, count=tried, estimate=None)
    assert tried == 32
    assert torch.equal(again[0], features)
    assert torch.equal(again[1], labels)


def test_a_machine_that_becomes_slower_ends_the_features_earlier():
    machine = FakeDeadline(20, lambda seen: 0.5 if seen < 8 else 2.0)
    estimate = ImageEstimate(ImageWork(40, 0, 0, 1), machine, lambda text: None)
    features_in_time(machine.look, loader(), 4, 0, count=None, estimate=estimate)
    assert len(machine.seen) == 16
    assert machine.time <= 20 + 8 * 0.5  # not later than a batch


def test_test_images_end_when_it_is_time_to_write():
    machine = FakeDeadline(20, lambda seen: 0.5)
    (answers, _), tried = logits_in_time(machine.look, loader(), machine)
    assert len(tried) == len(answers) == 36  # at 18 s not late yet, at 20 s it is
    assert machine.seen == list(range(36))
    slow = FakeDeadline(20, lambda seen: 1.0)
    assert len(logits_in_time(slow.look, loader(), slow)[1]) == 20  # writing will take twice as long too
    quick = FakeDeadline(20, lambda seen: 0.1)
    assert len(logits_in_time(quick.look, loader(), quick)[1]) == 40


def test_images_that_are_measured_next_keep_their_time():
    machine = FakeDeadline(20, lambda seen: 0.5)  # 17 s for 34 images
    assert len(logits_in_time(machine.look, loader(), machine, planned=8, after=16)[1]) == 20
    machine = FakeDeadline(20, lambda seen: 0.5)
    assert (
        len(logits_in_time(machine.look, loader(), machine, planned=28, after=16)[1]) == 28
    )  # these were promised too


def test_what_is_cold_at_first_does_not_count_for_every_image():
    machine = FakeDeadline(60, lambda seen: 0.2 if seen else 3.0)
    estimate = ImageEstimate(ImageWork(0, 400, 4000, 2), machine, lambda text: None)
    time_images(machine.look, loader(), estimate)
    assert machine.seconds_per_image == pytest.approx(0.2)
    assert estimate.plan.val + estimate.plan.test > 45  # in a quarter of the time, 15 s


def test_images_that_are_processed_again_cost_what_they_cost():
    machine = FakeDeadline(100, lambda seen: 0.5)
    estimate = ImageEstimate(ImageWork(40, 0, 0, 1), machine, lambda text: None)
    for _ in range(2):
        estimate.restart()
        _, tried = features_in_time(machine.look, loader(), 4, 0, count=None, estimate=estimate)
        assert tried == 40
        assert machine.seconds_per_image == pytest.approx(0.5)


def test_looking_around_ends_as_soon_as_enough_is_known():
    machine = FakeDeadline(20, lambda seen: 0.2)
    estimate = ImageEstimate(ImageWork(0, 40, 400, 2), machine, lambda text: None)
    time_images(machine.look, loader(), estimate)
    assert len(machine.seen) == 12  # the first batch warms up
    assert machine.seconds_per_image == pytest.approx(0.2)


def test_several_processes_divide_an_order_so_that_what_is_done_first_is_its_beginning(subtests):
    order = np.random.default_rng(0).permutation(23)
    for size in (1, 2, 3):
        with subtests.test(size=size):
            pieces = _by_rank(order, 4, World(0, size))
            assert len(pieces) == size
            assert sorted(np.concatenate(pieces)) == list(range(23))
            for rounds in (1, 2):  # after so many batches of each
                done = np.concatenate([piece[: 4 * rounds] for piece in pieces])
                assert set(done) == set(order[: 4 * rounds * size])
