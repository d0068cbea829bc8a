"""Two processes of which one is killed or learns no numbers; benchmarks/faults.py does more, and more often."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faults.py"
pytestmark = pytest.mark.xdist_group("faults")  # one process makes the costly fixture
KINDS = ("kill-saving", "kill-saving-shards", "nan")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("faults") / "found.json"
    words = ["--scale", "0.02", "--only", ",".join((*KINDS, "flip-shards")), "--out", out]
    subprocess.run([sys.executable, SCRIPT, *words], check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_hangs_and_the_training_ends_as_an_undisturbed_one(found, kind):
    tally = found[kind]
    assert tally["faults"] == max(1, round({"nan": 3}.get(kind, 100) * 0.02))
    assert tally["same_bits"] == tally["trainings"] >= 1
    assert tally["hangs"] == 0
    if kind == "nan":
        assert len(tally["sentences"]) == 1
        assert "nothing of this step was kept" in tally["sentences"][0]


@pytest.mark.slow
def test_a_flipped_bit_is_refused_and_the_earlier_checkpoint_taken(found):
    tally = found["flip-shards"]
    assert tally["flips"] == tally["refused"] == tally["earlier_taken"] == 2
