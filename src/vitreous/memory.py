"""How much memory there is, and refusing in time what needs more."""

from __future__ import annotations

import sys
from pathlib import Path

from vitreous.allocator import give_back_memory
from vitreous.errors import MachineError, UserError
from vitreous.inputs import size_text


def check_memory(needed: float, what: str, instead: str) -> None:
    """Refuse what needs more memory than this process can get, before any of it is taken, with both numbers.

    needed: bytes. what: what a person asked for, such as "image size 100000". instead: what to do, as an imperative.
    """
    available = available_memory()
    if available is not None and needed > available:
        give_back_memory()  # of an earlier verb in this process
        available = available_memory()
    if available is not None and needed > available:
        raise UserError(
            f"{what}: needs about {size_text(int(min(needed, 1e18)))} of memory, and there are {size_text(available)}; "
            f"{instead}."
        )


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still get.

    That is the least that the system, its group (cgroup) and its own limit on addresses (ulimit -v) would give.
    Pages that only hold copies of files count as available, for the system gives them up when memory is needed. None
    where the system does not tell. root: the folder that holds proc and sys.
    """
    found = [1024 * kilobytes for kilobytes in _table(root / "proc/meminfo", "MemAvailable:")]
    found += [
        limit - 1024 * taken for limit in _address_space() for taken in _table(root / "proc/self/status", "VmSize:")
    ]
    groups = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, names = groups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        below = top / path.lstrip("/")
        # Those above a group bind it too. In a container the path may be the host's: then only `top` is there.
        for folder in (below, *(parent for parent in below.parents if parent.is_relative_to(top))):
            found += _left(folder, *names)
    return max(0, min(found)) if found else None


def resident_bytes() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    return 1024 * sum(_table(Path("/proc/self/status"), "VmRSS:"))


def peak_bytes() -> int:
    """Bytes of memory that this process has held at most; 0 where the system does not tell."""
    return 1024 * sum(_table(Path("/proc/self/status"), "VmHWM:"))


def check_address_space(least: int) -> None:
    """Refuse to go on where a process may have fewer addresses (ulimit -v) than its libraries take when they load."""
    for limit in _address_space():
        if limit < least:
            raise MachineError(
                f"this process may have {size_text(limit)} of addresses, and its libraries take about "
                f"{size_text(least)}; raise the limit (ulimit -v)."
            )


def _address_space() -> list[int]:
    """[bytes of addresses that this process may have], or [] where there is no limit."""
    if sys.platform == "win32":
        return []
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return [] if limit == resource.RLIM_INFINITY else [limit]


def _left(group: Path, limit: str, used: str, reclaimable: str) -> list[int]:
    """[bytes that a group may still take], or [] where it has no limit."""
    numbers = [int(line) for name in (limit, used) for line in _lines(group / name) if line.isdigit()]  # or "max"
    if len(numbers) < 2:
        return []
    return [numbers[0] - numbers[1] + sum(_table(group / "memory.stat", reclaimable))]


def _table(path: Path, key: str) -> list[int]:
    """[the number after this word], of a file of lines "word number", or [] where there is none."""
    return [int(words[1]) for words in map(str.split, _lines(path)) if words[:1] == [key]]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not every system has it
        return []
