"""How fast engines answer on this machine: in turns, the median of several rounds, as no machine is ever quiet."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Hashable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vitreous.inference.engine import Engine

Key = TypeVar("Key", bound=Hashable)

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm")
"""Instructions that decide which engine is fastest."""


def measure_speeds(engines: Mapping[Key, Engine], *, rounds: int = 5, seconds: float = 0.5) -> dict[Key, float]:
    """Images a second of each engine, with as many at once as it likes best."""
    jobs = {name: _job(engine) for name, engine in engines.items()}
    for job, _ in jobs.values():
        job()  # whatever is compiled when it is first used
    found: dict[Key, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds):
        for name, (job, count) in list(jobs.items())[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(count * _calls_per_second(job, seconds))
    return {name: float(np.median(speeds)) for name, speeds in found.items()}


def _job(engine: Engine) -> tuple[Callable[[], object], int]:
    images = noise(engine, engine.batch_size)
    answer = engine.scores if engine.classes else engine.representations
    return lambda: answer(images), len(images)


def _calls_per_second(job: Callable[[], object], seconds: float) -> float:
    start, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds or not calls:
        job()
        calls += 1
    return calls / passed if passed else float("inf")


def measure_latency(engine: Engine, batch: int, *, calls: int = 200, seconds: float = 5.0) -> tuple[float, float]:
    """Seconds from so many images to their answers: the median, and what 99 of 100 stay below.

    At most `calls` are tried, and no more than fit into `seconds`.
    """
    images = noise(engine, batch)
    answer = engine.scores if engine.classes else engine.representations
    answer(images)
    taken: list[float] = []
    while len(taken) < calls and (sum(taken) < seconds or len(taken) < 3):
        start = time.perf_counter()
        answer(images)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)), float(np.quantile(taken, 0.99))


def noise(engine: Engine, count: int) -> Tensor:
    """Images (count, C, H, W) uint8 of noise: what an engine computes takes as long whatever it sees."""
    shape = (count, engine.preprocess.channels, *engine.preprocess.size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def describe_machine() -> str:
    """What speeds depend on: processor, its instructions, threads, and the versions of what computes."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    name = text.partition("model name")[2].partition("\n")[0].strip(" \t:") or platform.processor()
    flags = (text.partition("flags")[2] or text.partition("Features")[2]).partition("\n")[0].split()
    features = " ".join(feature for feature in FEATURES if feature in flags)
    return f"{name} ({features}), {torch.get_num_threads()} of {os.cpu_count()} cores, {describe_software()}"


def describe_software() -> str:
    """The versions of what converts and computes."""
    packages = ("torch", "openvino", "nncf", "onnxruntime", "onnxscript")
    return ", ".join(f"{package} {_version(package)}" for package in ("vitreous", *packages))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
