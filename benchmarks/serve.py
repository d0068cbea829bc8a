"""What `vitreous serve` holds under load, and how it does beside other servers.

    python benchmarks/serve.py --weights TI16 --pets PETS [--peers PYTHON] [--only throughput,equal,...]

TI16: the file of a ViT-Ti/16 for ImageNet in timm's naming. PETS: a folder with test, one folder per class, of JPEGs.
PYTHON: of an environment that has this project's packages and LitServe:

    python -m venv peers && peers/bin/pip install --constraint constraints.txt '.[openvino,serve]' litserve

Servers, clients and this script are processes of their own on one machine, so the clients' share of the processor is
part of every figure. Nothing else should run. Sections:

- throughput: 32 clients, beside the engine's own speed from the same JPEG bytes to labels, and beside the model alone;
  in turns, the median of several rounds.
- equal: answers to 32 requests at once beside those to the same requests one at a time.
- overload: ten times as many requests a second as it can answer.
- memory: 10,000 requests to a tiny model, all kinds in turn.
- ending: SIGTERM at random moments under the load of 32 clients.
- peers: 32 clients of vitreous, LitServe and a plain FastAPI loop, all with the same engine, in turns.

Writes benchmarks/results/serve.json, section by section.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from load import NO_ANSWER, Outcome, Plan
from measure import Sections, measure_sections
from serving import Server, Summary, apply_load, finish_load, group, running, start_load, summarise
from vitreous.config.data import Preprocess
from vitreous.config.server import ServerSettings
from vitreous.data.view import ViewPipeline
from vitreous.inference.engine import Engine, InferenceModel
from vitreous.inference.opening import open_engine
from vitreous.inference.speed import noise
from vitreous.model.vit import ViT
from vitreous.weights.bundle import save_bundle

CLIENTS = 32
OVERLOAD = 10
MANY = 100_000
"""Images that a server is expected to be asked about: the engine is chosen as `serve` chooses it."""


def serve_command(model: Path, *options: str) -> list[str]:
    """`vitreous serve` of this Python's environment."""
    return [str(Path(sys.executable).with_name("vitreous")), "serve", str(model), "--port", "PORT", *options]


def plan(args: argparse.Namespace, server: Server, **changes: Any) -> Plan:
    """32 clients that send the files as they are."""
    images = [str(path) for path in args.images]
    return replace(Plan(server.port, "/predict", images, False, CLIENTS, args.seconds), **changes)


def throughput_section(args: argparse.Namespace) -> dict[str, Any]:
    """Requests a second beside what the engine does without a server."""
    deployed = open_engine(args.weights, images=MANY)
    bodies = [path.read_bytes() for path in args.images]
    found: dict[str, list[float]] = {"server": [], "engine": [], "model": []}
    runs: list[Summary] = []
    with running(serve_command(args.weights), args.runs / "throughput.log") as server:
        apply_load(plan(args, server, seconds=2.0))
        for turn in range(args.rounds):
            jobs: list[tuple[str, Callable[[], float]]] = [
                ("engine", lambda: engine_speed(deployed, bodies, args.seconds)),
                ("model", lambda: model_speed(deployed.engine, args.seconds / 2)),
                ("server", lambda: kept_speed(runs, apply_load(plan(args, server)))),
            ]
            for name, job in jobs[:: 1 if turn % 2 == 0 else -1]:
                found[name].append(round(job(), 1))
        print(json.dumps(found), flush=True)
    median = {name: float(np.median(speeds)) for name, speeds in found.items()}
    return {
        "clients": CLIENTS,
        "engine": f"{deployed.engine.name}-{deployed.engine.precision}",
        "images_per_second": found,
        "median": median,
        "share_of_engine": round(median["server"] / median["engine"], 3),
        "share_of_model": round(median["server"] / median["model"], 3),
        "latency": {"p50": float(np.median([run.p50 for run in runs])), "p99": float(max(run.p99 for run in runs))},
        "statuses": [run.statuses for run in runs],
    }


def kept_speed(runs: list[Summary], outcomes: list[Outcome]) -> float:
    runs.append(summarise(outcomes))
    return runs[-1].per_second


def engine_speed(deployed: InferenceModel, bodies: list[bytes], seconds: float) -> float:
    """Images a second from JPEG bytes to labels, decoded in threads while the engine computes, as `predict` does."""
    engine, done = deployed.engine, 0
    start = time.monotonic()

    def until_then() -> Iterator[bytes]:
        for body in cycle(bodies):
            if time.monotonic() - start >= seconds:
                return
            yield body

    for views in ViewPipeline(engine.preprocess, engine.batch_size).batches(until_then()):
        scores = engine.logits(torch.stack([view for view in views if isinstance(view, torch.Tensor)]))
        done += len([deployed.labels[number] for number in scores.softmax(dim=1).argmax(dim=1).tolist()])
    return done / (time.monotonic() - start)


