"""Where tests find what a clone does not carry, and how those that run side by side keep out of each other's way."""

import os
import random
import runpy
import signal
import time
from pathlib import Path
from tempfile import mkdtemp
from zlib import crc32

# Set before torch is imported, and inherited by the processes that tests start: the cores are shared by the tests.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
# No test asks the real hub for weights; those that ask one on this machine say so.
os.environ["VITREOUS_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

from support.commands import Processes
from vitreous.model.precision import avoid_broken_amx

# Under nohup, and in the background of a shell, these are ignored, and would be in every child.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
# Some tests compute in bfloat16 or int8, which would end the process where AMX is announced and broken. oneDNN looks at
# what it may use once, before its first product: so here is one.
avoid_broken_amx()
torch.ones(2, 2, dtype=torch.bfloat16) @ torch.ones(2, 2, dtype=torch.bfloat16)
torch.set_num_threads(1)  # tiny models gain nothing from more, and lose much where tests share a machine
# The same examples in every run, however slow the machine is.
settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
SHARED = Path(__file__).parents[2] / "shared" / "data"
# timm, and what transformers does with images, want torchvision; kept, for its operators live as long as this.
TORCHVISION = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "torchvision_on_cpu.py"))


def pytest_make_parametrize_id(val, argname):
    """No long content in a test's name: a file's may hold the time, and processes must agree on the names."""
    return argname if isinstance(val, str | bytes) and len(val) > 100 else None


def pytest_addoption(parser):
    parser.addoption("--until", type=float, help="start no exhaustive test after this time, in seconds since 1970")


def pytest_runtest_setup(item):
    until = item.config.getoption("--until")
    if until is not None and time.time() > until and item.get_closest_marker("exhaustive"):
        pytest.skip("left out: the time for exhaustive tests is over")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Side by side, files with long tests come first, so that no core waits at the end."""
    if PROCESSES > 1:
        long = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """What a fixture draws does not depend on the test that needs it first, which chance decides side by side."""
    _seed(fixturedef.argname)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    """What a test draws does not depend on the tests before it; nor is it what a fixture drew."""
    _seed(f"{item.path.name} {item.name}")


def _seed(name):
    number = crc32(name.encode())
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No test reads or writes the cache of whoever runs the tests, nor that of a process beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def processes(tmp_path_factory):
    """`processes("predict", MODEL, IMAGE)`: what a command does in a process of its own; `run_command` is quicker."""
    made = Processes(tmp_path_factory.mktemp("commands"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def once_per_run(tmp_path_factory):
    """`once_per_run(name, make)`: a folder that `make(folder)` filled, once for all processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name, make):
        folder = shared / f"once-{name}"
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                partial = Path(mkdtemp(dir=shared))
                make(partial)
                partial.rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def shared_data():
    """Real weights and images beside the project; a clone elsewhere does not have them."""
    if not SHARED.is_dir():
        pytest.skip("needs the real weights and images in ../shared/data, which are not part of the project")
    return SHARED
