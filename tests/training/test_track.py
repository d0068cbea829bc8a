"""Curves for TensorBoard, read back with its own reader."""

import pytest

from vitreous import UserError
from vitreous.callbacks import Event
from vitreous.training.loop import check_tensorboard, tracked


def curve(folder, tag):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return [(event.step, round(event.value, 4)) for event in reader.Scalars(tag)]


def events(*steps):
    return [Event(step, 9, 0, {"step": step, "loss": step / 2}, 100.0, {"accuracy": 0.5}) for step in steps]


def test_every_step_is_written_and_passed_on(tmp_path):
    heard = []
    with tracked(heard.append, tmp_path) as listener:
        for event in events(1, 2):
            listener(event)
    assert [event.step for event in heard] == [1, 2]
    assert curve(tmp_path, "train/loss") == [(1, 0.5), (2, 1.0)]
    assert curve(tmp_path, "validation/accuracy") == [(1, 0.5), (2, 0.5)]


def test_steps_that_are_taken_again_count_once(tmp_path):
    for part in (events(1, 2, 3), events(2, 3, 4)):
        with tracked(lambda event: None, tmp_path) as listener:
            for event in part:
                listener(event)
    assert [step for step, _ in curve(tmp_path, "train/loss")] == [1, 2, 3, 4]


def test_without_the_package_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr("vitreous.training.loop.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tensorboard: .*'vitreous\[track\]'"):
        check_tensorboard()
