"""Ways from JPEG files to labels, `vitreous predict` and what others do by hand, each in a process of its own.

A process of its own, for vitreous tells the C library to keep memory, from which everything else in the process gains
too: the peers are measured as they are by themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.config.data import Preprocess
from vitreous.memory import SWITCH

CALIBRATED = 300
"""Images that the peers' int8 is calibrated with: NNCF's default."""
Way = Callable[[Sequence[Path]], list[str]]
"""Names the class of each file."""


@dataclass(frozen=True)
class Exports:
    """A model as each way opens it."""

    bundle: Path
    timm: Path
    huggingface: Path
    calibration: tuple[Path, ...]


@dataclass(frozen=True)
class Turns:
    """What the turns of one way came to."""

    seconds: tuple[float, ...]
    labels: tuple[str, ...]
    engine: str
    """Of vitreous: what answered in the end, such as openvino-int8; else ""."""


def take_turns(exports: Exports, files: Sequence[Path], rounds: int) -> dict[str, Turns]:
    """Every way in so many rounds, one at a time; a round before them is for whatever is compiled when first used."""
    contenders, processes = {}, []
    for name in WAYS:
        contenders[name], process = _start(name, exports)
        processes.append(process)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    labels: dict[str, tuple[str, ...]] = {}
    engines: dict[str, str] = {}
    for turn in range(rounds + 1):
        for name in list(WAYS)[:: 1 if turn % 2 == 0 else -1]:
            contenders[name].send(list(files))
            taken, found, engines[name] = contenders[name].recv()
            labels[name] = tuple(found)
            if turn:
                seconds[name].append(taken)
            print(f"{name}: {len(files) / taken:.1f}", flush=True)
    for connection in contenders.values():
        connection.send(None)
    for process in processes:
        process.join()  # nothing of them may run beside what is measured next
    return {name: Turns(tuple(seconds[name]), labels[name], engines[name]) for name in WAYS}


def _start(name: str, exports: Exports) -> tuple[Connection, BaseProcess]:
    """A process that is ready for its first turn, and the connection to it."""
    here, there = get_context("spawn").Pipe()
    os.environ[SWITCH] = "" if name.startswith("vitreous") else "off"
    process = get_context("spawn").Process(target=_contend, args=(name, exports, there), daemon=True)
    process.start()
    del os.environ[SWITCH]
    there.close()
    assert here.recv() == "ready"
    return here, process


def _contend(name: str, exports: Exports, turns: Connection) -> None:
    """In a process of its own: be asked about files until there are none."""
    way = WAYS[name](exports)
    turns.send("ready")
    while (files := turns.recv()) is not None:
        start = time.perf_counter()
        labels = way(files)
        taken = time.perf_counter() - start
        turns.send((taken, labels, way.engine_for(len(files)) if isinstance(way, Vitreous) else ""))


class Vitreous:
    """`vitreous predict`, with a model that is kept open."""

    def __init__(self, exports: Exports, engine: str) -> None:
        from vitreous.memory import retain_memory
        from vitreous.weights.bundle import load_bundle

        retain_memory()  # as the command does; the switch is off for the others
        self.bundle, self.engine = load_bundle(exports.bundle), engine

    def __call__(self, files: Sequence[Path]) -> list[str]:
        from vitreous.verbs.predict import predict

        return [one.label or "" for one in predict(self.bundle, files, top_k=1, engine=self.engine)]

    def engine_for(self, images: int) -> str:
        """What answers for so many, as `predict` chooses it."""
        from vitreous.inference.opening import open_engine

        chosen = open_engine(self.bundle, engine=self.engine, images=images).engine
        return f"{chosen.name}-{chosen.precision}"


def _transformers_pipeline(batch: int) -> Callable[[Exports], Way]:
    """What `transformers` offers for this, with its defaults."""

    def make(exports: Exports) -> Way:
        from transformers import pipeline

        import torchvision_on_cpu  # noqa: F401  (before transformers)

        classify = pipeline("image-classification", model=str(exports.huggingface), device="cpu", batch_size=batch)
        return lambda files: [found[0]["label"] for found in classify([str(file) for file in files], top_k=1)]

    return make


def _timm_loop(batch: int) -> Callable[[Exports], Way]:
    """What a plain loop does: open, transform, stack, ask."""

    def make(exports: Exports) -> Way:
        from PIL import Image

        model, transform, labels = _timm_model(exports)

        @torch.inference_mode()
        def run(files: Sequence[Path]) -> list[str]:
            found: list[str] = []
            for start in range(0, len(files), batch):
                views = [transform(Image.open(file).convert("RGB")) for file in files[start : start + batch]]
                found += [labels[k] for k in model(torch.stack(views)).argmax(dim=1).tolist()]
            return found

        return run

    return make


def _timm_model(exports: Exports) -> tuple[Any, Any, Sequence[str]]:
    """The model as timm opens it, its transform, and the names of its classes."""
    from timm import create_model
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    import torchvision_on_cpu  # noqa: F401  (before timm)
    from vitreous.weights.bundle import load_bundle

    model = create_model(f"local-dir:{exports.timm}", pretrained=True).eval()
    config: dict[str, Any] = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    return model, create_transform(**config), load_bundle(exports.bundle).labels


def _openvino_loop(*, int8: bool) -> Callable[[Exports], Way]:
    """A straightforward loop over OpenVINO: Pillow, NumPy, one image after the other, its default settings."""

    def make(exports: Exports) -> Way:
        import nncf
        import openvino as ov

        from vitreous.weights.bundle import load_bundle

        model, _, labels = _timm_model(exports)
        preprocess = load_bundle(exports.bundle).preprocess
        shape = (1, 3, *preprocess.size)
        graph = ov.convert_model(model, example_input=torch.zeros(shape), input=[shape])
        if int8:
            nncf.set_log_level(40)
            views = list(_plain_views(exports.calibration, preprocess))
            graph = nncf.quantize(graph, nncf.Dataset(views), model_type=nncf.ModelType.TRANSFORMER)
        compiled = ov.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

        def run(files: Sequence[Path]) -> list[str]:
            return [labels[int(compiled(view)[0].argmax())] for view in _plain_views(files, preprocess)]

        return run

    return make


def _plain_views(files: Sequence[Path], preprocess: Preprocess) -> Iterator[np.ndarray]:
    """(1, C, H, W) float32: what a person writes for this model's preprocessing."""
    from PIL import Image

    (height, width), (rows, _) = preprocess.size, preprocess.resized
    mean, std = np.array(preprocess.mean, np.float32), np.array(preprocess.std, np.float32)
    for file in files:
        image = Image.open(file).convert("RGB")
        scale = rows / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        pixels = np.asarray(image.crop((left, top, left + width, top + height)), np.float32) / 255
        yield ((pixels - mean) / std).transpose(2, 0, 1)[None]


WAYS: Mapping[str, Callable[[Exports], Way]] = {
    "vitreous predict": partial(Vitreous, engine="auto"),
    "vitreous predict, torch": partial(Vitreous, engine="torch"),
    "transformers pipeline": _transformers_pipeline(1),
    "transformers pipeline, batch 8": _transformers_pipeline(8),
    "timm loop": _timm_loop(1),
    "timm loop, batch 8": _timm_loop(8),
    "OpenVINO loop, fp32": _openvino_loop(int8=False),
    "OpenVINO loop, int8": _openvino_loop(int8=True),
}
"""What each is called, and how it opens the model; whatever begins with vitreous is ours."""
