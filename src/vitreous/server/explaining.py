"""`POST /explain` and `POST /embed`: what a model saw in an image, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from vitreous.config.server import ServerSettings
from vitreous.data.decode import ImageError
from vitreous.errors import DamagedModelError, UserError
from vitreous.explain.draw import encode
from vitreous.explain.explanation import Explainer, Explanation
from vitreous.explain.request import ExplanationRequest, Head, Layer, Method
from vitreous.server.choosing import ModelName, choose_model
from vitreous.server.described import REFUSALS, image_body
from vitreous.server.images import NoParameters, read_image
from vitreous.server.refusal import RefusedError, check_query
from vitreous.server.served import Served, check_extent

LONGEST_SIDE = 2048
"""Pixels of an overlay: a larger image is drawn smaller."""


class Explained(BaseModel):
    """What a model saw in an image."""

    model: str
    method: Method
    label: str | None = Field(description="The class that was explained, or the likeliest; null without a classifier.")
    score: float | None = Field(description="How likely the model holds that class.")
    layers: list[int] = Field(description="The layers of `maps`; empty where a map belongs to no single one.")
    heads: list[int] = Field(description="The heads of `maps`; empty where it joins them.")
    height: int = Field(description="Of the image, in pixels.")
    width: int
    box: list[float] = Field(description="Left, top, right and bottom of what the model saw of it.")
    maps: list[list[list[list[float]]]] = Field(description="(layers or 1, heads or 1, rows, columns) of patches.")


class Embedded(BaseModel):
    """What a model makes of an image, before any classifier."""

    model: str
    embedding: list[float]


def explain_router(models: Mapping[str, Served], settings: ServerSettings) -> APIRouter:
    """`/explain` and `/embed`."""
    router = APIRouter(tags=["images"], responses=REFUSALS, dependencies=[Depends(check_query)])

    @router.post("/explain", openapi_extra=image_body(NoParameters), response_model=Explained, responses=_OVERLAY)
    async def explain(
        request: Request,
        model: ModelName = None,
        method: Annotated[Method | None, Query(description="Default: the one that suits the model.")] = None,
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
        served = choose_model(models, model)
        if (bundle := served.bundle) is None:
            raise RefusedError(400, f"{served.name} is an exported model, which cannot be looked into.")
        if (x is None) != (y is None):
            raise RefusedError(400, "x and y: give both, in pixels of the image, or none.")
        query = None if x is None or y is None else (x, y)
        served.check_looks()
        image, _ = await read_image(request, settings, NoParameters)

        def ask() -> Explanation:
            """With the look for what suits the model, which may take a pass through it, and for names alike."""
            asked = ExplanationRequest(method=method, layer=_layer(layer), head=_head(head), target=target, query=query)
            explainer = Explainer(bundle, asked)
            check_extent(image, settings)
            return explainer.explain(image)

        return await served.look(lambda: _answer(served.name, ask, format))

    @router.post("/embed", openapi_extra=image_body(NoParameters))
    async def embed(request: Request, model: ModelName = None) -> Embedded:
        """The numbers that stand for an image: near ones for images that are alike to the model."""
        served = choose_model(models, model)
        with served.places.arriving():
            image, _ = await read_image(request, settings, NoParameters)
        return Embedded(model=served.name, embedding=(await served.representations([image]))[0].tolist())

    return router


_LAYER, _HEAD = r"^(-?\d{1,4}|all)$", r"^(-?\d{1,4}|mean|all)$"
_OVERLAY: dict[int | str, dict[str, object]] = {
    200: {"description": "The overlay, or its numbers.", "content": {"image/png": {}}}
}


def _layer(text: str | None) -> Layer | None:
    return None if text is None else "all" if text == "all" else int(text)


def _head(text: str) -> Head:
    return "mean" if text == "mean" else "all" if text == "all" else int(text)


def _answer(name: str, ask: Callable[[], Explanation], format: Literal["png", "json"]) -> Response:
    """What a question to the model of this name finds, as it is sent."""
    try:
        explanation = ask()
    except ImageError as error:
        raise RefusedError(422, error.reason) from None
    except DamagedModelError:
        raise
    except UserError as error:  # a method that the model has not, a place outside of the image
        raise RefusedError(400, str(error)) from None
    if format == "json":
        return Response(_numbers(name, explanation).model_dump_json(), media_type="application/json")
    several = explanation.maps.shape[0] * explanation.maps.shape[1] > 1
    drawn = explanation.grid() if several else explanation.overlay(LONGEST_SIDE)
    return Response(encode(drawn), media_type="image/png")


def _numbers(name: str, explanation: Explanation) -> Explained:
    return Explained(
        model=name,
        method=explanation.method,
        label=explanation.label,
        score=explanation.score,
        layers=list(explanation.layers),
        heads=list(explanation.heads),
        height=explanation.image.height,
        width=explanation.image.width,
        box=list(explanation.place.box),
        maps=explanation.maps.tolist(),
    )
