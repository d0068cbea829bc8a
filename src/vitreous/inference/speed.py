"""How fast engines are on this machine (in turns, the median of several rounds, as no machine is ever quiet), and what
machine that is.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Hashable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitreous import __version__
from vitreous.callbacks import Progress, no_progress
from vitreous.inference.engine import Engine
from vitreous.inference.engines import ENGINES

Key = TypeVar("Key", bound=Hashable)

INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm")
"""That decide which engine is fastest, and how int8 rounds."""


def measure_speeds(
    engines: Mapping[Key, Engine], *, rounds: int = 5, seconds: float = 0.5, progress: Progress = no_progress
) -> dict[Key, float]:
    """Images per second of each, at its best batch size."""
    calls = {name: _call(engine, engine.batch_size) for name, engine in engines.items()}
    for call in calls.values():
        call()  # whatever is compiled at the first call
    found: dict[Key, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name, call in list(calls.items())[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(engines[name].batch_size * _calls_per_second(call, seconds))
            progress(sum(map(len, found.values())), rounds * len(calls))
    return {name: float(np.median(speeds)) for name, speeds in found.items()}


def _call(engine: Engine, count: int) -> Callable[[], object]:
    images = noise(engine, count)
    compute = engine.logits if engine.classes else engine.representations
    return lambda: compute(images)


def _calls_per_second(call: Callable[[], object], seconds: float) -> float:
    start, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds or not calls:
        call()
        calls += 1
    return calls / passed if passed else float("inf")


def core_wait(rounds: int = 5, seconds: float = 0.02) -> float:
    """How many times as long as its processor time the work of one thread takes just now: 1 if no other process wants
    its core. The median of several rounds of so many seconds of processor time."""
    found = []
    for _ in range(rounds):
        start, used = time.perf_counter(), time.thread_time()
        while (spent := time.thread_time() - used) < seconds:
            pass
        found.append((time.perf_counter() - start) / spent)
    return max(1.0, float(np.median(found)))


def measure_latency(engine: Engine, batch: int, *, calls: int = 200, seconds: float = 5.0) -> tuple[float, float]:
    """Seconds per batch of this size: the median, and the 99th percentile.

    At most `calls` are timed, and no more than fit into `seconds`.
    """
    call = _call(engine, batch)
    call()
    taken: list[float] = []
    while len(taken) < calls and (sum(taken) < seconds or len(taken) < 3):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)), float(np.quantile(taken, 0.99))


def noise(engine: Engine, count: int) -> Tensor:
    """Images (count, C, H, W) uint8 of noise: an engine takes as long whatever is on them."""
    shape = (count, engine.preprocess.channels, *engine.preprocess.size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def describe_machine() -> str:
    """What speeds depend on: processor, threads, and the versions of what computes."""
    return f"{describe_processor()}, {torch.get_num_threads()} of {os.cpu_count()} cores, {describe_software()}"


def describe_processor() -> str:
    """Its name and its instructions: what the results of int8 depend on, whatever the number of threads."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    name = text.partition("model name")[2].partition("\n")[0].strip(" \t:") or platform.processor()
    flags = (text.partition("flags")[2] or text.partition("Features")[2]).partition("\n")[0].split()
    return f"{name} ({' '.join(one for one in INSTRUCTIONS if one in flags)})"


def describe_software() -> str:
    packages = ["vitreous", "torch", *(name for kind in ENGINES.values() for name in kind.needs)]
    return ", ".join(f"{package} {_version(package)}" for package in packages)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def machine_features(device: torch.device) -> dict[str, Any]:
    return {
        "device": device.type,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vitreous": __version__,
    }
