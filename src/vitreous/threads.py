"""How many cores this process may use, and how long idle threads of OpenMP spin before they sleep.

OpenMP's threads spin while they wait for work, some milliseconds by default. That is fastest when each has a core for
itself; when other processes want the cores, every wait costs their turn. `limit_spinning` shortens it (docs/log.md has
the measurement). The command line calls it before torch loads; `import vitreous` changes nothing in the host process.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

SPINS, CROWDED_SPINS = 1000, 0
"""Rounds of GNU's OpenMP, which torch's builds for Linux bring: as fast as its default of 300,000 on idle cores."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # variables by which a person says it


def usable_cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: its CPU affinity, and at most the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:  # cgroups of version 1
            quota, period = ((group / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return max(1, min(cores, math.ceil(int(quota) / int(period)))) if int(quota) > 0 else cores
    except (OSError, ValueError):  # no groups, or no quota: "max"
        return cores


def limit_spinning(loads: Path = Path("/proc/loadavg")) -> None:
    """Set OpenMP's variables for torch, unless it is loaded already: what a person has set stays."""
    if "torch" in sys.modules:
        return
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = str(CROWDED_SPINS if _is_crowded(loads) else SPINS)
    if (cores := usable_cores()) < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


def _is_crowded(loads: Path) -> bool:
    """Whether other processes want all cores of the machine just now."""
    try:
        running = int(loads.read_text().split()[3].partition("/")[0])  # "0.20 0.18 0.12 3/410 7093": 3, with this one
    except (OSError, IndexError, ValueError):  # not every system tells
        return False
    return running > (os.cpu_count() or 1)
