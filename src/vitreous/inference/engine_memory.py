"""How much memory an engine takes: each in a process of its own, which does nothing else.

Within one process the figures would depend on what was converted and asked before. The processes are started anew, not
forked: runtimes have threads, which a fork leaves behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from vitreous.errors import MachineError, UserError
from vitreous.inference.choice import in_torch
from vitreous.inference.engine import Engine, TorchEngine
from vitreous.inference.folder import is_engine, load_engine
from vitreous.inference.speed import noise
from vitreous.memory import peak_bytes
from vitreous.weights.bundle import load_bundle, save_bundle

LIMIT = 120.0
"""Seconds after which a process is given up: a figure of memory is not worth more."""


def measure_memory(engine: Engine) -> float | None:
    """Megabytes that a process holds at most which opens the engine and asks about as many images as it likes best.

    Python and its libraries are among them. None where the system does not tell, it took too long, the engine is in no
    folder, or there is no room for a network to be put into one.
    """
    if isinstance(engine, TorchEngine):
        with suppress(UserError, MachineError, OSError), TemporaryDirectory() as place:
            labels = [str(number) for number in range(engine.classes)]
            # as it is now: it may merge other tokens than the bundle says
            return _in_process(save_bundle(Path(place) / "bundle", engine.network, engine.preprocess, labels))
        return None
    path: Path | None = getattr(engine, "path", None)
    return None if path is None or not is_engine(path) else _in_process(path)


def _in_process(folder: Path) -> float | None:
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(folder)],  # -P: modules that lie about here are not ours
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return None
    held = int(done.stdout.split()[-1]) if done.returncode == 0 else 0  # before it, whatever a person's Python says
    return held / 1e6 if held else None


def main(folder: Path) -> None:
    """In the process: open, ask, and print the bytes."""
    engine = (load_engine(folder)[0] if is_engine(folder) else in_torch(load_bundle(folder), "cpu")).engine
    images = noise(engine, engine.batch_size)
    for _ in range(2):
        (engine.scores if engine.classes else engine.representations)(images)
    print(peak_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
