"""The Open Inference Protocol, version 2, as Triton, KServe and their clients speak it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor

from vitreous import __version__
from vitreous.data.view import ImageInput
from vitreous.model.predictions import class_probabilities, predicted_class, ranked_classes
from vitreous.server.batching import Forward
from vitreous.server.bodies import MIN_THREAD_BYTES, parse_fields, read_body
from vitreous.server.errors import ERROR_RESPONSES, ApiError
from vitreous.server.routes import BINARY, request_body
from vitreous.server.served_model import ServedModel, choose_model
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
VERSION = "1"  # of every model
JSON_LENGTH = "Inference-Header-Content-Length"  # bytes of JSON at the start of a body
MAX_ITEMS = 2**18  # of JSON: more than the pixels of an image of 256 x 256; larger tensors are sent as bytes
MIN_THREAD_NUMBERS = 16_384  # a response with this many numbers is written in a thread, not in the event loop

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], responses=ERROR_RESPONSES)


class ServerMetadata(BaseModel):
    """What the server is."""

    name: str = "vitreous"
    version: str = __version__
    extensions: list[str] = ["binary_tensor_data", "classification"]


class TensorMetadata(BaseModel):
    """A tensor that a model takes or gives."""

    name: str
    datatype: str
    shape: list[int]  # -1: any number


class ModelMetadata(BaseModel):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]  # one of these
    outputs: list[TensorMetadata]


def _infer_openapi() -> dict[str, Any]:
    """The request body for the OpenAPI document; it refers to `infer_schemas`."""
    text = f"The request in JSON; or JSON and after it the bytes of its tensor, with {JSON_LENGTH} to tell them apart."
    reference = {"$ref": "#/components/schemas/InferRequest"}
    length = {
        "name": JSON_LENGTH,
        "in": "header",
        "required": False,
        "description": "How many bytes of the body are JSON, where the bytes of a tensor follow it.",
        "schema": {"type": "integer", "minimum": 0},
    }
    body = request_body(text, {"application/json": reference, "application/octet-stream": BINARY})
    return {**body, "parameters": [length]}


def infer_schemas() -> dict[str, Any]:
    """The request's schemas, for the components of the OpenAPI document."""
    schema = InferRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), "InferRequest": schema}


@router.get("")
async def server() -> ServerMetadata:
    """What the server is."""
    return ServerMetadata()


@router.get("/health/live")
async def live(request: Request) -> dict[str, bool]:
    """Whether the server runs, and no engine hangs."""
    _check_alive(request)
    return {"live": True}


@router.get("/health/ready")
async def ready(request: Request) -> dict[str, bool]:
    """Whether it answers for its models; it does from the first moment on."""
    _check_alive(request)
    return {"ready": True}


def _check_alive(request: Request) -> None:
    for served in request.app.state.models.values():
        served.check_alive()


@router.get("/models/{name}/ready")
@router.get("/models/{name}/versions/{version}/ready", include_in_schema=False)
async def model_ready(request: Request, name: str) -> dict[str, str | bool]:
    """Whether a model answers."""
    served = _requested_model(request)
    served.check_alive()
    return {"name": served.name, "ready": True}


@router.post("/repository/index", include_in_schema=False)
async def index(request: Request) -> list[dict[str, str]]:
    """The models, as Triton lists them."""
    return [{"name": name, "version": VERSION, "state": "READY"} for name in request.app.state.models]


@router.get("/models/{name}")
@router.get("/models/{name}/versions/{version}", include_in_schema=False)
async def metadata(request: Request, name: str) -> ModelMetadata:
    """What a model takes and gives."""
    return _model_metadata(_requested_model(request))


@router.post(
    "/models/{name}/infer",
    openapi_extra=_infer_openapi(),
    response_model=InferResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
@router.post("/models/{name}/versions/{version}/infer", include_in_schema=False)
async def infer(request: Request, name: str) -> Response:
    """What a model makes of images."""
    served = _requested_model(request)
    with served.queue.receiving():
        infer_request, binary = await _read(request, served)
    return await _respond(served, infer_request, binary)


def _requested_model(request: Request) -> ServedModel:
    """The model that a path names; a version, if it names one, must be the only one."""
    served = choose_model(request, request.path_params["name"])
    if request.path_params.get("version", VERSION) != VERSION:
        raise ApiError(404, f"{served.name}: there is version {VERSION} alone.")
    return served


def _model_metadata(served: ServedModel) -> ModelMetadata:
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
        outputs=[*(outputs if classes else ()), TensorMetadata(name=REPRESENTATION, datatype="FP32", shape=[-1, -1])],
    )


