"""How fast a trained model answers, beside what others do by hand: from JPEG files to labels, and the model alone.

    python benchmarks/inference.py --weights TI16 --pets PETS [--cifar CIFAR] [--only SECTION,...]

TI16: the file of a ViT-Ti/16 for ImageNet in timm's naming. PETS: a folder with train and test, one folder per class.
CIFAR: the folder of CIFAR-10's binary version. Everything that is compared runs in turns, several rounds, the best of
each; nothing else should run on the machine. Sections:

- files: JPEG files to labels with a model fitted to Pets, each way in a process of its own that has opened its
  model. Peers: transformers' pipeline, a loop over timm's model and transform, loops over OpenVINO (float32 and int8,
  Pillow, one image after the other), each with its defaults.
- model: the network alone, Ti, S and B at 224, in one process (so that PyTorch has vitreous's allocator): PyTorch,
  OpenVINO as it comes out of its converter (float32, and int8 by NNCF, both with a stream for each core), and the
  engine that `auto` takes.
- equal: what ONNX and OpenVINO answer beside PyTorch, on 200 images, for a ViT, a hybrid, a BiT and an EfficientNet.
- accuracy: what int8 costs after `fit`, on all test images of Pets and CIFAR-10.
- merging: what token merging costs after `fit` on all test images of Pets, and how much faster it is.

Writes benchmarks/results/inference-INSTRUCTIONS.json, section by section: what is fastest differs with the processor's
instructions (vnni, avx512, avx2), so each kind of processor has a file of its own.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino as ov
import torch
from torch import Tensor, nn

from contenders import CALIBRATED, Exports, take_turns
from measure import Sections, best_seconds, compare_in_turns, gemm_gflops, instructions, measure_sections
from vitreous.callbacks import Callbacks
from vitreous.config.data import Preprocess
from vitreous.data.opening import open_data
from vitreous.data.source import Data
from vitreous.inference.conversion import (
    LabelledViews,
    QuantizationImages,
    convert_model,
    correct_predictions,
    quantize_model,
    sample_views,
)
from vitreous.inference.engine import Engine, GraphEngine, TorchEngine, in_batches
from vitreous.inference.engine_folder import read_metadata
from vitreous.inference.openvino import OpenVinoEngine, quantize
from vitreous.inference.speed import measure_speeds
from vitreous.memory import retain_memory
from vitreous.model.family import build_network, named_config
from vitreous.model.precision import avoid_broken_amx
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.fit import fit
from vitreous.verbs.measure import bench
from vitreous.verbs.weights import export_weights
from vitreous.weights.bundle import Bundle, load_bundle

SAY = Callbacks(message=lambda text: print(text, flush=True))
ROUNDS = 5
SPEED_VIEWS = 32
"""Images that int8 is calibrated with where only its speed counts, which does not depend on them."""
PETS_EPOCHS = 4
"""Of the trainings whose accuracy is compared."""
MERGING_TURNS = 60
"""Comparisons of a model that merges tokens with one that does not."""
SIZES = ("Ti/16", "S/16", "B/16")
THROUGHPUT = {
    "PERFORMANCE_HINT": "THROUGHPUT",
    "NUM_STREAMS": torch.get_num_threads(),
    "INFERENCE_PRECISION_HINT": "f32",
}


def fitted(args: argparse.Namespace, data: Path, **how: Any) -> Bundle:
    """A model for the data, fine-tuned as is said; taken up again where it is finished."""
    name = "-".join([data.name, *(f"{key}-{value}" for key, value in how.items())])
    result = fit(data, weights=args.weights, out=args.runs / name, callbacks=SAY, **how)
    return load_bundle(result.bundle)


def files_section(args: argparse.Namespace) -> dict[str, Any]:
    """Images a second from JPEG files to labels."""
    bundle = fitted(args, args.pets, budget=args.pets_budget)
    assert bundle.path is not None
    files = sorted(args.pets.glob("test/*/*.jpg"))[:: args.every]
    rows = bench(bundle, data=args.pets).rows  # as a person prepares a model
    calibration = tuple(sorted(args.pets.glob("train/*/*.jpg"))[::4][:CALIBRATED])
    exports = Exports(
        bundle=bundle.path,
        timm=export_weights(bundle, args.runs / "timm", to="timm"),
        huggingface=export_weights(bundle, args.runs / "huggingface", to="huggingface"),
        calibration=calibration,
    )
    turns = take_turns(exports, files, args.rounds)
    speeds = {name: round(len(files) / min(found.seconds), 1) for name, found in turns.items()}
    ours = speeds["vitreous predict"]
    by_torch = max(speed for name, speed in speeds.items() if name.startswith(("transformers", "timm")))
    by_openvino = max(speed for name, speed in speeds.items() if name.startswith("OpenVINO"))
    truth = [file.parent.name for file in files]
    return {
        "images": len(files),
        "engine": turns["vitreous predict"].engine,
        "engines": {f"{row.engine}-{row.precision}": round(row.images_per_second, 1) for row in rows},
        "images_per_second": speeds,
        "seconds_of_each_turn": {name: [round(one, 2) for one in found.seconds] for name, found in turns.items()},
        "times_best_pytorch": round(ours / by_torch, 2),
        "times_best_openvino": round(ours / by_openvino, 2),
        "accuracy": {
            name: float(np.mean([a == b for a, b in zip(found.labels, truth, strict=True)]))
            for name, found in turns.items()
        },
    }


def model_section(args: argparse.Namespace) -> dict[str, Any]:
    """Images a second of the network alone, by size; and the machine's limits in float32 and int8."""
    found: dict[str, Any] = {"limits_gops": {"fp32": round(gemm_gflops()), "int8": round(int8_gops())}}
    views = sample_views(open_data(args.pets).splits["train"], Preprocess(), SPEED_VIEWS).views
    for size in SIZES:
        bundle = random_bundle(size)
        bundle.model.float()
        engines: dict[str, Engine] = {"PyTorch": TorchEngine(bundle.model, bundle.preprocess)}
        shape = (1, 3, 224, 224)
        plain = ov.convert_model(_Normalised(bundle), example_input=torch.zeros(shape), input=[shape])
        quantized = nncf.quantize(
            plain,
            nncf.Dataset([_normalise(view) for view in views]),
            model_type=nncf.ModelType.TRANSFORMER,
        )
        ours = convert_model(bundle, "openvino", views[:4]).engine
        assert isinstance(ours, GraphEngine)
        engines["vitreous openvino fp32"] = ours
        # a network with random weights has no accuracy to lose
        quantized_ours = quantize(ours.graph, views, transformer=True)
        engines["vitreous openvino int8"] = OpenVinoEngine(quantized_ours, bundle.preprocess, "int8")
        before = measure_speeds(engines)  # `auto` chooses by a measurement of its own, before it is used
        taken = max(before, key=lambda name: before[name])
        jobs = {name: _asking(engine) for name, engine in engines.items()}
        jobs |= {f"OpenVINO {name}": _streaming(graph) for name, graph in (("fp32", plain), ("int8", quantized))}
        seconds = best_seconds({name: job for name, (job, _) in jobs.items()}, args.rounds, slice_seconds=1.0)
        speeds = {name: round(jobs[name][1] / one, 1) for name, one in seconds.items()}
        best = max(speed for name, speed in speeds.items() if not name.startswith("vitreous"))
        found[size] = {"images_per_second": speeds, "auto": taken, "times_best": round(speeds[taken] / best, 3)}
        print(size, json.dumps(found[size]), flush=True)
    return found


