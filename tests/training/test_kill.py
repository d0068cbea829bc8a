"""Trainings killed, ended and robbed of their workers at random moments; benchmarks/kill.py does it more often.

`make test` does so at chosen moments: jobs/test_fit_resume.py, cli/test_signals.py and data/test_workers.py.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill.py"
COUNTS = {"--kills": 3, "--terms": 3, "--deaths": 2}


pytestmark = pytest.mark.exhaustive


KINDS = {
    "SIGKILL to the process": (COUNTS["--kills"], {"-9"}),
    "SIGTERM to its group": (COUNTS["--terms"], {"143", "-15"}),  # -15: when all was done
    "SIGKILL to one of its workers": (COUNTS["--deaths"], {"0"}),
}


def test_the_same_bits_come_out_and_nothing_is_left_behind(tmp_path, subtests):
    words = [str(word) for pair in COUNTS.items() for word in pair]
    out = tmp_path / "found.json"
    subprocess.run([sys.executable, SCRIPT, *words, "--out", out], check=True, stdout=subprocess.DEVNULL)
    for kind, (count, statuses) in KINDS.items():
        tally = json.loads(out.read_text())[kind]
        with subtests.test(kind):
            assert tally["disturbances"] == count
            assert tally["same_bits"] == tally["trainings"] >= 1
            assert tally["tracebacks"] == 0, tally["said"]
            assert tally["left_behind"] == 0
            assert set(tally["statuses"]) <= statuses
