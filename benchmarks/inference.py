"""How fast a trained model answers, beside what others do by hand: from JPEG files to labels, and the model alone.

    python benchmarks/inference.py --weights TI16 --pets PETS [--cifar CIFAR] [--only files,model,equal,accuracy]

TI16: the file of a ViT-Ti/16 for ImageNet in timm's naming. PETS: a folder with train and test, one folder per class.
CIFAR: the folder of CIFAR-10's binary version. Everything that is compared runs in turns within one process, several
rounds, the best of each; nothing else should run on the machine. So the peers have vitreous's allocator too, which
makes them faster than they are by themselves. Sections:

- files: JPEG files to labels with a model fitted to Pets. Peers: transformers' pipeline, a loop over timm's model and
  transform, loops over OpenVINO (float32 and int8, Pillow, one picture after the other), each with its defaults.
- model: the network alone, Ti, S and B at 224: PyTorch, OpenVINO as it comes out of its converter (float32, and int8 by
  NNCF, both with a stream for each core), and the engine that `auto` takes.
- equal: what ONNX and OpenVINO answer beside PyTorch, on 200 pictures, for a ViT, a hybrid, a BiT and an EfficientNet.
- accuracy: what int8 and token merging cost after `fit`, on all test pictures of Pets and CIFAR-10.

Writes benchmarks/results/inference.json, section by section.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino as ov
import torch
import torchvision_on_cpu  # noqa: F401  (before timm and transformers)
from measure import RESULTS, best_seconds, gemm_gflops, machine, write_result
from PIL import Image
from timm import create_model
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn
from transformers import pipeline

from vitreous.config.data import Preprocess
from vitreous.data.source import open_data
from vitreous.deploy.engine import Engine, TorchEngine
from vitreous.deploy.folder import read_about
from vitreous.deploy.speed import measure_speeds
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.export import export_weights
from vitreous.jobs.fit import fit
from vitreous.jobs.predict import predict
from vitreous.model.family import build_network, named_config
from vitreous.run.conversion import convert_model, sample_views
from vitreous.run.engines import deploy
from vitreous.run.exporting import prepare_export
from vitreous.run.request import Listeners
from vitreous.weights.bundle import Bundle, load_bundle

SAY = Listeners(say=lambda text: print(text, flush=True))
ROUNDS = 5
CALIBRATED = 300
SPEED_VIEWS = 32
"""Pictures that int8 is calibrated with where only its speed counts, which does not depend on them."""
SIZES = ("Ti/16", "S/16", "B/16")
THROUGHPUT = {
    "PERFORMANCE_HINT": "THROUGHPUT",
    "NUM_STREAMS": torch.get_num_threads(),
    "INFERENCE_PRECISION_HINT": "f32",
}


def fitted(args: argparse.Namespace, data: Path, budget: str, **more: Any) -> Bundle:
    """A model for the data, fine-tuned within the budget; taken up again where it is finished."""
    name = "-".join([data.name, budget, *(f"{key}{value}" for key, value in more.items())])
    result = fit(data, weights=args.weights, budget=budget, out=args.runs / name, listeners=SAY, **more)
    return load_bundle(result.bundle)


def files_section(args: argparse.Namespace) -> dict[str, Any]:
    """Pictures a second from JPEG files to labels."""
    bundle = fitted(args, args.pets, args.pets_budget)
    files = sorted(args.pets.glob("test/*/*.jpg"))[:: args.every]
    prepare_export(bundle, "openvino", calibrate=args.pets)
    engine = deploy(bundle, pictures=len(files)).engine
    torch_model = timm_model(bundle, args.runs)
    ways: dict[str, Callable[[Sequence[Path]], list[str]]] = {
        "vitreous predict": lambda some: [one.label or "" for one in predict(bundle, some, top=1)],
        "vitreous predict, torch": lambda some: [
            one.label or "" for one in predict(bundle, some, top=1, engine="torch")
        ],
        "transformers pipeline": transformers_pipeline(bundle, args.runs, 1),
        "transformers pipeline, batch 8": transformers_pipeline(bundle, args.runs, 8),
        "timm loop": timm_loop(torch_model, bundle.labels, 1),
        "timm loop, batch 8": timm_loop(torch_model, bundle.labels, 8),
        "OpenVINO loop, fp32": openvino_loop(torch_model, bundle, args.pets, int8=False),
        "OpenVINO loop, int8": openvino_loop(torch_model, bundle, args.pets, int8=True),
    }
    seconds, answers = dict.fromkeys(ways, float("inf")), {}
    for turn in range(args.rounds + 1):  # the first is for whatever is compiled when it is first used
        for name, way in list(ways.items())[:: 1 if turn % 2 == 0 else -1]:
            start = time.perf_counter()
            answers[name] = way(files)
            if turn:
                seconds[name] = min(seconds[name], time.perf_counter() - start)
            print(name, round(len(files) / (time.perf_counter() - start), 1), flush=True)
    speeds = {name: round(len(files) / taken, 1) for name, taken in seconds.items()}
    ours = speeds["vitreous predict"]
    by_torch = max(speed for name, speed in speeds.items() if name.startswith(("transformers", "timm")))
    by_openvino = max(speed for name, speed in speeds.items() if name.startswith("OpenVINO"))
    truth = [file.parent.name for file in files]
    return {
        "pictures": len(files),
        "engine": f"{engine.name}-{engine.precision}",
        "pictures_per_second": speeds,
        "times_best_pytorch": round(ours / by_torch, 2),
        "times_best_openvino": round(ours / by_openvino, 2),
        "accuracy": {
            name: float(np.mean([a == b for a, b in zip(found, truth, strict=True)])) for name, found in answers.items()
        },
    }


def timm_model(bundle: Bundle, runs: Path) -> nn.Module:
    """The model as timm opens it."""
    folder = export_weights(bundle, runs / "timm", "timm")
    model: nn.Module = create_model(f"local-dir:{folder}", pretrained=True).eval()
    return model


def timm_loop(model: Any, labels: Sequence[str], batch: int) -> Callable[[Sequence[Path]], list[str]]:
    """What a plain loop does: open, transform, stack, ask."""
    config: dict[str, Any] = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    transform: Any = create_transform(**config)

    @torch.inference_mode()
    def run(files: Sequence[Path]) -> list[str]:
        found: list[str] = []
        for start in range(0, len(files), batch):
            views = [transform(Image.open(file).convert("RGB")) for file in files[start : start + batch]]
            found += [labels[k] for k in model(torch.stack(views)).argmax(dim=1).tolist()]
        return found

    return run


def transformers_pipeline(bundle: Bundle, runs: Path, batch: int) -> Callable[[Sequence[Path]], list[str]]:
    """What `transformers` offers for this, with its defaults."""
    folder = export_weights(bundle, runs / "huggingface", "huggingface")
    classify = pipeline("image-classification", model=str(folder), device="cpu", batch_size=batch)
    return lambda files: [found[0]["label"] for found in classify([str(file) for file in files], top_k=1)]


def openvino_loop(model: Any, bundle: Bundle, pets: Path, *, int8: bool) -> Callable[[Sequence[Path]], list[str]]:
    """A straightforward loop over OpenVINO: Pillow, NumPy, one picture after the other, its default settings."""
    shape = (1, 3, *bundle.preprocess.size)
    graph = ov.convert_model(model, example_input=torch.zeros(shape), input=[shape])
    if int8:
        views = list(plain_views(sorted(pets.glob("train/*/*.jpg"))[::4][:CALIBRATED], bundle.preprocess))
        graph = nncf.quantize(graph, nncf.Dataset(views), model_type=nncf.ModelType.TRANSFORMER)
    compiled = ov.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(files: Sequence[Path]) -> list[str]:
        return [bundle.labels[int(compiled(view)[0].argmax())] for view in plain_views(files, bundle.preprocess)]

    return run


def plain_views(files: Sequence[Path], preprocess: Preprocess) -> Iterator[np.ndarray]:
    """(1, C, H, W) float32: what a person writes for this model's preprocessing."""
    (height, width), (rows, _) = preprocess.size, preprocess.resized
    mean, std = np.array(preprocess.mean, np.float32), np.array(preprocess.std, np.float32)
    for file in files:
        picture = Image.open(file).convert("RGB")
        scale = rows / min(picture.size)
        picture = picture.resize(
            (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BICUBIC
        )
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        pixels = np.asarray(picture.crop((left, top, left + width, top + height)), np.float32) / 255
        yield ((pixels - mean) / std).transpose(2, 0, 1)[None]


def model_section(args: argparse.Namespace) -> dict[str, Any]:
    """Pictures a second of the network alone, by size; and the machine's limits in float32 and int8."""
    found: dict[str, Any] = {"limits_gops": {"fp32": round(gemm_gflops()), "int8": round(int8_gops())}}
    views = sample_views(open_data(args.pets).splits["train"], Preprocess(), SPEED_VIEWS).views
    for size in SIZES:
        bundle = random_bundle(size)
        bundle.model.float()
        engines: dict[str, Engine] = {"PyTorch": TorchEngine(bundle.model, bundle.preprocess)}
        shape = (1, 3, 224, 224)
        plain = ov.convert_model(_Normalised(bundle), example_input=torch.zeros(shape), input=[shape])
        quantised = nncf.quantize(
            plain,
            nncf.Dataset([_normalise(view) for view in views]),
            model_type=nncf.ModelType.TRANSFORMER,
        )
        ours = convert_model(bundle, "openvino", views[:4])
        quantised_ours = quantise_unjudged(ours, views)
        for name, model in (("fp32", ours.model), ("int8", quantised_ours)):
            engines[f"vitreous openvino {name}"] = type(ours.engine)(model, bundle.preprocess, name)  # type: ignore[call-arg]
        jobs = {name: _asking(engine) for name, engine in engines.items()}
        jobs |= {f"OpenVINO {name}": _streaming(graph) for name, graph in (("fp32", plain), ("int8", quantised))}
        seconds = best_seconds({name: job for name, (job, _) in jobs.items()}, args.rounds, slice_seconds=1.0)
        speeds = {name: round(jobs[name][1] / taken, 1) for name, taken in seconds.items()}
        before = measure_speeds(engines)  # as `auto` chooses: by a measurement of its own, before
        taken = max(before, key=lambda name: before[name])
        best = max(speed for name, speed in speeds.items() if not name.startswith("vitreous"))
        found[size] = {"pictures_per_second": speeds, "auto": taken, "times_best": round(speeds[taken] / best, 3)}
        print(size, json.dumps(found[size]), flush=True)
    return found


def quantise_unjudged(ours: Any, views: Tensor) -> Any:
    """int8 of a network with random weights: it has no accuracy to lose."""
    from vitreous.deploy.openvino import quantise

    return quantise(ours.model, views, transformer=True)


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
    pictures = torch.randint(0, 256, (engine.batch_size, 3, 224, 224), dtype=torch.uint8)
    return lambda: engine.scores(pictures), len(pictures)


def _streaming(graph: Any, count: int = 32) -> tuple[Callable[[], object], int]:
    """OpenVINO by its own manual: the hint for throughput, and a queue of requests of one picture each."""
    queue = ov.AsyncInferQueue(ov.Core().compile_model(graph, "CPU", THROUGHPUT))
    picture = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)

    def run() -> None:
        for _ in range(count):
            queue.start_async({0: picture})
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
    quantised = nncf.quantize(graph, nncf.Dataset([rows]), subset_size=1)
    compiled = ov.Core().compile_model(quantised, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    return 2.0 * side**3 / best_seconds({"int8": lambda: compiled(rows)}, rounds=5)["int8"] / 1e9


def equal_section(args: argparse.Namespace) -> dict[str, Any]:
    """How far the answers of both runtimes are from PyTorch's, on 200 pictures."""
    from vitreous.weights.source import open_weights

    found: dict[str, Any] = {}
    models = {"Ti/16, ImageNet's weights": open_weights(args.weights)}
    models |= {name: random_bundle(f"{name}@224") for name in ("R+Ti/16", "bit-r50x1", "efficientnet-b0")}
    for name, bundle in models.items():
        views = sample_views(open_data(args.pets).splits["test"], bundle.preprocess, 200).views
        for runtime in ("openvino", "onnx"):
            verified = convert_model(bundle, runtime, views).about.verified
            found[f"{name}, {runtime}"] = verified.__dict__
            print(name, runtime, verified, flush=True)
    return found


def accuracy_section(args: argparse.Namespace) -> dict[str, Any]:
    """What int8 and merging cost after `fit`, and what merging gains, on all test pictures."""
    found: dict[str, Any] = {}
    data = {"pets": (args.pets, args.pets_budget)}
    if args.cifar is not None:
        data["cifar10"] = (args.cifar, args.cifar_budget)
    for name, (place, budget) in data.items():
        bundle = fitted(args, place, budget)
        found[name] = {"budget": budget, "torch": accuracy_of(bundle, place, "torch")}
        out = export_weights(bundle, args.runs / f"{name}-int8", "openvino", int8=True, calibrate=place)
        found[name]["int8"] = accuracy_of(out, place, "auto")
        found[name]["accuracy_aware"] = read_about(out).accuracy_aware
        print(name, json.dumps(found[name]), flush=True)
    plain = fitted(args, args.pets, args.pets_budget)
    found["merging"] = {"0": accuracy_of(plain, args.pets, "torch")}
    engines: dict[str, Engine] = {"0": TorchEngine(plain.model, plain.preprocess)}
    for count in args.merge:
        merged = fitted(args, args.pets, args.pets_budget, merge=count)
        found["merging"][str(count)] = accuracy_of(merged, args.pets, "torch")
        engines[str(count)] = TorchEngine(merged.model, merged.preprocess)
    for count, speed in measure_speeds(engines, rounds=args.rounds, seconds=2.0).items():
        found["merging"][count]["pictures_per_second"] = round(speed, 1)
    print("merging", json.dumps(found["merging"]), flush=True)
    return found


def accuracy_of(model: Any, data: Path, engine: Any) -> dict[str, Any]:
    found = evaluate(model, data, split="test", engine=engine)
    return {"accuracy": found.result.top1, "interval": found.result.top1_interval, "n": found.result.n}


SECTIONS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "files": files_section,
    "model": model_section,
    "equal": equal_section,
    "accuracy": accuracy_section,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--pets", type=Path, required=True)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--pets-budget", default="120s")
    parser.add_argument("--cifar-budget", default="180s")
    parser.add_argument("--every", type=int, default=3, help="of the test pictures, every n-th is timed")
    parser.add_argument("--merge", type=lambda text: [int(part) for part in text.split(",")], default=[8, 13])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--runs", type=Path, default=Path("runs/inference"))
    parser.add_argument("--only", default=",".join(SECTIONS))
    args = parser.parse_args()
    os.environ["VITREOUS_CACHE"] = str(args.runs / "cache")
    nncf.set_log_level(40)
    path = RESULTS / "inference.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known.pop("machine", None)
    for name in args.only.split(","):
        load = os.getloadavg()[0]
        known[name] = {**SECTIONS[name](args), "load_before": round(load, 2), "measured_on": machine()}
        write_result("inference", known)


if __name__ == "__main__":
    main()
