"""The Open Inference Protocol, version 2, as Triton, KServe and their clients speak it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor

from vitreous import __version__
from vitreous.data.view import ImageInput
from vitreous.inference.engine import LOGITS, REPRESENTATION
from vitreous.model.predictions import class_probabilities, predicted_class, ranked_classes
from vitreous.server.bodies import MIN_THREAD_BYTES, parse_fields, read_body
from vitreous.server.errors import ERROR_RESPONSES, ApiError, check_query
from vitreous.server.routes import BINARY, model_names, ready, request_body
from vitreous.server.served_model import Models, ServedModel
from vitreous.server.tensors import (
    IMAGES,
    PIXELS,
    InferRequest,
    InferResponse,
    RequestedOutput,
    read_images,
    write_tensor,
)

PROBABILITIES, LABELS = "probabilities", "labels"
VERSION = "1"  # of every model
JSON_LENGTH = "Inference-Header-Content-Length"  # bytes of JSON at the start of a body
MAX_ITEMS = 2**18  # of JSON: more than the pixels of an image of 256 x 256; larger tensors are sent as bytes
MIN_THREAD_NUMBERS = 16_384  # a response with this many numbers is written in a thread, not in the event loop

router = APIRouter(
    prefix="/v2", tags=["Open Inference Protocol"], responses=ERROR_RESPONSES, dependencies=[Depends(check_query)]
)


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
async def live(models: Models) -> dict[str, bool]:
    """Whether the server runs, and no engine hangs."""
    models.check_alive()
    return {"live": True}


router.get("/health/ready")(ready)
router.get("/models")(model_names)


@router.post("/repository/index", include_in_schema=False)
async def index(models: Models) -> list[dict[str, str]]:
    """The models, as Triton lists them."""
    return [{"name": name, "version": VERSION, "state": "READY"} for name in models.all()]


@router.get("/models/stats", include_in_schema=False)
async def all_statistics(models: Models) -> dict[str, list[dict[str, Any]]]:
    """What all models have computed, as Triton counts it."""
    return {"model_stats": [_statistics(served) for served in models.all().values()]}


def _requested_model(models: Models, request: Request, name: str) -> ServedModel:
    """The model that a path names; a version, if it names one, must be the only one."""
    served = models.choose(name)
    if request.path_params.get("version", VERSION) != VERSION:
        raise ApiError(404, f"{served.name}: there is version {VERSION} alone.")
    return served


Requested = Annotated[ServedModel, Depends(_requested_model)]


@router.get("/models/{name}/ready")
@router.get("/models/{name}/versions/{version}/ready", include_in_schema=False)
async def model_ready(served: Requested) -> dict[str, str | bool]:
    """Whether a model answers."""
    served.check_alive()
    return {"name": served.name, "ready": True}


@router.get("/models/{name}/stats", include_in_schema=False)
@router.get("/models/{name}/versions/{version}/stats", include_in_schema=False)
async def statistics(served: Requested) -> dict[str, list[dict[str, Any]]]:
    """What a model has computed, as Triton counts it."""
    return {"model_stats": [_statistics(served)]}


@router.get("/models/{name}/config", include_in_schema=False)
@router.get("/models/{name}/versions/{version}/config", include_in_schema=False)
async def configuration(served: Requested) -> dict[str, Any]:
    """What Triton's tools ask before they send requests: dims are without the batch, of at most `max_batch_size`."""
    about = _model_metadata(served)

    def tensors(which: list[TensorMetadata]) -> list[dict[str, Any]]:
        types = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "UINT8": "TYPE_UINT8"}
        return [{"name": one.name, "data_type": types[one.datatype], "dims": one.shape[1:] or [1]} for one in which]

    return {
        "name": served.name,
        "platform": about.platform,
        "backend": "vitreous",
        "max_batch_size": served.queue.size,
        "input": [{**one, "optional": True} for one in tensors(about.inputs)],  # one of them is given
        "output": tensors(about.outputs),
        "dynamic_batching": {"preferred_batch_size": [served.batcher.batch_size]},
    }


def _statistics(served: ServedModel) -> dict[str, Any]:
    """Counts and nanoseconds: of each image while it is decoded and waits, of each batch while it is computed."""
    totals = served.metrics.totals()
    (images, _), (batches, _) = totals["wait"], totals["compute"]
    parts = {"compute_input": "decode", "queue": "wait", "compute_infer": "compute"}
    durations = {name: _duration(*totals[stage]) for name, stage in parts.items()}
    return {
        "name": served.name,
        "version": VERSION,
        "inference_count": images,
        "execution_count": batches,
        "inference_stats": {"success": _duration(images, sum(one[1] for one in totals.values())), **durations},
        "batch_stats": [],
    }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(1e9 * seconds)}


@router.get("/models/{name}")
@router.get("/models/{name}/versions/{version}", include_in_schema=False)
async def metadata(served: Requested) -> ModelMetadata:
    """What a model takes and gives."""
    return _model_metadata(served)


@router.post(
    "/models/{name}/infer",
    openapi_extra=_infer_openapi(),
    response_model=InferResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
@router.post("/models/{name}/versions/{version}/infer", include_in_schema=False)
async def infer(request: Request, served: Requested) -> Response:
    """What a model makes of images."""
    with served.queue.receiving():
        infer_request, binary = await _read(request, served)
    return await _respond(served, infer_request, binary)


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
    wanted = sorted({LOGITS if name in (PROBABILITIES, LABELS) else name for name in names})
    values = dict(zip(wanted, await served.compute(images, *wanted), strict=True))
    if LOGITS in values:
        values[PROBABILITIES] = values[LABELS] = class_probabilities(values.pop(LOGITS))

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
