"""`/predict`, `/explain`, `/embed`, `/metrics` and `/docs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from jinja2 import Environment, PackageLoader
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from torch import Tensor

from vitreous.data.decode import ImageError
from vitreous.errors import DamagedModelError, UserError
from vitreous.explain.explanation import Explainer, Explanation
from vitreous.explain.overlay import encode
from vitreous.explain.request import EXPLANATION_METHODS, ExplanationRequest, Head, Layer
from vitreous.inference.engine import LOGITS, REPRESENTATION
from vitreous.model.predictions import class_probabilities, ranked_classes
from vitreous.server.bodies import NoParameters, read_image
from vitreous.server.errors import ERROR_RESPONSES, STATUS_SENTENCES, ApiError, check_query
from vitreous.server.served_model import Chosen, Models, check_pixels

Function = Literal["softmax", "sigmoid", "none"]
FUNCTIONS: dict[Function, Callable[[Tensor], Tensor]] = {
    "softmax": class_probabilities,
    "sigmoid": torch.sigmoid,
    "none": lambda logits: logits,
}


def _known_method(name: str) -> str:
    if name not in EXPLANATION_METHODS:
        names = ", ".join(EXPLANATION_METHODS)
        raise PydanticCustomError("enum", "Input should be one of {names}", {"names": names})
    return name


MethodName = Annotated[
    str,
    AfterValidator(_known_method),
    Field(json_schema_extra=lambda schema: schema.update(enum=list(EXPLANATION_METHODS))),
]
"""One of the table's methods, as it is when a request comes."""

DEFAULT_TOP_K = 5
MAX_OVERLAY_SIDE = 2048  # pixels; a larger image is drawn smaller
BINARY = {"type": "string", "format": "binary"}

router = APIRouter()
images = APIRouter(tags=["images"], dependencies=[Depends(check_query)])


