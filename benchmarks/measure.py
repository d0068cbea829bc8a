"""How speeds are measured here: side by side, in turns, the best of several rounds, as no machine is ever quiet."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"
FEATURES = ("avx", "fma", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


def best_seconds(jobs: Mapping[str, Callable[[], object]], rounds: int, slice_seconds: float = 0.4) -> dict[str, float]:
    """Seconds a call of each job: in every round each job runs for a slice of time in turn; the best slice counts."""
    repeats = {}
    for name, job in jobs.items():
        job()
        start = time.perf_counter()
        job()
        repeats[name] = max(1, round(slice_seconds / (time.perf_counter() - start)))
    best = dict.fromkeys(jobs, float("inf"))
    order = list(jobs)
    for turn in range(rounds):
        for name in order if turn % 2 == 0 else reversed(order):
            start = time.perf_counter()
            for _ in range(repeats[name]):
                jobs[name]()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats[name])
    return best


class Speedup(NamedTuple):
    """How fast one job is beside the first of several."""

    seconds: float
    """A call by the clock: the median."""
    clock: list[float]
    """How many times as fast as the first, turn by turn: the lower quartile, the median and the upper one."""
    processor: list[float]
    """The same by the processor time of all threads, in which a virtual machine's neighbours count less."""


def compare_in_turns(jobs: Mapping[str, Callable[[], object]], turns: int) -> dict[str, Speedup]:
    """How the jobs compare where one call of each follows another: what slows the machine for a while slows all."""
    for job in jobs.values():
        job()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for turn in range(turns):
        for name in list(jobs)[:: 1 if turn % 2 == 0 else -1]:
            start = time.perf_counter(), time.process_time()
            jobs[name]()
            taken[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    seconds = {name: np.array(pairs) for name, pairs in taken.items()}  # (turns, 2)
    first = next(iter(seconds.values()))
    found = {}
    for name, own in seconds.items():
        clock, processor = np.quantile(first / own, [0.25, 0.5, 0.75], axis=0).round(3).T.tolist()
        found[name] = Speedup(float(np.median(own[:, 0])), clock, processor)
    return found


def matmul_job(side: int = 2048) -> tuple[Callable[[], object], float]:
    """A large float32 matrix product, the machine's peak, and its floating-point operations."""
    a, b, out = (torch.randn(side, side) for _ in range(3))
    return lambda: torch.mm(a, b, out=out), 2.0 * side**3


def peak_megabytes() -> float:
    """The most memory that this process has held so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("this system does not tell a process its peak memory")


def machine() -> dict[str, Any]:
    """What the figures were measured on and with."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "features": _cpu_features(),
        "gemm_gflops": round(gemm_gflops()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def gemm_gflops() -> float:
    """Float32 operations a second in a large matrix product, the best of several: how quick the machine was."""
    job, flops = matmul_job(1024)
    return flops / best_seconds({"gemm": job}, rounds=5, slice_seconds=0.1)["gemm"] / 1e9


def instructions() -> str:
    """The processor's instructions in a word, for results that differ by them: "vnni", "avx512", "avx2" or "none"."""
    known = {"avx512_vnni": "vnni", "avx512f": "avx512", "avx2": "avx2"}
    return next((word for feature, word in known.items() if feature in _cpu_features()), "none")


def _cpu_features() -> list[str]:
    """Of the instructions that matter to speed, those that the processor has."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().partition("flags")[2].partition("\n")[0].split() if info.exists() else []
    return [name for name in FEATURES if name in flags]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


Sections = Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]]
"""Parts of a benchmark that can be measured one at a time, by name."""


def measure_sections(result: str, sections: Sections, args: argparse.Namespace) -> None:
    """Measure the sections that `args.only` names, and keep each in its result, beside the others, as soon as it is."""
    for name in args.only.split(","):
        load = os.getloadavg()[0]
        measured = {**sections[name](args), "load_before": round(load, 2), "measured_on": machine()}
        path = RESULTS / f"{result}.json"
        known = json.loads(path.read_text()) if path.exists() else {}  # by now: sections may run side by side
        known.pop("machine", None)
        write_result(result, {**known, name: measured})


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Keep a result beside the benchmark, with the machine it came from."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    return path
