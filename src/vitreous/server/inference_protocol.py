"""The Open Inference Protocol, version 2, as Triton, KServe and their clients speak it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor

from vitreous import __version__
from vitreous.config.server import ServerSettings
from vitreous.data.view import ImageInput
from vitreous.model.predictions import predicted_class, ranked_classes
from vitreous.server.bodies import LARGE, parse_fields, read_body
from vitreous.server.choosing import choose_model
from vitreous.server.described import JSON_LENGTH, REFUSALS, infer_body
from vitreous.server.refusal import RefusedError
from vitreous.server.served import Served, probabilities
from vitreous.server.tensors import (
    IMAGES,
    PIXELS,
    InferRequest,
    InferResponse,
    RequestedOutput,
    read_images,
    write_tensor,
)

PROBABILITIES, LABELS, REPRESENTATION = "probabilities", "labels", "representation"
VERSION = "1"
"""Of every model: a server holds what it was started with."""
MOST_ITEMS = 2**18
"""Most items of JSON: the pixels of one image of 256 x 256, and something more; what has more of them sends bytes."""
LARGE_ANSWER = 16_384
"""Numbers of an answer that is written in a thread, so that nobody else waits for it."""


class ServerMetadata(BaseModel):
    """What the server is."""

    name: str = "vitreous"
    version: str = __version__
    extensions: list[str] = ["binary_tensor_data", "classification"]


class TensorMetadata(BaseModel):
    """A tensor that a model takes or gives."""

    name: str
    datatype: str
    shape: list[int]
    """-1: any number."""


class ModelMetadata(BaseModel):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    """One of these."""
    outputs: list[TensorMetadata]


def protocol_router(models: Mapping[str, Served], settings: ServerSettings) -> APIRouter:
    """The routes below /v2."""
    router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], responses=REFUSALS)
    _add_health(router, models)

    @router.get("")
    async def server() -> ServerMetadata:
        """What the server is."""
        return ServerMetadata()

    @router.get("/models/{name}")
    @router.get("/models/{name}/versions/{version}", include_in_schema=False)
    async def metadata(request: Request, name: str) -> ModelMetadata:
        """What a model takes and gives."""
        return _describe(_find(models, request))

    @router.post(
        "/models/{name}/infer",
        openapi_extra=infer_body(InferRequest),
        response_model=InferResponse,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    @router.post("/models/{name}/versions/{version}/infer", include_in_schema=False)
    async def infer(request: Request, name: str) -> Response:
        """What a model makes of images."""
        served = _find(models, request)
        with served.places.arriving():
            asked, binary = await _read(request, settings)
        return await _Answer(served, asked).response(binary)

    return router


def _add_health(router: APIRouter, models: Mapping[str, Served]) -> None:
    @router.get("/health/live")
    async def live() -> dict[str, bool]:
        """Whether the server runs."""
        return {"live": True}

    @router.get("/health/ready")
    async def ready() -> dict[str, bool]:
        """Whether it answers for its models; it does from the first moment on."""
        return {"ready": True}

    @router.get("/models/{name}/ready")
    @router.get("/models/{name}/versions/{version}/ready", include_in_schema=False)
    async def model_ready(request: Request, name: str) -> dict[str, str | bool]:
        """Whether a model answers."""
        return {"name": _find(models, request).name, "ready": True}

    @router.post("/repository/index", include_in_schema=False)
    async def index() -> list[dict[str, str]]:
        """The models, as Triton lists them."""
        return [{"name": name, "version": VERSION, "state": "READY"} for name in models]


def _find(models: Mapping[str, Served], request: Request) -> Served:
    """The model that a path names, where it names a version too, of the one that there is."""
    served = choose_model(models, request.path_params["name"])
    if request.path_params.get("version", VERSION) != VERSION:
        raise RefusedError(404, f"{served.name}: there is version {VERSION} alone.")
    return served


def _describe(served: Served) -> ModelMetadata:
    channels, classes = served.preprocess.channels, len(served.labels)
    outputs = [
        TensorMetadata(name=PROBABILITIES, datatype="FP32", shape=[-1, classes]),
        TensorMetadata(name=LABELS, datatype="BYTES", shape=[-1]),
    ]
    return ModelMetadata(
        name=served.name,
        versions=[VERSION],
        platform=f"vitreous_{served.engine.name}",
        inputs=[
            TensorMetadata(name=IMAGES, datatype="BYTES", shape=[-1]),
            TensorMetadata(name=PIXELS, datatype="UINT8", shape=[-1, channels, -1, -1]),
        ],
        outputs=[
            *(outputs if classes else ()),
            TensorMetadata(name=REPRESENTATION, datatype="FP32", shape=[-1, -1]),
        ],
    )


async def _read(request: Request, settings: ServerSettings) -> tuple[InferRequest, bytes]:
    """The JSON of a request, and the bytes that follow it."""
    body = await read_body(request, settings)
    length = request.headers.get(JSON_LENGTH)
    end = len(body)
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= len(body)):
            raise RefusedError(400, f"{JSON_LENGTH}: give the bytes of the JSON, at most the {len(body)} of the body.")
        end = int(length)
    return await parse_fields(body[:end], InferRequest, MOST_ITEMS), body[end:]


class _Answer:
    """The outputs that a request wants of a model."""

    def __init__(self, served: Served, asked: InferRequest) -> None:
        self.served, self.asked = served, asked
        usual = [PROBABILITIES, LABELS] if served.labels else [REPRESENTATION]
        self.wanted = asked.outputs or [RequestedOutput(name=name) for name in usual]
        known = {tensor.name for tensor in _describe(served).outputs}
        if len({output.name for output in self.wanted}) < len(self.wanted):
            raise RefusedError(400, "outputs: one of them is asked for more than once; name each once.")
        for output in self.wanted:
            if output.name not in known:
                raise RefusedError(400, f"output {output.name[:40]!r}: {served.name} gives {', '.join(sorted(known))}.")

    async def response(self, binary: bytes) -> Response:
        """The answer to the images of the request; binary: what follows its JSON."""
        most = self.served.places.most
        if len(binary) < LARGE and not any(one.data for one in self.asked.inputs):
            images: Sequence[ImageInput] = read_images(self.asked, binary, most)
        else:
            images = await asyncio.to_thread(read_images, self.asked, binary, most)
        names = {output.name for output in self.wanted}
        chances = probabilities(await self.served.scores(images)) if names & {PROBABILITIES, LABELS} else None
        features = torch.stack(await self.served.representations(images)) if REPRESENTATION in names else None
        if sum(tensor.numel() for tensor in (chances, features) if tensor is not None) < LARGE_ANSWER:
            return self._written(chances, features)
        return await asyncio.to_thread(self._written, chances, features)

    def _written(self, chances: Tensor | None, features: Tensor | None) -> Response:
        """chances: (B, K), features: (B, D); each None where no output needs it."""
        outputs, contents = [], []
        for output in self.wanted:
            values = features.numpy() if output.name == REPRESENTATION and features is not None else None
            if values is None:
                assert chances is not None
                values = self._values(output, chances)
            tensor, content = write_tensor(output.name, values, binary=self._as_binary(output))
            outputs.append(tensor)
            contents.append(content)
        answer = InferResponse(model_name=self.served.name, model_version=VERSION, id=self.asked.id, outputs=outputs)
        text, content = answer.model_dump_json(exclude_none=True).encode(), b"".join(contents)
        if not content:
            return Response(text, media_type="application/json")
        headers = {JSON_LENGTH: str(len(text))}
        return Response(text + content, media_type="application/octet-stream", headers=headers)

    def _values(self, output: RequestedOutput, chances: Tensor) -> NDArray[Any]:
        labels = self.served.labels
        if output.name == LABELS:
            return np.array([labels[number] for number in predicted_class(chances).tolist()], dtype=object)
        count = output.parameters.get("classification")
        if count is None:
            values: NDArray[Any] = chances.numpy()
            return values
        if type(count) is not int or count < 1:
            raise RefusedError(400, f"{output.name}: classification says how many classes to give, from 1.")
        return classified(chances, labels, count)

    def _as_binary(self, output: RequestedOutput) -> bool:
        every = self.asked.parameters.get("binary_data_output", False)
        return bool(output.parameters.get("binary_data", every))


def classified(chances: Tensor, labels: tuple[str, ...], count: int) -> NDArray[Any]:
    """(B, count) texts "probability:number:label" of the likeliest classes, as Triton's classification extension."""
    rows = [[f"{v:f}:{k}:{labels[k]}" for k, v in ranked_classes(row, count)] for row in chances]
    return np.array(rows, dtype=object)