def model_speed(engine: Engine, seconds: float) -> float:
    """Images a second of the model alone."""
    images, done, start = noise(engine, engine.batch_size), 0, time.monotonic()
    while time.monotonic() - start < seconds:
        done += len(engine.logits(images))
    return done / (time.monotonic() - start)


def equal_section(args: argparse.Namespace) -> dict[str, Any]:
    """The largest difference of any class's probability, asked alone and among others; for each engine."""
    found: dict[str, Any] = {}
    for engine in ("torch", "openvino"):
        with running(serve_command(args.weights, "--engine", engine), args.runs / "equal.log") as server:
            alone = probabilities(server, args.images[: 2 * CLIENTS], 1)
            together = probabilities(server, args.images[: 2 * CLIENTS], CLIENTS)
        differences = [max(abs(a[label] - b[label]) for label in a) for a, b in zip(alone, together, strict=True)]
        found[engine] = {"images": len(alone), "classes": len(alone[0]), "largest_difference": max(differences)}
        print(engine, found[engine], flush=True)
    return found


def probabilities(server: Server, images: list[Path], at_once: int) -> list[dict[str, float]]:
    """Of each image all classes' probabilities, so many asked at once."""

    def ask(image: Path) -> dict[str, float]:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/predict?top_k=1000", image.read_bytes(), {"Content-Type": "image/jpeg"})
        answer = connection.getresponse()
        rows = json.loads(answer.read())
        assert answer.status == 200, rows
        return {row["label"]: row["score"] for row in rows}

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, images))


