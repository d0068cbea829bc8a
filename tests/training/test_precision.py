"""bfloat16 only where the machine's matrix units work, found out by a process that may die of it."""

import faulthandler
import os
import signal
import sys
from contextlib import nullcontext

import pytest
import torch

from vitreous import UserError
from vitreous.inference.openvino import check_int8
from vitreous.model import precision as room
from vitreous.model.precision import INSTRUCTIONS, amx_works, avoid_broken_amx, precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def announced(monkeypatch):
    """A processor that says it has AMX; what was found out before is forgotten."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "amx_int8": True})
    monkeypatch.delenv(INSTRUCTIONS, raising=False)
    monkeypatch.setattr(room, "SECONDS", 300.0)  # however busy this machine is
    amx_works.cache_clear()
    yield
    amx_works.cache_clear()


def die():
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGILL)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the trial is a new process, which imports the real one")
@pytest.mark.parametrize(
    ("trial", "works"),
    [(lambda: None, True), (die, False), (signal.pause, False), (lambda: sys.exit(1), False)],
    ids=["it works", "an illegal instruction", "it takes for ever", "an error"],
)
def test_a_trial_decides(monkeypatch, trial, works):
    monkeypatch.setattr(room, "_multiply", trial)
    if trial is signal.pause:
        monkeypatch.setattr(room, "SECONDS", 0.2)
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


@pytest.mark.parametrize("works", [True, False])
def test_onednn_is_told_to_do_without_amx_where_that_is_broken(monkeypatch, works):
    """OpenVINO's int8 products are oneDNN's, which would take AMX and end the process."""
    monkeypatch.setattr(room, "_multiply", (lambda: None) if works else die)
    avoid_broken_amx()
    assert os.environ.get(INSTRUCTIONS) == (None if works else "AVX512_CORE_FP16")
    check_int8()
    amx_works.cache_clear()  # as in a process that is started from here
    monkeypatch.setattr(room, "_multiply", lambda: None)
    assert amx_works() is works, "what oneDNN may not use is not there"


def test_what_a_person_allows_onednn_stays_and_int8_is_refused_where_it_would_kill(monkeypatch):
    monkeypatch.setattr(room, "_multiply", die)
    monkeypatch.setenv(INSTRUCTIONS, "avx512_core_amx")
    avoid_broken_amx()
    assert os.environ[INSTRUCTIONS] == "avx512_core_amx"
    with pytest.raises(UserError, match=INSTRUCTIONS):
        check_int8()
    monkeypatch.setenv(INSTRUCTIONS, "AVX2")
    check_int8()
