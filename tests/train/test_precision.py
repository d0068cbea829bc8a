"""bfloat16 only where the machine's matrix units work, found out by a process that may die of it."""

import faulthandler
import os
import signal
import sys
import time
from contextlib import nullcontext

import pytest
import torch

from vitreous.train import precision as room
from vitreous.train.precision import amx_works, precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def announced(monkeypatch):
    """A processor that says it has AMX; what was found out before is forgotten."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    amx_works.cache_clear()
    yield
    amx_works.cache_clear()


def die():
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGILL)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the trial is a new process, which imports the real one")
@pytest.mark.parametrize(
    ("trial", "works"),
    [(lambda: None, True), (die, False), (lambda: time.sleep(60), False), (lambda: sys.exit(1), False)],
    ids=["it works", "an illegal instruction", "it takes for ever", "an error"],
)
def test_a_trial_decides(monkeypatch, trial, works):
    monkeypatch.setattr(room, "_multiply", trial)
    monkeypatch.setattr(room, "SECONDS", 20.0 if works else 1.0)
    assert amx_works() is works
    with precision(CPU) as found:
        product = torch.nn.functional.linear(torch.ones(4, 4), torch.ones(4, 4))
    assert product.dtype == (torch.bfloat16 if works else torch.float32)
    assert isinstance(precision(CPU), nullcontext) is not works
    assert (found is None) is not works


def test_without_amx_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(room, "amx_works", lambda: pytest.fail("there is nothing to try"))
    assert isinstance(precision(CPU), nullcontext)
