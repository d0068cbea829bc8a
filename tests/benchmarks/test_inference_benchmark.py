"""What benchmarks say of the engine that answered, and how they compare speeds; nothing is measured."""

import time

import pytest

from contenders import Exports, Vitreous
from measure import compare_in_turns
from support.colours import make_bundle
from support.tiny_networks import random_images
from vitreous.inference.conversion import convert_model
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.engines import TORCH, Variant
from vitreous.weights.bundle import load_bundle


@pytest.mark.slow
def test_the_engine_is_the_one_that_auto_takes(monkeypatch, tmp_path):
    """Not the fastest of all: for few images that is not worth its opening."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    path = make_bundle(tmp_path / "bundle")
    bundle = load_bundle(path)
    prepared = EngineCache(bundle)
    prepared.put(convert_model(bundle, "openvino", random_images(bundle, 4)))
    prepared.remember({TORCH: 10.0, Variant("openvino", "fp32"): 25.0})
    exports = Exports(path, path, path, ())
    assert Vitreous(exports, "auto").engine_for(15) == "torch-fp32"
    assert Vitreous(exports, "auto").engine_for(100) == "openvino-fp32"
    assert Vitreous(exports, "torch").engine_for(100) == "torch-fp32"


def test_what_slows_the_machine_for_a_while_slows_all(monkeypatch):
    """Twice as fast in every turn, on a machine that becomes three times as slow after the first of three."""
    clock, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: clock[0] / 2)

    def job(name, seconds):
        calls.append(name)
        clock[0] += seconds * (3 if len(calls) > 4 else 1)

    jobs = {"plain": lambda: job("plain", 2.0), "fast": lambda: job("fast", 1.0)}
    found = compare_in_turns(jobs, 3)
    assert calls == ["plain", "fast", "plain", "fast", "fast", "plain", "plain", "fast"]  # each once before
    assert found["fast"].clock == found["fast"].processor == pytest.approx([2.0, 2.0, 2.0])
    assert found["plain"].seconds == 6.0
