"""How much memory there is, refusing early what needs more, and keeping freed memory in the process.

glibc's malloc gives large blocks back to the system as soon as they are free. A network frees its activations layer by
layer, so the system takes them back, clears them and hands them out again, page by page, thousands of times a second.
`retain_memory` tells glibc to keep what is free, and gives it one large range of addresses that the system may back
with huge pages (2 MiB instead of 4 KiB). Addresses are not memory: only what is really used is taken.

The command line calls it; `import vitreous` changes nothing in the host process. In a notebook, call it before anything
is computed. It does nothing with another C library or allocator, nor if the user has set GLIBC_TUNABLES for malloc or a
MALLOC_ variable. VITREOUS_ALLOCATOR=off switches it off.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from vitreous.errors import MachineError, UserError
from vitreous.inputs import format_bytes

SWITCH = "VITREOUS_ALLOCATOR"
HUGE_PAGE = 2**21
MMAP_THRESHOLDS = (
    2**30,
    2**25,
)  # bytes of a free block that is kept; the second is the most before glibc 2.35

# The numbers of <malloc.h>, <sys/mman.h> and of malloc's own default.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_MADV_HUGEPAGE = 14
_DEFAULT_MMAP_MAX = 65536

_keeping: ctypes.CDLL | None = None
"""The C library of a process that keeps its memory."""


def check_memory(needed: float, what: str, instead: str) -> None:
    """Refuse what needs more memory than this process can get, before any of it is taken, with both numbers.

    needed: bytes. what: what a person asked for, such as "image size 100000". instead: what to do, as an imperative.
    """
    available = available_memory()
    if available is not None and needed > available:
        trim_memory()  # of an earlier verb in this process
        available = available_memory()
    if available is not None and needed > available:
        raise UserError(
            f"{what}: needs about {format_bytes(int(min(needed, 1e18)))} of memory, and there are "
            f"{format_bytes(available)}; {instead}."
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
            found += _group_available(folder, *names)
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
                f"this process may have {format_bytes(limit)} of addresses, and its libraries take about "
                f"{format_bytes(least)}; raise the limit (ulimit -v)."
            )


def _address_space() -> list[int]:
    """[bytes of addresses that this process may have], or [] where there is no limit."""
    if sys.platform == "win32":
        return []
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return [] if limit == resource.RLIM_INFINITY else [limit]


def _group_available(group: Path, limit: str, used: str, reclaimable: str) -> list[int]:
    """[bytes that a group may still take], or [] where it has no limit."""
    numbers = [int(line) for name in (limit, used) for line in _lines(group / name) if line.isdigit()]  # or "max"
    if len(numbers) < 2:
        return []
    return [numbers[0] - numbers[1] + sum(_table(group / "memory.stat", reclaimable))]


def _table(path: Path, key: str) -> list[int]:
    """[the number after this word], in a file of lines "word number"; else []."""
    return [int(words[1]) for words in map(str.split, _lines(path)) if words[:1] == [key]]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not every system has it
        return []


def retain_memory() -> bool:
    """Have this process keep its memory and use huge pages; whether it does. To call it again changes nothing."""
    global _keeping
    if _keeping is None and not _is_configured_by_user(os.environ):
        libc = _glibc_malloc()
        if libc is not None and _disable_trimming(libc):
            _reserve_addresses(libc)
            _keeping = libc
    return _keeping is not None


def trim_memory() -> None:
    """Give the system what this process keeps and does not use; what it frees from now on it keeps again."""
    if _keeping is not None:
        _keeping.malloc_trim(0)
        _reserve_addresses(_keeping)  # trimming gave up the addresses too


def _disable_trimming(libc: ctypes.CDLL) -> bool:
    kept = any(libc.mallopt(_M_MMAP_THRESHOLD, size) for size in MMAP_THRESHOLDS)
    return bool(kept and libc.mallopt(_M_TRIM_THRESHOLD, -1))


def _is_configured_by_user(environment: Mapping[str, str]) -> bool:
    """Whether a person has said how memory is to be managed."""
    return (
        environment.get(SWITCH, "").lower() == "off"
        or "glibc.malloc." in environment.get("GLIBC_TUNABLES", "")
        or any(name.startswith("MALLOC_") for name in environment)
    )


def _glibc_malloc() -> ctypes.CDLL | None:
    """glibc, if it is also what this process allocates with; another allocator may have been loaded before it."""
    if sys.platform != "linux":
        return None
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return None
        libc = ctypes.CDLL(None)
        libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        return libc if _library_of(libc, "malloc") == _library_of(libc, "gnu_get_libc_version") else None
    except (OSError, ValueError, AttributeError):  # musl knows no such name, and a static Python no such function
        return None


def _library_of(libc: ctypes.CDLL, function: str) -> int | None:
    """Where the library that this function comes from begins in memory."""
    info = (ctypes.c_void_p * 4)()  # `Dl_info` of <dlfcn.h>: file, base, name and address
    libc.dladdr(ctypes.cast(getattr(libc, function), ctypes.c_void_p), ctypes.byref(info))
    return info[1]


def _reserve_addresses(libc: ctypes.CDLL) -> None:
    """Let malloc's heap reach over half of the machine's memory, in huge pages. None of it is touched.

    The block that is taken and freed here becomes the heap's unused end, which later blocks are cut from. Where
    addresses are counted (ulimit -v and -d, no overcommitment) they are left to those who need them.
    """
    if _has_address_limit():
        return
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    libc.mallopt(_M_MMAP_MAX, 0)  # from the heap, however large
    start = libc.malloc(size)
    libc.mallopt(_M_MMAP_MAX, _DEFAULT_MMAP_MAX)
    if start is None:
        return
    first, end = -(-start // HUGE_PAGE) * HUGE_PAGE, (start + size) // HUGE_PAGE * HUGE_PAGE
    if first < end:
        libc.madvise(first, end - first, _MADV_HUGEPAGE)  # a kernel without huge pages refuses: then with small ones
    libc.free(start)


def _has_address_limit() -> bool:
    import resource

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if any(limit != resource.RLIM_INFINITY for limit in limits):
        return True
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        return True
