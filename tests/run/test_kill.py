"""Trainings killed, ended and robbed of their workers at random moments; benchmarks/kill.py does it more often."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill.py"
COUNTS = {"--kills": 3, "--terms": 3, "--deaths": 2}


pytestmark = pytest.mark.xdist_group("kill")  # one process makes the costly fixture


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("kill") / "found.json"
    words = [str(word) for pair in COUNTS.items() for word in pair]
    subprocess.run([sys.executable, SCRIPT, *words, "--out", out], check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count", "statuses"),
    [
        ("SIGKILL to the process", COUNTS["--kills"], {"-9"}),
        ("SIGTERM to its group", COUNTS["--terms"], {"143", "-15"}),  # -15: when all was done
        ("SIGKILL to one of its workers", COUNTS["--deaths"], {"0"}),
    ],
)
def test_the_same_bits_come_out_and_nothing_is_left_behind(found, kind, count, statuses):
    tally = found[kind]
    assert tally["disturbances"] == count
    assert tally["same_bits"] == tally["trainings"] >= 1
    assert tally["tracebacks"] == 0, tally["said"]
    assert tally["left_behind"] == 0
    assert set(tally["statuses"]) <= statuses
