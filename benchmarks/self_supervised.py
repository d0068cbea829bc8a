"""Learning without labels on CIFAR-10: each method within the same time, what its features are worth, and speed.

    python benchmarks/self_supervised.py DATA [--budget 60m] [--finetune 10m] [--only speed,pixels,...]

DATA: the folder of CIFAR-10's binary version. Each method trains on the images alone; then k-NN and a linear probe
judge its features on the test part, beside raw pixels and the same network untrained. What learned from masked patches
is fine-tuned with a tenth of the labels, beside the same network and the recipe for few images from scratch, with the
same labels and the same time; and `analyze` compares what was learned. Runs are kept in --runs: repeat the command
to go on. What was measured is added to benchmarks/results/self_supervised.json.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn
from transformers import ViTMAEConfig, ViTMAEForPreTraining

import torchvision_on_cpu  # noqa: F401  (before transformers)
from measure import RESULTS, best_seconds, machine, write_result
from vitreous.callbacks import Callbacks
from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.objective import Mae
from vitreous.config.presets import SIZES
from vitreous.data.batch import Batch
from vitreous.data.opening import open_data
from vitreous.data.source import Source
from vitreous.evaluation.probe import fit_linear, vote_neighbours
from vitreous.explain.analysis.depth_result import DepthAnalysis
from vitreous.memory import retain_memory
from vitreous.model.family import build_network
from vitreous.model.network import require
from vitreous.model.vit import ViT
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.training.recipes.pretrain import PRETRAINING, mae
from vitreous.training.recipes.supervised import DatasetStats
from vitreous.verbs.analyze import analyze
from vitreous.verbs.fit import fit, pretrain
from vitreous.verbs.measure import probe
from vitreous.weights.bundle import Bundle, load_bundle

DOCS = Path(__file__).parent.parent / "docs"
CIFAR = DatasetStats(classes=0, images=50_000, side=32, channels=3)
METHODS = {"mae": "#2a6f97", "dino": "#c8553d", "masked-patch": "#6a994e"}
"""What is compared, and its colour."""
SAY = Callbacks(message=lambda text: print(text, flush=True))


def speed(rounds: int, batch: int = 128) -> dict[str, Any]:
    """Images a second of training steps: with labels, masked, and transformers' masked at equal sizes; in turns."""
    return {f"{size}/4": _speed(size, rounds, batch) for size in ("F", "N")} | {"batch": batch, "rounds": rounds}


def _speed(size: str, rounds: int, batch: int) -> dict[str, Any]:
    training = mae(replace(CIFAR, model=f"{size}/4@32"))
    c, settings = training.model, training.objective
    assert isinstance(c, ViTConfig)
    assert isinstance(settings, Mae)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    views = Batch.of(images, labels)
    supervised = ViT(replace(c, classes=10))
    masked = MaskedAutoencoder(ViT(c), settings).train()
    equal = MaskedAutoencoder(ViT(replace(c, class_token=True)), settings).train()
    theirs = _transformers(c, settings).train()
    jobs = {
        "supervised": _step(supervised, lambda: nn.functional.cross_entropy(supervised(images), labels)),
        "mae": _step(masked, lambda: masked(views, 0.0)[0]),
        "mae_with_class_token": _step(equal, lambda: equal(views, 0.0)[0]),
        "transformers_mae": _step(theirs, lambda: theirs(images).loss),
    }
    found = {name: batch / seconds for name, seconds in best_seconds(jobs, rounds, slice_seconds=2.0).items()}
    return {
        "images_per_second": {name: round(value, 1) for name, value in found.items()},
        "mae_over_supervised": round(found["mae"] / found["supervised"], 2),
        "mae_over_transformers": round(found["mae_with_class_token"] / found["transformers_mae"], 2),
    }


def _transformers(c: ViTConfig, settings: Mae) -> nn.Module:
    return ViTMAEForPreTraining(
        ViTMAEConfig(
            hidden_size=c.width,
            num_hidden_layers=c.depth,
            num_attention_heads=c.heads,
            intermediate_size=c.mlp_width,
            image_size=c.image_size[0],
            patch_size=c.patch,
            layer_norm_eps=1e-6,
            decoder_hidden_size=settings.decoder_width,
            decoder_num_hidden_layers=settings.decoder_depth,
            decoder_num_attention_heads=settings.decoder_heads,
            decoder_intermediate_size=4 * settings.decoder_width,
            mask_ratio=settings.mask,
            norm_pix_loss=settings.normalise,
            attn_implementation="sdpa",  # type: ignore[call-arg]
        )
    )


