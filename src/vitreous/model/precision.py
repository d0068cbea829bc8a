"""In which precision a step is computed: it follows the device."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch

INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"
"""The variable that tells oneDNN, which computes products in PyTorch and OpenVINO, the most that it may use."""
SECONDS = 20.0  # for a product of two small matrices: whoever needs longer is not fast


def precision(device: torch.device) -> Any:
    """bfloat16 where the device has matrix units for it, float32 elsewhere.

    On processors those are AMX's: AVX-512's instructions for bfloat16 are slower than float32 (docs/log.md).
    """
    if device.type == "cpu":
        fast = torch.cpu.get_capabilities().get("amx_bf16", False) and amx_works()
    else:
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16) if fast else nullcontext()


@cache
def amx_works() -> bool:
    """Whether AMX can be used where the processor says that it has it.

    Some virtual machines announce it, and their kernel grants it, and yet its first instruction is illegal and ends the
    process. So another process tries. Where oneDNN has been told not to use it, it is not there.
    """
    if not amx_allowed():
        return False
    processes: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    trial = processes.Process(target=_multiply)
    trial.start()
    trial.join(SECONDS)
    if trial.is_alive():
        trial.kill()
        trial.join()
    return bool(trial.exitcode == 0)


def amx_allowed() -> bool:
    told = os.environ.get(INSTRUCTIONS, "").upper()
    return told in ("", "DEFAULT") or "AMX" in told


def avoid_broken_amx() -> None:
    """Where AMX is announced and cannot be used, have oneDNN do without it, in this process and those that it starts.

    It has to be said before the first product of whichever library asks. A person's own setting stays.
    """
    if torch.cpu.get_capabilities().get("amx_int8", False) and not amx_works():
        os.environ.setdefault(INSTRUCTIONS, "AVX512_CORE_FP16")  # the most that is there without AMX


def _multiply() -> None:
    faulthandler.disable()  # that this process may die is no news
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    rows = torch.ones(512, 256, dtype=torch.bfloat16)
    torch.nn.functional.linear(rows, rows)
