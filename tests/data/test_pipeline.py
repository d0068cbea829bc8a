"""Views come in order and in batches, decoded no further ahead than agreed, and errors are values."""

import threading
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from PIL import Image

from support.images import noise
from vitreous.config.data import Preprocess
from vitreous.data import view
from vitreous.data.decode import ImageError
from vitreous.data.view import ViewPipeline, make_view, map_concurrently
from vitreous.errors import UserError

SMALL = Preprocess(size=(8, 8))


def test_views_in_order(subtests):
    for ahead in (0, 1, 5):
        for batch_size in (1, 3, 100):
            with subtests.test(ahead=ahead, batch_size=batch_size):
                images = [noise(8, 8, seed=seed) for seed in range(7)]
                batches = list(ViewPipeline(SMALL, batch_size, prefetch=ahead, threads=3).batches(iter(images)))
                assert [len(batch) for batch in batches] == [
                    min(batch_size, 7 - start) for start in range(0, 7, batch_size)
                ]
                views = [view for batch in batches for view in batch]
                for view, image in zip(views, images, strict=True):
                    np.testing.assert_array_equal(view.numpy(), image.transpose(2, 0, 1))


def test_no_images():
    assert list(ViewPipeline(SMALL, 4).batches([])) == []


def test_errors_are_values(tmp_path):
    good = noise(8, 8)
    ((first, second, third),) = ViewPipeline(SMALL, 4).batches([b"text", good, tmp_path / "none.png"])
    assert isinstance(first, ImageError)
    assert torch.equal(second, make_view(good, SMALL))
    assert isinstance(third, ImageError)
    assert third.name == str(tmp_path / "none.png")


def test_other_errors_are_raised():
    with pytest.raises(UserError, match="int"):
        list(ViewPipeline(SMALL, 4).batches([5]))


def test_read_ahead_is_bounded():
    taken = []

    def random_images():
        for number in range(100):
            taken.append(number)
            yield noise(8, 8, seed=number)

    batches = ViewPipeline(SMALL, 4, prefetch=2).batches(random_images())
    assert not taken, "nothing is read before the first batch is asked for"
    next(batches)
    assert len(taken) == 3 * 4
    next(batches)
    assert len(taken) == 4 * 4
    batches.close()
    assert len(taken) == 4 * 4


def test_whoever_wants_no_more_waits_for_no_others(monkeypatch):
    """Closed while every thread is busy: what has not begun never begins, and no thread is left."""
    begun, busy, go_on = [], threading.Event(), threading.Event()

    def slow(image, preprocess):
        begun.append(image)
        if len(begun) > 1:
            busy.set()
            assert go_on.wait(60)
        return make_view(image, preprocess)

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            go_on.set()  # only now, when the others are cancelled
            super().shutdown(wait=wait)

    monkeypatch.setattr(view, "make_view", slow)
    monkeypatch.setattr(view, "ThreadPoolExecutor", Pool)
    batches = ViewPipeline(SMALL, 1, prefetch=20, threads=1).batches(noise(8, 8, seed=seed) for seed in range(50))
    next(batches)
    assert busy.wait(60)
    batches.close()
    assert len(begun) == 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_a_image_of_pillows_may_be_given_twice(tmp_path):
    Image.fromarray(noise(64, 64)).save(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as opened:  # not loaded yet
        (batch,) = ViewPipeline(SMALL, 8, threads=4).batches([opened] * 8)
    for one in batch:
        assert torch.equal(one, batch[0])


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_calls_overlap_and_answers_come_in_order(at_once):
    """So many calls are under way together, no more, and each item keeps its own answer, however long it takes."""
    under_way, most, together = [], [], Barrier(at_once)

    def slow(item):
        under_way.append(item)
        most.append(len(under_way))
        if item < at_once:
            together.wait(timeout=60)  # fails unless all of them are called before one is answered
        under_way.remove(item)
        return 10 * item

    assert list(map_concurrently(slow, range(7), at_once)) == [(item, 10 * item) for item in range(7)]
    assert max(most) == at_once


def test_items_are_taken_no_further_than_calls_need_them():
    taken = []
    found = map_concurrently(lambda item: item, (taken.append(i) or i for i in range(100)), 2)
    assert next(found) == (0, 0)
    assert taken == [0, 1]
    found.close()


def test_a_call_that_fails_says_so():
    def fail(item):
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        list(map_concurrently(fail, range(5), 2))
