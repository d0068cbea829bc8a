import os
import pickle

import numpy as np

from support.images import noise
from vitreous.data.collate import MAX_CACHE_BYTES, ImageCache, default_cache_bytes
from vitreous.memory import available_memory

WHOLE, MIDDLE = (0.0, 0.0, 1.0, 1.0), (0.1, 0.25, 1 / 3, 0.5)


def test_what_is_put_comes_back_until_it_is_full():
    cache = ImageCache(4, 8 * 8 * 3 * 2 + 10)
    assert cache.get(0) is None
    cache.put(0, noise(8, 8, seed=0), WHOLE)
    cache.put(3, noise(8, 8, seed=3), MIDDLE)
    cache.put(1, noise(8, 8, seed=1), WHOLE)  # no room
    cache.put(0, noise(8, 8, seed=9), MIDDLE)  # already there
    for index, box in ((0, WHOLE), (3, MIDDLE)):
        kept, seen = cache.get(index)
        np.testing.assert_array_equal(kept, noise(8, 8, seed=index))
        assert seen == box
    assert cache.get(1) is None
    assert cache.get(2) is None
    assert cache.used == 384


def test_forked_processes_share_it():
    cache = ImageCache(2, 10_000)
    child = os.fork()
    if child == 0:
        try:
            cache.put(1, noise(5, 7, seed=1), MIDDLE)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    kept, seen = cache.get(1)
    np.testing.assert_array_equal(kept, noise(5, 7, seed=1))
    assert seen == MIDDLE


def test_without_memory_or_in_a_fresh_process_it_is_empty():
    cache = ImageCache(2, 0)
    cache.put(0, noise(4, 4), WHOLE)
    assert cache.get(0) is None
    full = ImageCache(2, 1000)
    full.put(0, noise(4, 4), WHOLE)
    assert full.get(0) is not None
    assert pickle.loads(pickle.dumps(full)).get(0) is None
    assert 0 < default_cache_bytes() <= MAX_CACHE_BYTES


GIB = 2**30
MEMINFO = "MemTotal: 8388608 kB\nMemFree: 65536 kB\nMemAvailable: 6291456 kB\nBuffers: 0 kB\n"
"""8 GiB, nearly all of it filled by the system with copies of files that were read, which it gives up when asked to."""


def system(root, **files):
    """A tree of files as /proc and /sys have them, their paths written with __ for a slash and _D_ for a dot."""
    for path, text in {"proc__meminfo": MEMINFO, **files}.items():
        file = root / path.replace("__", "/").replace("_D_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_memory_that_holds_copies_of_files_is_available(tmp_path):
    assert available_memory(system(tmp_path)) == 6 * GIB
    assert default_cache_bytes(tmp_path) == MAX_CACHE_BYTES == GIB


def test_a_group_that_holds_the_process_is_a_limit(tmp_path):
    """cgroup v2, as in a container: 512 MiB, of which 400 are taken, 100 of them by copies of files."""
    mib = 2**20
    system(
        tmp_path,
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memory_D_max=f"{512 * mib}\n",
        sys__fs__cgroup__memory_D_current=f"{400 * mib}\n",
        sys__fs__cgroup__memory_D_stat=f"anon 5\ninactive_file {100 * mib}\nactive_file 7\n",
    )
    assert available_memory(tmp_path) == 212 * mib
    assert default_cache_bytes(tmp_path) == 53 * mib


def test_the_least_of_the_groups_around_the_process(tmp_path):
    system(
        tmp_path,
        proc__self__cgroup="0::/user/session\n",
        sys__fs__cgroup__user__memory_D_max=f"{3 * GIB}\n",
        sys__fs__cgroup__user__memory_D_current=f"{GIB}\n",
        sys__fs__cgroup__user__session__memory_D_max="max\n",
        sys__fs__cgroup__user__session__memory_D_current=f"{GIB}\n",
    )
    assert available_memory(tmp_path) == 2 * GIB
    (tmp_path / "sys/fs/cgroup/user/memory.max").write_text("max\n")
    assert available_memory(tmp_path) == 6 * GIB


def test_groups_of_the_first_version(tmp_path, subtests):
    """Where a container does not see the path that the host has given its group, the limit is at the top."""
    for folder in ("docker__x", ""):
        with subtests.test(folder):
            root = tmp_path / f"below {folder}"
            place = f"sys__fs__cgroup__memory__{folder}__".replace("____", "__")
            files = {
                "proc__self__cgroup": "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n",
                place + "memory_D_limit_in_bytes": f"{2 * GIB}\n",
                place + "memory_D_usage_in_bytes": f"{GIB}\n",
                place + "memory_D_stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n",
            }
            assert available_memory(system(root, **files)) == 3 * GIB // 2
            file = root / (place + "memory_D_limit_in_bytes").replace("__", "/").replace("_D_", ".")
            file.write_text(f"{2**63 - 4096}\n")  # how it says: none
            assert available_memory(root) == 6 * GIB
            file.write_text(f"{GIB // 4}\n")  # lowered below what is taken
            assert default_cache_bytes(root) == 0


def test_a_system_that_does_not_tell(tmp_path):
    assert available_memory(tmp_path) is None
    assert default_cache_bytes(tmp_path) == MAX_CACHE_BYTES // 4
