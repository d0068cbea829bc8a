"""What others would serve the same model with, for benchmarks/serve.py; in an environment that has litserve too.

    python benchmarks/serving_peers.py litserve MODEL PORT
    python benchmarks/serving_peers.py fastapi MODEL PORT

Both have vitreous's engine and its way to read images, so that only the servers differ.
"""

from __future__ import annotations

import base64
import sys
from typing import Annotated, Any

import litserve
import torch
import uvicorn
from fastapi import Body, FastAPI

from vitreous.data.view import make_view
from vitreous.inference.engine import InferenceModel
from vitreous.inference.opening import open_engine

MANY = 100_000
BATCH, BATCH_SECONDS = 16, 0.01


def open_model(path: str) -> InferenceModel:
    """As `vitreous serve` opens it."""
    return open_engine(path, images=MANY)


def best_labels(deployed: InferenceModel, scores: torch.Tensor) -> list[dict[str, Any]]:
    """The five likeliest labels of scores (K,), as `vitreous serve` gives them."""
    best = scores.softmax(dim=0).topk(min(5, len(scores)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"label": deployed.labels[number], "score": score} for number, score in pairs]


class Classifier(litserve.LitAPI):  # type: ignore[misc]
    """As LitServe's manual does with images: JSON with base64, in batches."""

    def __init__(self, path: str) -> None:
        super().__init__(max_batch_size=BATCH, batch_timeout=BATCH_SECONDS)
        self.path = path

    def setup(self, device: str) -> None:
        self.deployed = open_model(self.path)

    def decode_request(self, request: dict[str, str]) -> torch.Tensor:
        return make_view(base64.b64decode(request["image"]), self.deployed.engine.preprocess)

    def batch(self, views: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(views)

    def predict(self, views: torch.Tensor) -> torch.Tensor:
        return self.deployed.engine.logits(views)

    def unbatch(self, scores: torch.Tensor) -> list[torch.Tensor]:
        return list(scores)

    def encode_response(self, scores: torch.Tensor) -> list[dict[str, Any]]:
        return best_labels(self.deployed, scores)


def run_litserve(path: str, port: int) -> None:
    """One process that computes: a second one would only share the cores with it."""
    server = litserve.LitServer(Classifier(path), accelerator="cpu", timeout=60)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


def run_fastapi(path: str, port: int) -> None:
    """One image at a time, in an ordinary function, which FastAPI calls in its threads."""
    deployed = open_model(path)
    app = FastAPI()

    @app.post("/predict")
    def predict(image: Annotated[bytes, Body(media_type="image/jpeg")]) -> list[dict[str, Any]]:
        view = make_view(image, deployed.engine.preprocess)
        return best_labels(deployed, deployed.engine.logits(view[None])[0])

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    name, model, port = sys.argv[1:]
    {"litserve": run_litserve, "fastapi": run_fastapi}[name](model, int(port))