async def _read(request: Request, served: ServedModel) -> tuple[InferRequest, bytes]:
    """The JSON of a request, and the bytes that follow it."""
    body = await read_body(request, served.settings)
    length = request.headers.get(JSON_LENGTH)
    end = len(body)
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= len(body)):
            raise ApiError(400, f"{JSON_LENGTH}: give the bytes of the JSON, at most the {len(body)} of the body.")
        end = int(length)
    return await parse_fields(body[:end], InferRequest, MAX_ITEMS), body[end:]


async def _respond(served: ServedModel, infer_request: InferRequest, binary: bytes) -> Response:
    """Compute the requested outputs. binary: the bytes that follow the JSON."""
    usual = [PROBABILITIES, LABELS] if served.labels else [REPRESENTATION]
    outputs = infer_request.outputs or [RequestedOutput(name=name) for name in usual]
    known, names = {tensor.name for tensor in _model_metadata(served).outputs}, {output.name for output in outputs}
    if len(names) < len(outputs):
        raise ApiError(400, "outputs: one of them is asked for more than once; name each once.")
    for output in outputs:
        if output.name not in known:
            raise ApiError(400, f"output {output.name[:40]!r}: {served.name} gives {', '.join(sorted(known))}.")
    if len(binary) < MIN_THREAD_BYTES and not any(one.data for one in infer_request.inputs):
        images: Sequence[ImageInput] = read_images(infer_request, binary, served.queue.size)
    else:
        images = await asyncio.to_thread(read_images, infer_request, binary, served.queue.size)
    functions: dict[str, Forward] = {}
    if names & {PROBABILITIES, LABELS}:
        functions[PROBABILITIES] = served.engine.logits
    if REPRESENTATION in names:
        functions[REPRESENTATION] = served.engine.representations
    values = dict(zip(functions, await served.compute(images, *functions.values()), strict=True))
    if PROBABILITIES in values:
        values[PROBABILITIES] = values[LABELS] = class_probabilities(values[PROBABILITIES])

    def write() -> Response:
        every = infer_request.parameters.get("binary_data_output", False)
        written = [
            write_tensor(
                output.name,
                _output_values(output, served.labels, values[output.name]),
                binary=bool(output.parameters.get("binary_data", every)),
            )
            for output in outputs
        ]
        tensors, content = [tensor for tensor, _ in written], b"".join(more for _, more in written)
        response = InferResponse(model_name=served.name, model_version=VERSION, id=infer_request.id, outputs=tensors)
        text = response.model_dump_json(exclude_none=True).encode()
        if not content:
            return Response(text, media_type="application/json")
        headers = {JSON_LENGTH: str(len(text))}
        return Response(text + content, media_type="application/octet-stream", headers=headers)

    numbers = sum(tensor.numel() for tensor in values.values())
    return write() if numbers < MIN_THREAD_NUMBERS else await asyncio.to_thread(write)


def _output_values(output: RequestedOutput, labels: tuple[str, ...], values: Tensor) -> NDArray[Any]:
    """values: (B, K) probabilities, or (B, D) features."""
    if output.name == LABELS:
        return np.array([labels[number] for number in predicted_class(values).tolist()], dtype=object)
    count = output.parameters.get("classification")
    if count is None or output.name == REPRESENTATION:
        return values.numpy()
    if type(count) is not int or count < 1:
        raise ApiError(400, f"{output.name}: classification says how many classes to give, from 1.")
    # (B, count) texts "probability:number:label" of the likeliest classes, as Triton's classification extension
    rows = [[f"{v:f}:{k}:{labels[k]}" for k, v in ranked_classes(row, count)] for row in values]
    return np.array(rows, dtype=object)