def overload_section(args: argparse.Namespace) -> dict[str, Any]:
    """Requests at ten times the speed that it has: who is refused, how soon, and how long the others wait."""
    with running(serve_command(args.weights), args.runs / "overload.log") as server:
        apply_load(plan(args, server, seconds=2.0))
        capacity = summarise(apply_load(plan(args, server))).per_second
        before = server.megabytes()
        clients = start_load(
            plan(args, server, clients=400, rate=OVERLOAD * capacity, seconds=2 * args.seconds, timeout=30.0)
        )
        held: list[float] = []
        while clients.poll() is None and len(held) < 8 * args.seconds:
            time.sleep(0.25)
            held.append(server.megabytes())
        outcomes = finish_load(clients)
        after = summarise(apply_load(plan(args, server, seconds=2.0)))
    refused = [one.seconds for one in outcomes if one.status == 503]
    answered = summarise(outcomes)
    span = max(one.began for one in outcomes) - min(one.began for one in outcomes)
    found = {
        "capacity": capacity,
        "offered_per_second": round(len(outcomes) / span, 1),
        "answered_per_second": answered.per_second,
        "statuses": answered.statuses,
        "answered": {"p50": answered.p50, "p99": answered.p99},
        "bound": round(ServerSettings().max_queue_size / answered.per_second, 3),
        "refused": quantiles(refused),
        "refused_within_100_ms": round(float(np.mean(np.array(refused) <= 0.1)), 4),
        "megabytes": {"before": round(before), "at_a_quarter": round(held[len(held) // 4]), "most": round(max(held))},
        "per_second_afterwards": after.per_second,
    }
    print(json.dumps(found), flush=True)
    return found


def quantiles(seconds: list[float]) -> dict[str, float]:
    return {name: round(float(np.quantile(seconds, q)), 4) for name, q in (("p50", 0.5), ("p99", 0.99), ("most", 1.0))}


def tiny_model(folder: Path) -> Path:
    """A model whose answers take no time, so that everything else does."""
    network = ViT("N/4@16", depth=1, width=32, heads=2, mlp_width=32, classes=3, seed=7)
    return save_bundle(folder / "tiny", network.eval(), Preprocess(size=(16, 16)), list("abc"))


def memory_section(args: argparse.Namespace) -> dict[str, Any]:
    """Memory after each thousand of 10,000 requests: images, what is none, and what is refused."""
    broken = args.runs / "broken.jpg"
    broken.write_bytes(args.images[0].read_bytes()[:2000])
    images = [str(path) for path in [*args.images[:18], broken]]
    held, statuses = [], dict[str, int]()
    with running(serve_command(tiny_model(args.runs), "--engine", "torch"), args.runs / "memory.log") as server:
        targets = ("/predict", "/predict?top_k=1", "/predict?model=none", "/embed", "/explain")
        for part in range(10):
            for target in targets:
                count = args.requests // 10 // len(targets)
                clients = ServerSettings().max_explanations if target == "/explain" else CLIENTS
                asked = plan(args, server, target=target, images=images, clients=clients, requests=count, seconds=600.0)
                for status, number in summarise(apply_load(asked)).statuses.items():
                    statuses[status] = statuses.get(status, 0) + number
            held.append(round(server.megabytes(), 1))
            print(part, held[-1], statuses, flush=True)
    grown = float(np.polyfit(np.arange(2, 10), held[2:], 1)[0])
    return {
        "requests": sum(statuses.values()),
        "statuses": statuses,
        "megabytes_after_each_tenth": held,
        "megabytes_per_thousand": round(grown * 10_000 / args.requests, 3),
    }


def ending_section(args: argparse.Namespace) -> dict[str, Any]:
    """SIGTERM under load: what had been sent before it is answered, and no process stays."""
    tiny, chance = tiny_model(args.runs), random.Random(0)
    rows: list[dict[str, Any]] = []
    for turn in range(args.endings):
        model = args.weights if turn % 2 == 0 else tiny
        with running(serve_command(model), args.runs / "ending.log") as server:
            clients = start_load(plan(args, server, seconds=4.0, timeout=30.0))
            time.sleep(chance.uniform(1.0, 2.0))
            signalled = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            status = server.process.wait(60)
            ended = time.monotonic()
            outcomes = finish_load(clients)
            left = len(group(server.process.pid))
        before = [one for one in outcomes if one.began < signalled]
        under_way = [one for one in before if one.began + one.seconds > signalled]
        rows.append(
            {
                "model": model.name,
                "under_way": len(under_way),
                "answered": sum(one.status == 200 for one in under_way),
                "lost": sum(one.status != 200 for one in before),
                "sent_after_and_cut": sum(one.status == NO_ANSWER for one in outcomes if one.began >= signalled),
                "exit_status": status,
                "seconds_to_end": round(ended - signalled, 2),
                "processes_left": left,
            }
        )
        print(rows[-1], flush=True)
    total = {key: sum(row[key] for row in rows) for key in ("under_way", "answered", "lost", "processes_left")}
    return {"endings": len(rows), **total, "slowest": max(row["seconds_to_end"] for row in rows), "each": rows}


def peers_section(args: argparse.Namespace) -> dict[str, Any]:
    """The same clients of three servers in turns, each started anew in every round."""
    peers = [str(args.peers or sys.executable), str(Path(__file__).parent / "serving_peers.py")]
    ways: dict[str, tuple[list[str], bool]] = {
        "vitreous serve": (serve_command(args.weights), False),
        "LitServe": ([*peers, "litserve", str(args.weights), "PORT"], True),
        "FastAPI loop": ([*peers, "fastapi", str(args.weights), "PORT"], False),
    }
    runs: dict[str, list[Summary]] = {name: [] for name in ways}
    for turn in range(args.rounds):
        for name, (command, base64_json) in list(ways.items())[:: 1 if turn % 2 == 0 else -1]:
            with running(command, args.runs / f"{name.split()[0]}.log") as server:
                asked = plan(args, server, base64_json=base64_json)
                apply_load(replace(asked, seconds=3.0))
                runs[name].append(summarise(apply_load(asked)))
            print(name, runs[name][-1], flush=True)
    return {
        "clients": CLIENTS,
        "servers": {
            name: {
                "per_second": float(np.median([run.per_second for run in some])),
                "p50": float(np.median([run.p50 for run in some])),
                "p99": float(np.median([run.p99 for run in some])),
                "rounds": [asdict(run) for run in some],
            }
            for name, some in runs.items()
        },
    }


SECTIONS: Sections = {
    "throughput": throughput_section,
    "equal": equal_section,
    "overload": overload_section,
    "memory": memory_section,
    "ending": ending_section,
    "peers": peers_section,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--pets", type=Path, required=True)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--seconds", type=float, default=8.0, help="of load, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--endings", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=Path("runs/serve"))
    parser.add_argument("--only", default=",".join(SECTIONS))
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    os.environ["VITREOUS_CACHE"] = str(args.runs.resolve() / "cache")
    args.images = sorted(args.pets.glob("test/*/*.jpg"))[::9]
    measure_sections("serve", SECTIONS, args)


if __name__ == "__main__":
    main()