def _step(module: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-4, fused=True)

    def step() -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def judge(model: str | Bundle, data: str) -> dict[str, Any]:
    """Accuracy on the test part by neighbours and by a linear classifier, of frozen features."""
    nearest = {f"knn_{score.setting['k']}": score.accuracy for score in probe(model, data, protocol="knn").scores}
    linear = probe(model, data, protocol="linear")
    return {**nearest, "linear": linear.scores[0].accuracy, "n": linear.n}


def judge_pixels(data: str) -> dict[str, Any]:
    """The same of the pixels themselves; the linear classifier learns from every fifth image."""
    opened = open_data(data)

    def flat(source: Source, every: int = 1) -> tuple[Tensor, Tensor]:
        index = np.arange(0, len(source), every)
        pixels = torch.stack([torch.from_numpy(np.array(source.read(int(i)))) for i in index])
        return pixels.flatten(1).float() / 127.5 - 1, torch.from_numpy(source.labels[index])

    known, labels = flat(opened.train)
    asked, truth = flat(opened.splits["test"])
    votes = vote_neighbours(known, labels, asked, 10)
    found = {f"knn_{k}": (vote.argmax(1) == truth).float().mean().item() for k, vote in votes.items()}
    classifier = fit_linear(*flat(opened.train, every=5), 10, weight_decays=[1e-1])
    return {**found, "linear": (classifier(asked).argmax(1) == truth).float().mean().item(), "n": len(truth)}


def train(data: str, method: str, budget: str, runs: Path, seed: int) -> dict[str, Any]:
    """One training without labels, what its features are worth, and the untrained network's beside it."""
    run = runs / f"{method}-{seed}"
    result = pretrain(data, method=method, budget=budget, seed=seed, out=run, callbacks=SAY)
    training = PRETRAINING[method](CIFAR)
    network = build_network(training.model, seed=seed).eval()
    untrained = Bundle(network, Preprocess(size=training.model.image_size), ())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        **judge(str(run), data),
        "untrained": judge(untrained, data),
        "budget": budget,
        "seconds": result.spent.seconds,
        "images_seen": result.spent.images,
        "steps": result.steps,
        "alarms": list(result.alarms),
        "live_knn": [[line["step"], line["val_knn"]] for line in lines if "val_knn" in line],
        "loss": [[line["step"], line["loss"]] for line in lines if "loss" in line][:: max(1, result.steps // 100)],
        "settings": json.loads((run / "config.json").read_text()),
        "seed": seed,
    }


def finetune(data: str, budget: str, runs: Path, seed: int) -> dict[str, Any]:
    """A tenth of the labels: fine-tuning what learned from masked patches, and from scratch, each in the same time."""
    tenth = runs / "tenth.npz"
    if not tenth.exists():
        _write_tenth(data, tenth)
    start = runs / f"mae-{seed}"
    if not _trained(runs, "mae", seed):
        raise SystemExit(f"{start}: there is no masked autoencoder to fine-tune; run --only mae first.")
    c = require(load_bundle(start).model, ViT, str(start)).config
    size = next(name for name, shape in SIZES.items() if shape == (c.width, c.depth, c.heads, c.mlp_width))
    ways: dict[str, dict[str, Any]] = {
        **{name: {"weights": runs / f"{name}-{seed}", "recipe": "mae-finetune"} for name in ("mae", "masked-patch")},
        "scratch_same_network": {"recipe": "scratch-small", "model": f"{size}/{c.patch}@{c.image_size[0]}"},
        "scratch_for_few_images": {},
    }
    rows = {}
    for name, way in ways.items():
        if name in METHODS and not _trained(runs, name, seed):
            continue
        result = fit(tenth, budget=budget, seed=seed, out=runs / f"tenth-{name}-{seed}", callbacks=SAY, **way)
        assert result.test is not None
        rows[name] = {
            "test_accuracy": result.test.top1,
            "interval": result.test.top1_interval,
            "seconds": result.spent.seconds,
            "images_seen": result.spent.images,
            "steps": result.steps,
        }
        print(name, rows[name], flush=True)
    return {"labels": 5000, "budget": budget, "seed": seed, **rows}


def compare(data: str, runs: Path, seed: int) -> dict[str, Any]:
    """What `analyze` says of the methods that were trained, by depth; its page is in the folder of the runs."""
    methods = [method for method in METHODS if _trained(runs, method, seed)]
    models = [runs / f"{method}-{seed}" for method in methods]
    found = analyze(models, data=data, out=runs / f"analysis-{seed}", count=1000, seed=seed).numbers
    assert isinstance(found, DepthAnalysis)  # by depth
    by_depth = {}
    for method, one in zip(methods, found.models, strict=True):
        assert one.probe is not None  # the data have labels
        by_depth[method] = {
            "attention_distance": [round(fmean(heads), 2) for heads in one.measures["attention_distance"]],
            "mutual_information": [round(fmean(heads), 4) for heads in one.measures["mutual_information"]],
            "query_similarity": [round(value, 4) for value in one.measures["query_similarity"]],
            "high_frequency": [round(amplitudes[-1], 3) for amplitudes in one.measures["log_amplitude"]],
            "probe": [round(depth.value, 4) for depth in one.probe.accuracy],
        }
    return {"images": found.data.images, "summary": found.to_json()["summary"], "by_depth": by_depth}


def _trained(runs: Path, method: str, seed: int) -> bool:
    return (runs / f"{method}-{seed}" / "bundle").is_dir()


PANELS = {
    "attention_distance": ("mean attention distance, pixels", 1),
    "mutual_information": ("mutual information of attention", 1),
    "high_frequency": ("log amplitude of the highest frequency", 0),
    "probe": ("linear probe of the mean token, %", 0),
}
"""What is drawn by depth, its title, and the depth of the first value."""


def draw(found: dict[str, Any]) -> None:
    """The curves of the trainings that were analysed, and what `analyze` says, as docs/pretraining.svg."""
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    panels = list(figure.subplots(2, 3).flat)
    for panel, title in zip(panels, ("loss, each relative to its first", "live k-NN accuracy, %"), strict=False):
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("images seen, thousands", fontsize=8)
    for method, by_depth in found["analyze"]["by_depth"].items():
        row, colour = found[method], METHODS[method]
        thousand = row["images_seen"] / row["steps"] / 1000
        losses = np.array(row["loss"])
        panels[0].plot(losses[:, 0] * thousand, losses[:, 1] / losses[0, 1], color=colour, label=method)
        live = np.array(row["live_knn"])
        panels[1].plot(live[:, 0] * thousand, 100 * live[:, 1], color=colour, marker=".")
        for panel, (name, (title, first)) in zip(panels[2:], PANELS.items(), strict=True):
            values = np.array(by_depth[name]) * (100 if name == "probe" else 1)
            panel.plot(range(first, first + len(values)), values, color=colour, marker=".")
            panel.set_title(title, fontsize=9)
            panel.set_xlabel("depth", fontsize=8)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].legend(frameon=False, fontsize=8)
    for panel in panels:
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": "vitreous"}):
        figure.savefig(DOCS / "pretraining.svg", metadata={"Date": None})