def _image_body(parameters: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route for one image, for the OpenAPI document; in JSON it has these parameters."""
    fields = {
        "type": "object",
        "required": ["inputs"],
        "additionalProperties": False,
        "properties": {
            "inputs": {"type": "string", "description": "The bytes of the image's file, in base64."},
            "parameters": parameters.model_json_schema(),
        },
    }
    text = (
        "An image: the bytes of its file (JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM, AVIF or JPEG 2000), or base64 in JSON, "
        "or a form with one file."
    )
    form = {"type": "object", "required": ["image"], "properties": {"image": BINARY}}
    kinds = {"application/octet-stream": BINARY, "application/json": fields, "multipart/form-data": form}
    return request_body(text, kinds)


def request_body(description: str, schemas: dict[str, Any]) -> dict[str, Any]:
    content = {kind: {"schema": schema} for kind, schema in schemas.items()}
    return {"requestBody": {"required": True, "description": description, "content": content}}


class Parameters(BaseModel):
    """How the classes of an image are given."""

    model_config = ConfigDict(extra="forbid")
    top_k: int | None = Field(None, ge=1, description="How many classes; 5 by default.")
    function_to_apply: Function | None = Field(None, description="What makes scores of the network's; softmax.")


class ClassScore(BaseModel):
    """A class, and how likely the model holds it."""

    label: str
    score: float


@images.post("/", include_in_schema=False)  # for clients that are given the server's address alone
@images.post(
    "/predict", response_model=list[ClassScore], openapi_extra=_image_body(Parameters), responses=ERROR_RESPONSES
)
async def predict(
    request: Request,
    served: Chosen,
    top_k: Annotated[int | None, Query(ge=1, description="How many classes; 5 by default.")] = None,
) -> JSONResponse:
    """The likeliest classes of an image, best first."""
    if not served.labels:
        raise ApiError(400, f"{served.name} has no classifier and so no labels to give; ask /embed.")
    with served.queue.receiving():
        image, parameters = await read_image(request, served.settings, Parameters)
    [[logits]] = await served.compute([image], LOGITS)
    scores = FUNCTIONS[parameters.function_to_apply or "softmax"](logits)
    best = ranked_classes(scores, top_k or parameters.top_k or DEFAULT_TOP_K)
    return JSONResponse([{"label": served.labels[number], "score": score} for number, score in best])


class ExplainedImage(BaseModel):
    """What a model saw in an image."""

    model: str
    method: MethodName
    label: str | None = Field(description="The class that was explained, or the likeliest; null without a classifier.")
    score: float | None = Field(description="How likely the model holds that class.")
    layers: list[int] = Field(description="The layers of `maps`; empty where a map belongs to no single one.")
    heads: list[int] = Field(description="The heads of `maps`; empty where it joins them.")
    height: int = Field(description="Of the image, in pixels.")
    width: int
    box: list[float] = Field(description="Left, top, right and bottom of what the model saw of it.")
    maps: list[list[list[list[float]]]] = Field(description="(layers or 1, heads or 1, rows, columns) of patches.")


_LAYER, _HEAD = r"^(-?\d{1,4}|all)$", r"^(-?\d{1,4}|mean|all)$"
_OVERLAY: dict[int | str, dict[str, Any]] = {
    200: {"description": "The overlay, or its numbers.", "content": {"image/png": {}}}
}


@images.post(
    "/explain",
    openapi_extra=_image_body(NoParameters),
    response_model=ExplainedImage,
    responses=ERROR_RESPONSES | _OVERLAY,
)
async def explain(
    request: Request,
    served: Chosen,
    method: Annotated[MethodName | None, Query(description="Default: the one that suits the model.")] = None,
    layer: Annotated[str | None, Query(description="A layer's number, or all.", pattern=_LAYER)] = None,
    head: Annotated[str, Query(description="An attention head's number, mean or all.", pattern=_HEAD)] = "mean",
    target: Annotated[
        str | None, Query(alias="class", description="The class to explain; default: the likeliest.")
    ] = None,
    x: Annotated[float | None, Query(description="With y, a place in the image: what it attends to.", ge=0)] = None,
    y: Annotated[float | None, Query(description="In pixels from the top.", ge=0)] = None,
    format: Annotated[Literal["png", "json"], Query(description="An overlay, or its numbers.")] = "png",
) -> Response:
    """What the model looked at, as an overlay on the image or as numbers."""
    if (bundle := served.bundle) is None:
        raise ApiError(400, f"{served.name} is an exported model, which cannot be looked into.")
    if (x is None) != (y is None):
        raise ApiError(400, "x and y: give both, in pixels of the image, or none.")
    query = None if x is None or y is None else (x, y)
    served.check_explanations()
    image, _ = await read_image(request, served.settings, NoParameters)

    def respond() -> Response:
        chosen_layer: Layer | None = None if layer is None else "all" if layer == "all" else int(layer)
        chosen_head: Head = "mean" if head == "mean" else "all" if head == "all" else int(head)
        explanation_request = ExplanationRequest(
            method=method, layer=chosen_layer, head=chosen_head, target=target, query=query
        )
        try:
            explainer = Explainer(bundle, explanation_request)
            check_pixels(image, served.settings)
            explanation = explainer.explain(image)
        except ImageError as error:
            raise ApiError(422, error.reason) from None
        except DamagedModelError:
            raise
        except UserError as error:  # such as a method that the model does not support
            raise ApiError(400, str(error)) from None
        if format == "json":
            return Response(_explained_image(served.name, explanation).model_dump_json(), media_type="application/json")
        several = explanation.maps.shape[0] * explanation.maps.shape[1] > 1
        drawn = explanation.grid() if several else explanation.overlay(MAX_OVERLAY_SIDE)
        return Response(encode(drawn), media_type="image/png")

    return await served.explain(respond)


def _explained_image(name: str, explanation: Explanation) -> ExplainedImage:
    return ExplainedImage(
        model=name,
        method=explanation.method,
        label=explanation.label,
        score=explanation.score,
        layers=list(explanation.layers),
        heads=list(explanation.heads),
        height=explanation.image.height,
        width=explanation.image.width,
        box=list(explanation.geometry.box),
        maps=explanation.maps.tolist(),
    )


class EmbeddedImage(BaseModel):
    """What a model makes of an image, before any classifier."""

    model: str
    embedding: list[float]


@images.post("/embed", openapi_extra=_image_body(NoParameters), responses=ERROR_RESPONSES)
async def embed(request: Request, served: Chosen) -> EmbeddedImage:
    """The embedding of an image: similar images have nearby embeddings."""
    with served.queue.receiving():
        image, _ = await read_image(request, served.settings, NoParameters)
    [[features]] = await served.compute([image], REPRESENTATION)
    return EmbeddedImage(model=served.name, embedding=features.tolist())


@router.get("/health", tags=["server"], responses=ERROR_RESPONSES)
async def ready(models: Models) -> dict[str, bool]:
    """Whether the models answer: 503 while they are loaded, or if an engine hangs."""
    models.all()
    models.check_alive()
    return {"ready": True}


@router.get("/models", tags=["server"], responses=ERROR_RESPONSES)
async def model_names(models: Models) -> dict[str, list[str]]:
    """The names of the models; the first is the default."""
    return {"models": list(models.all())}


@router.get("/metrics", tags=["server"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """What the server counts, for Prometheus."""
    return Response(request.app.state.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/docs", include_in_schema=False)
async def documentation(request: Request) -> Response:
    """The OpenAPI document as a page without external resources."""
    templates = Environment(loader=PackageLoader("vitreous.server", "page"), autoescape=True, trim_blocks=True)
    page = templates.get_template("docs.html").render(document=request.app.openapi(), sentences=STATUS_SENTENCES)
    return Response(page, media_type="text/html")


router.include_router(images)