class _Normalised(nn.Module):
    """The network alone, as a person would hand it to a converter."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        self.network = bundle.model

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(images)
        return scores


def _normalise(view: Tensor) -> np.ndarray:
    found: np.ndarray = ((view.float() / 255 - 0.5) / 0.5)[None].numpy()
    return found


def _asking(engine: Engine) -> tuple[Callable[[], object], int]:
    images = torch.randint(0, 256, (engine.batch_size, 3, 224, 224), dtype=torch.uint8)
    return lambda: engine.logits(images), len(images)


def _streaming(graph: Any, count: int = 16) -> tuple[Callable[[], object], int]:
    """OpenVINO by its own manual: the hint for throughput, and a queue of requests of one image each."""
    queue = ov.AsyncInferQueue(ov.Core().compile_model(graph, "CPU", THROUGHPUT))
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)

    def run() -> None:
        for _ in range(count):
            queue.start_async({0: image})
        queue.wait_all()

    return run, count


def random_bundle(name: str, **changes: Any) -> Bundle:
    """A network with random weights, its classifier too, which would else be zero."""
    network = build_network(named_config(name, classes=1000, **changes)).eval()
    for parameter in network.parameters():
        if not parameter.detach().abs().sum():
            nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(0))
    labels = tuple(f"class {k}" for k in range(1000))
    return Bundle(network, Preprocess(size=network.config.image_size), labels)


def int8_gops(side: int = 2048) -> float:
    """Operations a second of a large int8 product in OpenVINO, the best of several: the machine's limit."""
    graph = ov.convert_model(nn.Linear(side, side, bias=False), example_input=torch.zeros(side, side))
    rows = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32)
    quantized = nncf.quantize(graph, nncf.Dataset([rows]), subset_size=1)
    compiled = ov.Core().compile_model(quantized, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    return 2.0 * side**3 / best_seconds({"int8": lambda: compiled(rows)}, rounds=5)["int8"] / 1e9


def equal_section(args: argparse.Namespace) -> dict[str, Any]:
    """How far the answers of both runtimes are from PyTorch's, on 200 images."""
    from vitreous.weights.source import open_weights

    found: dict[str, Any] = {}
    models = {"Ti/16, ImageNet's weights": open_weights(args.weights)}
    models |= {name: random_bundle(name) for name in ("R+Ti/16@224", "bit-r50x1@128", "efficientnet-b0@224")}
    for name, bundle in models.items():
        views = sample_views(open_data(args.pets).splits["test"], bundle.preprocess, 200).views
        for runtime in ("openvino", "onnx"):
            verified = convert_model(bundle, runtime, views).metadata.verified
            found[f"{name}, {runtime}"] = verified.__dict__
            print(name, runtime, verified, flush=True)
    return found


def accuracy_section(args: argparse.Namespace) -> dict[str, Any]:
    """What int8 costs after `fit`, on all test images."""
    found: dict[str, Any] = {}
    ways: dict[str, tuple[Path, dict[str, Any]]] = {"pets": (args.pets, {"epochs": PETS_EPOCHS})}
    if args.cifar is not None:
        ways["cifar10"] = (args.cifar, {"budget": args.cifar_budget})
    for name, (place, how) in ways.items():
        bundle = fitted(args, place, **how)
        found[name] = {**how, "torch": accuracy_of(bundle, place, "torch")}
        data = open_data(place)
        # int8 is calibrated and judged on training images: the test split is looked at once, below
        seen = Data({"train": data.train}, data.classes)
        out = export_weights(bundle, args.runs / f"{name}-int8", to="openvino", int8=True, calibrate=seen)
        found[name]["int8"] = accuracy_of(out, place, "auto")
        found[name]["accuracy_aware"] = read_metadata(out).accuracy_control
        print(name, json.dumps(found[name]), flush=True)
    return found


def merging_section(args: argparse.Namespace) -> dict[str, Any]:
    """Accuracy on Pets after `fit --merge` with several seeds, and speed beside no merging, by tokens merged."""
    found: dict[str, Any] = {}
    data = open_data(args.pets)
    jobs: dict[str, dict[str, Callable[[], object]]] = {}
    for count in (0, *args.merge):
        how = {"merge": count} if count else {}
        bundles = [fitted(args, args.pets, **how, seed=seed) for seed in range(args.seeds)]
        rows = [accuracy_of(bundle, args.pets, "torch") for bundle in bundles]
        found[str(count)] = {"n": rows[0]["n"], "accuracies": [row["accuracy"] for row in rows], "speeds": {}}
        training, test = (
            sample_views(data.splits[split], bundles[0].preprocess, 10_000) for split in ("train", "test")
        )
        engines = merging_engines(bundles[0], training)
        found[str(count)]["int8_of_seed_0"] = correct_predictions(engines["OpenVINO int8"], test).mean()
        print("merging", count, found[str(count)], flush=True)
        for name, engine in engines.items():
            asked = training.views[:SPEED_VIEWS]
            jobs.setdefault(name, {})[str(count)] = partial(in_batches, engine.logits, asked, engine.batch_size)
    for name, several in jobs.items():
        for merged, speed in compare_in_turns(several, MERGING_TURNS).items():
            found[merged]["speeds"][name] = {
                "images_per_second": round(SPEED_VIEWS / speed.seconds, 1),
                "times": speed.clock,
                "times_in_processor_time": speed.processor,
            }
    print("merging", json.dumps(found), flush=True)
    return found


def merging_engines(bundle: Bundle, training: LabelledViews) -> dict[str, Engine]:
    """What computes a model whose speed with and without merging is compared; int8 sees training images alone."""
    converted = convert_model(bundle, "openvino", training.views[:SPEED_VIEWS])
    control, held_out = (
        LabelledViews(training.views[k::2], training.labels[k::2]) for k in (CALIBRATED, CALIBRATED + 1)
    )
    images = QuantizationImages(training.views[:CALIBRATED], control, held_out)
    quantized = quantize_model(bundle, converted, images)
    return {
        "PyTorch": TorchEngine(bundle.model, bundle.preprocess),
        "OpenVINO": converted.engine,
        "OpenVINO int8": quantized.engine,
    }


def accuracy_of(model: Any, data: Path, engine: Any) -> dict[str, Any]:
    found: Any = evaluate(model, data, split="test", engine=engine).result
    return {"accuracy": found.top1, "interval": found.top1_interval, "n": found.n}


SECTIONS: Sections = {
    "files": files_section,
    "model": model_section,
    "equal": equal_section,
    "accuracy": accuracy_section,
    "merging": merging_section,
}


def main() -> None:
    retain_memory()  # as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--pets", type=Path, required=True)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--pets-budget", default="120s", help="of the model whose speed is measured")
    parser.add_argument("--cifar-budget", default="300s")
    parser.add_argument("--every", type=int, default=3, help="of the test images, every n-th is timed")
    parser.add_argument("--merge", type=lambda text: [int(part) for part in text.split(",")], default=[15])
    parser.add_argument("--seeds", type=int, default=3, help="of the trainings with and without merging")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--runs", type=Path, default=Path("runs/inference"))
    parser.add_argument("--only", default=",".join(SECTIONS))
    args = parser.parse_args()
    os.environ["VITREOUS_CACHE"] = str(args.runs / "cache")
    nncf.set_log_level(40)
    avoid_broken_amx()  # for the peers' sake too
    measure_sections(f"inference-{instructions()}", SECTIONS, args)


if __name__ == "__main__":
    main()
