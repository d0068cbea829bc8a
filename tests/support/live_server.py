"""A server as a user starts it, in a process of its own, and tiny models for it."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitreous import ViT
from vitreous.config.data import Preprocess
from vitreous.weights.bundle import save_bundle

SOURCE = Path(__file__).parents[2] / "src"
LABELS = ("ant", "bee", "cat", "dog")
MAIN = "from vitreous.cli import main; main()"


def save_tiny_model(folder, seed=0):
    """A bundle of a network with random weights, its classifier too, which would else be zero: it answers something."""
    network = ViT("P/4@16", depth=2, width=32, heads=2, mlp_width=64, classes=len(LABELS), seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if not parameter.detach().abs().sum():
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return save_bundle(folder, network, Preprocess(size=(16, 16)), list(LABELS))


def image_bytes(seed=0, size=(20, 24), kind="PNG"):
    """A file of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


class Running:
    """A server that answers at `host:port`."""

    def __init__(self, process, port, said):
        self.process, self.port, self.said = process, port, said
        self.host = f"127.0.0.1:{port}"
        self.url = f"http://{self.host}"

    def end(self):
        """The exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def serving(*models, options=(), program=(sys.executable, "-c", MAIN), **environment):
    """`vitreous serve` of models, at a free port; `said` until it answered, its log after that is `process.stderr`.

    program: what stands for the command `vitreous`.
    """
    process = subprocess.Popen(
        [*map(str, program), "serve", *map(str, models), "--port", "0", "--engine", "torch", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )
    try:
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"at http://\S+:(\d+) ", line):
                yield Running(process, int(found[1]), said)
                break
        else:
            raise AssertionError(said)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()
