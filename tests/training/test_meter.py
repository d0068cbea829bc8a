"""What a training spent: over interruptions, over counters that wrap, and in processes that have ended."""

import subprocess
import sys
import time
from types import SimpleNamespace

from vitreous.distributed.meter import Cost, Meter


def rapl(folder, package, value, wrap=1_000_000):
    place = folder / f"intel-rapl:{package}"
    place.mkdir(exist_ok=True)
    (place / "energy_uj").write_text(f"{value}\n")
    (place / "max_energy_range_uj").write_text(f"{wrap}\n")


def test_energy_of_all_packages_with_a_counter_that_wraps(tmp_path):
    rapl(tmp_path, 0, 900_000)
    rapl(tmp_path, 1, 100)
    meter = Meter(tmp_path)
    rapl(tmp_path, 0, 950_000)
    rapl(tmp_path, 1, 50_100)
    assert meter.spent().joules == 0.1
    rapl(tmp_path, 0, 50_000)  # 50,000 to the end, 50,000 after it
    assert meter.spent().joules == 0.2


def test_no_counter_no_figure(tmp_path):
    assert Meter(tmp_path).spent().joules is None


def test_what_was_spent_before_an_interruption_is_added(tmp_path, monkeypatch):
    """Seconds are those of the clock, core hours those of the processor."""
    clock, processor = iter((1000.0, 1010.0, 1010.0)), iter((50.0, 50.0 + 3600))
    monkeypatch.setattr("vitreous.distributed.meter.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr("vitreous.distributed.meter._cpu_seconds", lambda: next(processor))
    meter = Meter(tmp_path)
    meter.before = Cost(seconds=100.0, core_hours=2.0, joules=5.0)
    assert meter.spent() == Cost(seconds=110.0, core_hours=3.0, joules=5.0)
    assert meter.seconds == 10.0, "the present process's part alone"


def test_a_process_that_ended_counts(tmp_path):
    meter = Meter(tmp_path)
    work = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert meter.spent().core_hours * 3600 >= 0.18  # two counts, each rounded down to a hundredth


def test_a_process_knows_when_it_began(processes):
    before = time.monotonic()
    outcome = processes(code="from vitreous.cli.terminal import process_started; print(process_started())")
    assert before - 0.02 <= float(outcome.stdout) <= time.monotonic()  # the system counts hundredths of a second
