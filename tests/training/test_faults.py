"""Two processes of which one is killed or learns no numbers; benchmarks/faults.py does more, and more often."""

import json
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from support.together import BATCH, TINY, draw_images, train, two_processes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KINDS = ("kill-saving", "kill-saving-shards", "nan")
SETTINGS = {**TINY, **BATCH, "save_seconds": 0, "augment.mixup": 0.2, "ema": 0.9}


def train_into(name, place):
    return train("supervised", place, place / name, settings=SETTINGS, epochs=3, fsdp=True)


def die_while_saving(place):
    """In each of two processes: the second is killed as soon as it begins to write its part of the third checkpoint."""
    from vitreous.training import sharded_checkpoint as sharded_state

    save, begun = sharded_state.async_save, []

    def save_or_die(*given, **more):
        pending = save(*given, **more)
        begun.append(pending)
        if len(begun) == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return pending

    sharded_state.async_save = save_or_die
    train_into("hurt", place)


def train_whole_and_hurt(place):
    """In each of two processes: one training that nobody disturbs, and the other to its end."""
    train_into("whole", place)
    (place / f"finished-{os.environ['RANK']}").write_text(str(train_into("hurt", place).finished))


def digest(run):
    files = (run / "metrics.jsonl", run / "bundle/model.safetensors")
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_saves_ends_the_other_and_both_go_on(tmp_path):
    """What torch says of the second's end is its own; nan in one of two processes is in test_world.py."""
    draw_images(tmp_path / "images.npz")
    other, killed = two_processes(die_while_saving, tmp_path)
    assert killed == -signal.SIGKILL
    assert other not in (None, 0)
    assert not (tmp_path / "hurt/result.json").exists()
    assert len(list((tmp_path / "hurt/checkpoints").glob("step-*"))) >= 1
    assert two_processes(train_whole_and_hurt, tmp_path) == [0, 0]
    assert [(tmp_path / f"finished-{rank}").read_text() for rank in (0, 1)] == ["True"] * 2
    assert digest(tmp_path / "hurt") == digest(tmp_path / "whole")


@pytest.mark.exhaustive
def test_nothing_hangs_and_the_training_ends_as_an_undisturbed_one(tmp_path, subtests):
    out = tmp_path / "found.json"
    words = ["--scale", "0.02", "--only", ",".join((*KINDS, "flip-shards")), "--out", out]
    subprocess.run([sys.executable, BENCHMARKS / "faults.py", *words], check=True, stdout=subprocess.DEVNULL)
    found = json.loads(out.read_text())
    for kind in KINDS:
        tally = found[kind]
        with subtests.test(kind):
            assert tally["faults"] == max(1, round({"nan": 3}.get(kind, 100) * 0.02))
            assert tally["same_bits"] == tally["trainings"] >= 1
            assert tally["hangs"] == 0
            if kind == "nan":
                (sentence,) = tally["sentences"]
                assert "step 7: " in sentence
    with subtests.test("flip-shards"):  # the flipped bit is found, and the earlier checkpoint taken
        tally = found["flip-shards"]
        assert tally["flips"] == tally["refused"] == tally["earlier_taken"] == 2


@pytest.mark.exhaustive
def test_a_budget_never_lets_two_processes_wait_for_each_other(tmp_path, subtests):
    """Each has a clock of its own; one training of seven hung where each decided by that."""
    out = tmp_path / "found.json"
    command = [sys.executable, BENCHMARKS / "stress.py", "--runs", "12", "--out", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for what, tally in json.loads(out.read_text()).items():
        with subtests.test(what):
            assert tally["finished"] == tally["runs"] == 12, tally["messages"]
