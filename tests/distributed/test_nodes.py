"""Two machines, of which one is cut off and comes back: namespaces of this one, with torchrun's agent in each.

What `make test` has of it: test_joining.py (a process that is not heard of any more) and test_faults.py (both go on).
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from support.together import BATCH, TINY, draw_images, train, two_processes

NAMES = tuple(f"vitreous-{os.getpid()}-{letter}" for letter in "ab")
LINKS, PLACES = ("vit-a", "vit-b"), ("10.213.77.1", "10.213.77.2")
SETTINGS = {**TINY, **BATCH, "save_seconds": 0, "augment.mixup": 0.2, "ema": 0.9}
EPOCHS = 20
SECONDS = 600  # on a busy machine


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture
def nodes():
    """Two network namespaces with a cable between them."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs iproute2 and root to make network namespaces")
    made = ip("netns", "add", NAMES[0], check=False)
    if made.returncode:
        pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
    try:
        ip("netns", "add", NAMES[1])
        ip("link", "add", LINKS[0], "netns", NAMES[0], "type", "veth", "peer", "name", LINKS[1], "netns", NAMES[1])
        for name, link, place in zip(NAMES, LINKS, PLACES, strict=True):
            ip("-n", name, "addr", "add", f"{place}/24", "dev", link)
            for one in (link, "lo"):
                ip("-n", name, "link", "set", one, "up")
        yield
    finally:
        for name in NAMES:
            for process in ip("netns", "pids", name, check=False).stdout.split():
                os.kill(int(process), signal.SIGKILL)
            ip("netns", "del", name, check=False)


def start_agent(node, place):
    """torchrun on one of the two nodes, which may be a new one.

    With its shared store, torch 2.13 has the first node say once where all meet, and a new torchrun waits to hear it.
    """
    settings = [word for name, value in SETTINGS.items() for word in ("--overrides", f"{name}={value}")]
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{PLACES[0]}:29517", "--rdzv-id", "test"]
    meeting += ["--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", PLACES[node], "--max-restarts", "5"]
    command = ["-m", "vitreous", "fit", place / "images.npz", "--model", "Ti/4@16", *settings, "--workers", "0"]
    command += ["--epochs", str(EPOCHS), "--out", place / "cut"]
    with (place / f"said-{node}").open("a") as said:
        return subprocess.Popen(
            ["ip", "netns", "exec", NAMES[node], *agent, *meeting, *command],
            env={**os.environ, "GLOO_SOCKET_IFNAME": LINKS[node], "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=said,
        )


def train_undisturbed(place):
    """In each of two processes, on one node."""
    train("supervised", place, place / "whole", settings=SETTINGS, epochs=EPOCHS)


def digest(run):
    files = (run / "metrics.jsonl", run / "bundle/model.safetensors")
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.mark.exhaustive
def test_a_node_that_was_cut_off_and_came_back_changes_nothing(nodes, tmp_path):
    draw_images(tmp_path / "images.npz")
    assert two_processes(train_undisturbed, tmp_path) == [0, 0]
    agents = [start_agent(node, tmp_path) for node in range(2)]
    log, deadline = tmp_path / "cut/metrics.jsonl", time.monotonic() + SECONDS
    try:
        while not log.exists() or log.read_text().count("\n") < 10:
            assert time.monotonic() < deadline, (tmp_path / "said-0").read_text()
            time.sleep(0.02)
        ip("-n", NAMES[1], "link", "set", LINKS[1], "down")
        while "vitreous: process " not in (tmp_path / "said-0").read_text():
            assert time.monotonic() < deadline, (tmp_path / "said-0").read_text()
            time.sleep(0.2)
        seen = log.read_text().count("\n")
        assert not (tmp_path / "cut/result.json").exists()
        ip("-n", NAMES[1], "link", "set", LINKS[1], "up")
        while agents[0].poll() is None:
            assert time.monotonic() < deadline, (tmp_path / "said-0").read_text()
            if agents[1].poll() not in (None, 0):  # as a job scheduler does
                agents[1] = start_agent(1, tmp_path)
            time.sleep(0.5)
        assert agents[0].returncode == 0, (tmp_path / "said-0").read_text()
        assert log.read_text().count("\n") > seen
        assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    finally:
        for agent in agents:
            agent.kill()  # its processes are ended with the namespace
            agent.wait()


def test_the_nodes_are_found_in_the_guide():
    """What the test needs, a person with several machines needs too."""
    guide = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    assert all(word in guide for word in ("--rdzv-endpoint", "--max-restarts", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"))