def _write_tenth(data: str, path: Path) -> None:
    """500 images of each class, the first of each, and the whole test part."""
    opened = open_data(data)
    parts = {}
    labels = opened.train.labels
    first = np.sort(np.concatenate([np.flatnonzero(labels == k)[:500] for k in range(10)]))
    for name, source in (("train", opened.train.subset(first)), ("test", opened.splits["test"])):
        parts[f"x_{name}"] = np.stack([np.array(source.read(i)) for i in range(len(source))])
        parts[f"y_{name}"] = source.labels
    np.savez(path, **parts, classes=np.array(opened.classes))  # type: ignore[arg-type]


def main() -> None:
    retain_memory()  # as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--budget", default="60m", help="time for each method")
    parser.add_argument("--finetune", default="10m", help="time for each fine-tuning")
    parser.add_argument("--only", default=",".join(["speed", "pixels", *METHODS, "finetune", "analyze"]))
    parser.add_argument("--runs", type=Path, default=Path("runs/self_supervised"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("VITREOUS_CACHE", str(args.runs / "cache"))

    parts: dict[str, Callable[[], Any]] = {
        "speed": lambda: speed(args.rounds),
        "pixels": lambda: judge_pixels(args.data),
        **{method: partial(train, args.data, method, args.budget, args.runs, args.seed) for method in METHODS},
        "finetune": lambda: finetune(args.data, args.finetune, args.runs, args.seed),
        "analyze": lambda: compare(args.data, args.runs, args.seed),
    }
    path = RESULTS / "self_supervised.json"
    for name in args.only.split(","):
        measured = parts[name]()
        found = json.loads(path.read_text()) if path.exists() else {}
        found[name] = {**measured, "measured_on": machine()}  # "machine" says where the first part was
        shown = {key: value for key, value in found[name].items() if key not in ("loss", "settings")}
        print(name, json.dumps(shown), "written:", write_result("self_supervised", found).name, flush=True)
        if "analyze" in found and set(found["analyze"]["by_depth"]) <= found.keys():
            draw(found)


if __name__ == "__main__":
    main()
