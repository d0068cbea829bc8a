"""Cores that may be used, and what the command line tells OpenMP about waiting."""

import os
import subprocess
import sys

from vitreous import threads


def test_no_more_cores_are_used_than_there_are_to_use(tmp_path, monkeypatch):
    """A container may be given two of a machine's 64; threads for 64 would only need memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert threads.usable_cores(tmp_path) == 16
    for text, cores in (("max 100000", 16), ("150000 100000", 2), ("9900000 100000", 16), ("1000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text + "\n")
        assert threads.usable_cores(tmp_path) == cores
    older = tmp_path / "older"
    (older / "cpu").mkdir(parents=True)
    (older / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for text, cores in (("-1", 16), ("400000", 4)):
        (older / "cpu" / "cpu.cfs_quota_us").write_text(text)
        assert threads.usable_cores(older) == cores
    monkeypatch.delattr(os, "sched_getaffinity")
    assert threads.usable_cores(tmp_path / "nothing") == 64


def test_a_persons_own_setting_stays(monkeypatch, tmp_path, subtests):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "environ", {})
    loads = tmp_path / "loadavg"
    table = {"0.1 0.1 0.1 1/90 7": "1000", "3.1 1.0 0.1 2/90 7": "1000", "3.1 1.0 0.1 3/90 7": "0", "?": "1000"}
    for text, spins in table.items():
        with subtests.test(text):
            loads.write_text(text + "\n")
            os.environ.clear()
            threads.limit_spinning(loads)
            assert os.environ["GOMP_SPINCOUNT"] == spins
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        with subtests.test(name):
            os.environ.clear()
            os.environ[name] = "its own"
            threads.limit_spinning(loads)
            assert os.environ[name] == "its own"
            assert os.environ.get("GOMP_SPINCOUNT") in (None, "its own")


def test_torch_does_not_use_more_threads_than_there_are_cores(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "environ", {})
    threads.limit_spinning()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    os.environ["OMP_NUM_THREADS"] = "2"
    threads.limit_spinning()
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_the_command_sets_it_before_torch_loads_and_the_package_never():
    """libgomp reads the variable when it is loaded."""
    command = (
        "import os, sys, vitreous.cli as cli\n"
        "from vitreous import threads\n"
        "cli.limit_spinning = lambda: print('torch' in sys.modules)\n"
        "cli.main(['models'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in threads.WAITING}
    found = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("False\n")
    script = "import os; before = dict(os.environ); import vitreous; vitreous.load; print(before == dict(os.environ))"
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"
