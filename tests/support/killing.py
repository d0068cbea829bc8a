"""A training killed in its midst and started again, beside one that was left alone."""

import signal
import subprocess
import sys

import torch
from safetensors.torch import load_file

DIES_AFTER_TWO = """
import os, signal
from vitreous.train import saving

write, written = saving.save_checkpoint, []

def write_and_die(*given):
    write(*given)
    written.append(given)
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

saving.save_checkpoint = write_and_die
"""


def check_killed_and_resumed(program, place, *arguments):
    """The tensors that a training ends with: the same bits whether or not it is killed after its second checkpoint.

    program: Python text that trains into the folder that its last argument names, and saves after every step.
    """

    def run(name, before=""):
        command = [sys.executable, "-c", before + program, *map(str, arguments), str(place / name)]
        return subprocess.run(command, timeout=300, check=False).returncode

    assert run("whole") == 0
    assert run("killed", DIES_AFTER_TWO) == -signal.SIGKILL
    assert len(list((place / "killed").glob("checkpoints/step-*"))) >= 1
    assert not (place / "killed" / "result.json").exists()
    assert run("killed") == 0
    whole, killed = (load_file(place / name / "bundle" / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())
    logs = [(place / name / "metrics.jsonl").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]
    return whole
