"""A training killed in its midst and started again, beside one that was left alone."""

import signal

import torch
from safetensors.torch import load_file

DIES_WHILE_SAVING = """
import os, signal
from vitreous.training import checkpoint

write, written = checkpoint.save_checkpoint, []

def write_and_die(*given):
    write(*given)
    written.append(given)
    if len(written) == {checkpoints}:
        os.kill(os.getpid(), signal.SIGKILL)

checkpoint.save_checkpoint = write_and_die
"""


def run_and_kill(processes, program, out, checkpoints=2):
    """Run Python text that trains into the folder `out` and saves after every step; SIGKILL at a checkpoint."""
    code = f"out = {str(out)!r}\n" + DIES_WHILE_SAVING.format(checkpoints=checkpoints) + program
    outcome = processes(code=code, limit=300)
    assert outcome.status == -signal.SIGKILL, outcome.stderr
    assert not outcome.left


def check_killed_and_resumed(processes, program, place):
    """The tensors that a training ends with: the same bits whether or not it is killed after its second checkpoint.

    program: Python text that trains into the folder `out`, and saves after every step.
    """
    exec(program, {"out": place / "whole"})
    run_and_kill(processes, program, place / "killed")
    assert len(list((place / "killed").glob("checkpoints/step-*"))) >= 1
    assert not (place / "killed" / "result.json").exists()
    exec(program, {"out": place / "killed"})
    whole, killed = (load_file(place / name / "bundle" / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())
    logs = [(place / name / "metrics.jsonl").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]
    return whole
