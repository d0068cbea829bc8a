"""A training killed in its midst and started again, beside one that was left alone."""

import os
import signal
import subprocess
import sys
import time

import torch
from safetensors.torch import load_file


def check_killed_and_resumed(program, place, *arguments):
    """The tensors that a training ends with: the same bits whether or not it is killed after its second checkpoint.

    program: Python text that trains into the folder that its last argument names, and saves after every step.
    """

    def start(name):
        return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments), str(place / name)])

    assert start("whole").wait(300) == 0
    process = start("killed")
    deadline = time.monotonic() + 300
    while len(list((place / "killed").glob("checkpoints/step-*"))) < 2:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (place / "killed" / "result.json").exists()
    assert start("killed").wait(300) == 0
    whole, killed = (load_file(place / name / "bundle" / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())
    logs = [(place / name / "metrics.jsonl").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]
    return whole
