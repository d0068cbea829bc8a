"""How good the explanations of a real ViT-Ti/16 are, what they cost, and how far its heads look.

    python benchmarks/explain.py ../shared/data [--count 222] [--rounds 9] [--only score|speed|distance|memory]

Scores every method on images of pets with their outlines (`vitreous score-explanations`), beside maps that look
at nothing; times an attention overlay and a relevance overlay against a plain prediction, in turns; measures the mean
attention distance of every head; and how much memory the maps of a B/16 at 384 pixels take. Each part replaces its
section of benchmarks/results/explain.json; the tables of docs/explain.md are made from that by `make docs`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from measure import RESULTS, best_seconds, peak_megabytes, write_result
from vitreous import Model, Trace, ViT, score_explanations
from vitreous.data.opening import open_images
from vitreous.explain.attention import attention_maps, rollout_maps
from vitreous.explain.relevance import relevance_maps
from vitreous.explain.weight_statistics import attention_distances, even_distance
from vitreous.memory import retain_memory
from vitreous.model.network import require
from vitreous.report.plots import figure_style
from vitreous.report.weight_plots import distance_figure
from vitreous.verbs.predict import predict
from vitreous.weights.bundle import Bundle
from vitreous.weights.source import open_weights

WEIGHTS = "vit_ti16_augreg_in21k_ft_in1k.safetensors"
DOCS = Path(__file__).parents[1] / "docs"
PREPROCESS = "mean=0.5,std=0.5,crop=0.9"


def score(bundle: Bundle, data: Path, count: int) -> dict[str, Any]:
    """Every method beside the baselines, on `count` images spread evenly over the test part."""
    pets = data / "pets"
    found = score_explanations(bundle, pets / "test", masks=pets / "test_trimaps", count=count)
    return found.to_json()


def speed(bundle: Bundle, data: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds from a file to the answer, and to an overlay in memory."""
    image = min((data / "pets" / "test").glob("*/*.jpg"))
    jobs: dict[str, Callable[[], object]] = {
        "prediction": lambda: predict(bundle, [image]),
        "attention overlay": lambda: Model(bundle).explain(image, method="attention").overlay(),
        "relevance overlay": lambda: Model(bundle).explain(image, method="relevance").overlay(),
        "relevance overlay, all layers": lambda: Model(bundle).explain(image, method="relevance", layer=0).overlay(),
    }
    seconds = best_seconds(jobs, rounds)
    plain = seconds["prediction"]
    return {
        name: {"milliseconds": round(1e3 * value, 1), "predictions": round(value / plain, 2)}
        for name, value in seconds.items()
    }


def distance(bundle: Bundle, data: Path, count: int) -> dict[str, Any]:
    """Mean attention distance in pixels, (layers, heads); the plot goes to docs."""
    found = attention_distances(bundle, open_images(data / "pets" / "test").train, count)
    with figure_style():
        figure = distance_figure(found, even_distance(require(bundle.model, ViT, "distance"), bundle.preprocess.size))
        figure.savefig(DOCS / "attention_distance.svg", metadata={"Date": None})
    return {"images": count, "pixels": [[round(float(head), 2) for head in layer] for layer in found]}


MAPS: dict[str, Callable[[ViT, Tensor], object]] = {
    "prediction": lambda model, images: model(images),
    "attention, last layer": lambda model, images: attention_maps(model, images),
    "attention, all layers": lambda model, images: attention_maps(model, images, layers=None),
    "rollout, all layers": lambda model, images: rollout_maps(model, images, layers=None),
    "relevance, all layers": lambda model, images: relevance_maps(model, images, None, layers=range(12)),
    "all attention kept": lambda model, images: model(images, trace=Trace(tokens=False)),
}


def memory() -> dict[str, Any]:
    """Megabytes above those of the model itself, at most, for one image of a B/16 at 384 pixels."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        return {"megabytes": dict(zip(MAPS, fresh.map(_held, MAPS), strict=True))}


def _held(name: str) -> int:
    """Of one of `MAPS`, in a process of its own."""
    model = ViT("B/16@384", classes=1000).eval()
    images = torch.zeros(1, 3, 384, 384)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = peak_megabytes()
    with nullcontext() if name.startswith("relevance") else torch.inference_mode():
        MAPS[name](model, images)
    return round(peak_megabytes() - before)


def main() -> None:
    retain_memory()  # as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the weights and pets/")
    parser.add_argument("--count", type=int, default=222)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=("score", "speed", "distance", "memory"))
    args = parser.parse_args()
    bundle = open_weights(args.data / WEIGHTS, PREPROCESS)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "score": lambda: score(bundle, args.data, args.count),
        "speed": lambda: speed(bundle, args.data, args.rounds),
        "distance": lambda: distance(bundle, args.data, min(args.count, 128)),
        "memory": memory,
    }
    for name in [args.only] if args.only else list(parts):
        found = {"threads": torch.get_num_threads(), "load": round(os.getloadavg()[0], 1)} | parts[name]()
        print(json.dumps({name: found}, indent=2), flush=True)
        path = RESULTS / "explain.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        kept.pop("machine", None)
        write_result("explain", {"weights": WEIGHTS, **kept, name: found})


if __name__ == "__main__":
    main()
