"""In which precision a step is computed: it follows the device."""

from __future__ import annotations

import faulthandler
import multiprocessing
import sys
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch

SECONDS = 20.0
"""For a product of two small matrices: whoever needs longer is not fast."""


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
    process. So another process tries.
    """
    processes: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    trial = processes.Process(target=_multiply)
    trial.start()
    trial.join(SECONDS)
    if trial.is_alive():
        trial.kill()
        trial.join()
    return bool(trial.exitcode == 0)


def _multiply() -> None:
    """A product large enough that AMX is used for it."""
    faulthandler.disable()  # that this process may die is no news
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    rows = torch.ones(512, 256, dtype=torch.bfloat16)
    torch.nn.functional.linear(rows, rows)
