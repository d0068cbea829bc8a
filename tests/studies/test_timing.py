"""How long an image and a step take, before a study plans its time."""

from types import SimpleNamespace

import numpy as np
import torch

from vitreous.config.data import Preprocess
from vitreous.config.train import Training
from vitreous.data.packed import ArraySource
from vitreous.model.family import named_config
from vitreous.studies import timing


def test_a_whole_step_is_timed_unless_it_takes_too_long(monkeypatch):
    """8 images take 0.5 s, 64 take 3 s, and not 4: what small batches say is taken only where nothing else can be."""
    training = Training(named_config("F/4@16", classes=2), Preprocess(size=(16, 16)), batch_size=64)
    monkeypatch.setattr(timing, "_timed", lambda training, *_: {8: 0.5, 64: 3.0}[training.batch_size])
    assert timing.seconds_per_step(training, range(100), None, limit=5.0) == 3.0
    assert timing.seconds_per_step(training, range(100), None, limit=3.5) == 4.0


def test_the_first_images_warm_up_and_the_rest_tell_until_it_is_known(monkeypatch):
    """16 at once take 4 s at first and then 1 s: after two of these it is known."""
    clock, seen = SimpleNamespace(now=0.0), []

    def compute(source):
        seen.append([source.key(i) for i in range(len(source))])
        clock.now += 4.0 if len(seen) == 1 else 1.0

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    images = torch.zeros(100, 3, 4, 4, dtype=torch.uint8)
    source = ArraySource("d.npz", images, np.zeros(100, dtype=np.int64), ("a",))
    assert timing.seconds_per_image(compute, source) == 2.0 / 32
    assert list(map(len, seen)) == [16] * 3
    assert len({key for keys in seen for key in keys}) == 48
