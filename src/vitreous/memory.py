"""How much memory there is, and refusing in time what needs more."""

from __future__ import annotations

from pathlib import Path

from vitreous.errors import UserError
from vitreous.inputs import size_text


def check_memory(needed: float, what: str, instead: str) -> None:
    """Refuse what needs more memory than this process can get, before any of it is taken, with both numbers.

    needed: bytes. what: what a person asked for, such as "image size 100000". instead: what to do, as an imperative.
    """
    available = available_memory()
    if available is not None and needed > available:
        raise UserError(
            f"{what}: needs about {size_text(int(min(needed, 1e18)))} of memory, and there are {size_text(available)}; "
            f"{instead}."
        )


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still get: the least that the system and any group it is in (cgroup) would give.

    Pages that only hold copies of files count as available, for the system gives them up when memory is needed. None
    where the system does not tell. root: the folder that holds proc and sys.
    """
    found = [1024 * kilobytes for kilobytes in _table(root / "proc/meminfo", "MemAvailable:")]
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
