"""A process that computes keeps its memory, unless a person has said otherwise or the machine counts addresses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitreous import memory

GLIBC = sys.platform == "linux" and (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
pytestmark = pytest.mark.skipif(not GLIBC, reason="only glibc's malloc can be told to keep memory")

FORWARD = """
import ctypes, json, resource
{before}
ctypes.CDLL(None).prctl({no_huge_pages}, 1, 0, 0, 0)
import torch
from vitreous import ViT, ViTConfig
from vitreous.memory import trim_memory, retain_memory

retain_memory()
torch.set_num_threads(1)
network = ViT(ViTConfig(width=32, depth=1, heads=1, mlp_width=1024, patch=16, image_size=(224, 224), classes=2)).eval()
images = torch.zeros(64, 3, 224, 224)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def memory(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

with torch.inference_mode():
    for _ in range(2):
        scores = network(images)
    passes = []
    for _ in range(6):
        before = faults()
        network(images)
        passes.append(faults() - before)
# the fewest: what else the system does with our pages only adds to them
told = {{"keeps": retain_memory(), "faults": min(passes), "passes": passes, "addresses": memory("VmSize:")}}
told["peak"], told["kept"] = memory("VmHWM:"), memory("VmRSS:")
trim_memory()
told["given back"] = told["kept"] - memory("VmRSS:")
assert torch.equal(network(images), scores)
print(json.dumps(told))
"""
NO_HUGE_PAGES = 41
"""PR_SET_THP_DISABLE of Linux: where the system gives pages of 2 MB to all, there are few faults to be counted."""
ASKED = 4_000
"""Page faults where memory is asked for again: 12,500 pages of 4 kB, fewer where the system gives larger ones."""
LIMIT = "resource.setrlimit(resource.{}, ({bytes}, {bytes}))"


def run(before="", **environment):
    """What a process told that ran a network some times: 64 x 196 tokens of 1,024 numbers are 51 MB at once."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "VITREOUS_"))}
    code = FORWARD.format(before=before, no_huge_pages=NO_HUGE_PAGES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own | environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def off():
    return run(VITREOUS_ALLOCATOR="off")


@pytest.mark.slow
def test_memory_is_kept_and_reused_without_page_faults(off):
    on = run()
    assert on["keeps"]
    assert not off["keeps"]
    assert off["faults"] > ASKED, "glibc gives 51 MB back at once, and asks for them again"
    assert on["faults"] < off["faults"] / 5
    assert on["peak"] < off["peak"] + 100e6, "what is reserved is addresses, not memory"
    assert on["given back"] > 20e6
    assert abs(off["given back"]) < 20e6


CHOICES = {
    "GLIBC_TUNABLES": "glibc.malloc.arena_max=2",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_CONF": "thp:always",
    "VITREOUS_ALLOCATOR": "OFF",
}


def test_the_user_has_chosen(subtests, monkeypatch):
    monkeypatch.setattr(memory, "_glibc_malloc", lambda: pytest.fail("not asked"))
    for name, value in CHOICES.items():
        with subtests.test(name), monkeypatch.context() as patch:
            patch.setattr(memory, "_keeping", None)
            patch.setenv(name, value)
            assert not memory.retain_memory()
            memory.trim_memory()


def test_settings_of_other_things_are_not_about_memory():
    assert not memory._is_configured_by_user({"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=512", "HOME": "/"})


HOST = """
import ctypes, json, os
before = dict(os.environ)
asked = []

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        asked.append(name)
        return super().__getattr__(name)

ctypes.CDLL = Library
{code}
changed = [name for name in os.environ.keys() | before.keys() if os.environ.get(name) != before.get(name)]
print(json.dumps([changed, "mallopt" in asked]))
"""
USES = {
    "import vitreous; [getattr(vitreous, name) for name in vitreous.__all__]": False,
    "import vitreous; vitreous.models(['Ti/16'])": False,
    "from vitreous.cli import main; main(['models', 'Ti/16'])": True,
}


@pytest.mark.slow
def test_only_the_command_changes_the_process(subtests):
    """Whoever imports the package in a program of their own keeps their environment and their malloc."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_", "VITREOUS_", "OMP_", "GOMP_"))
    }
    for code, set_ in USES.items():
        with subtests.test(code):
            words = [sys.executable, "-c", HOST.format(code=code)]
            done = subprocess.run(words, capture_output=True, text=True, env=own)
            assert done.returncode == 0, done.stderr
            changed, asked = json.loads(done.stdout.splitlines()[-1])
            assert asked == set_
            assert bool(changed) == set_  # how idle threads wait, for the processes that it starts
            assert all(name.startswith(("OMP_", "GOMP_")) for name in changed)


@pytest.mark.slow
def test_a_users_own_setting_stays_as_it_is():
    told = run(MALLOC_MMAP_THRESHOLD_="1048576")
    assert not told["keeps"]
    assert told["faults"] > ASKED


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_addresses_that_are_counted_are_not_taken(off, limit):
    """Memory is kept all the same, and the network finds the little that it needs."""
    told = run(LIMIT.format(limit, bytes=3 * 10**9))
    assert told["keeps"]
    assert told["addresses"] < off["addresses"] + 300e6
    assert told["faults"] < off["faults"] / 2


def test_no_block_no_harm(monkeypatch):
    """malloc may refuse the addresses, or the kernel huge pages."""
    freed = []

    class Refusing:
        mallopt = staticmethod(lambda what, value: 1)
        malloc = staticmethod(lambda size: None)
        free = staticmethod(freed.append)

    monkeypatch.setattr(memory, "_keeping", None)
    monkeypatch.setattr(memory, "_is_configured_by_user", lambda environment: False)
    monkeypatch.setattr(memory, "_glibc_malloc", Refusing)
    assert memory.retain_memory()
    assert not freed


def test_old_glibc_keeps_what_it_can(monkeypatch):
    """Before 2.35 no threshold above 32 MiB is taken."""
    asked = []

    class Old:
        @staticmethod
        def mallopt(what, value):
            asked.append(value)
            return int(value <= 2**25)

    assert memory._disable_trimming(Old())
    assert asked == [2**30, 2**25, -1]


def test_other_systems(monkeypatch):
    monkeypatch.setattr(memory, "_is_configured_by_user", lambda environment: False)
    for system in ("darwin", "win32"):
        monkeypatch.setattr(memory, "_keeping", None)
        monkeypatch.setattr(sys, "platform", system)
        assert not memory.retain_memory()


def test_another_c_library(monkeypatch):
    """musl does not know the name, and Python says so by an error."""

    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown)
    assert memory._glibc_malloc() is None


def test_another_allocator_that_was_loaded_before(tmp_path):
    """A library with a malloc of its own, as jemalloc has, in front of glibc's."""
    source, library = tmp_path / "own.c", tmp_path / "own.so"
    source.write_text(
        "#include <stddef.h>\nextern void *__libc_malloc(size_t);\n"
        "void *malloc(size_t n) { return __libc_malloc(n); }\n"
    )
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    code = "from vitreous.memory import retain_memory; print(retain_memory())"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "VITREOUS_"))}
    for environment, kept in (({}, "True"), ({"LD_PRELOAD": str(library)}, "False")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own | environment)
        assert (done.stdout.strip(), done.stderr) == (kept, "")


def test_overcommitment_that_is_forbidden(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: "2\n")
    assert memory._has_address_limit()
