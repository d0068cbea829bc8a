"""`POST /predict`: the classes of an image, in Hugging Face's form for image classification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import torch
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from vitreous.config.server import ServerSettings
from vitreous.model.predictions import class_probabilities, ranked_classes
from vitreous.server.choosing import ModelName, choose_model
from vitreous.server.described import REFUSALS, image_body
from vitreous.server.images import read_image
from vitreous.server.refusal import check_query
from vitreous.server.served import Served

Function = Literal["softmax", "sigmoid", "none"]
FUNCTIONS: dict[Function, Callable[[Tensor], Tensor]] = {
    "softmax": class_probabilities,
    "sigmoid": torch.sigmoid,
    "none": lambda scores: scores,
}
DEFAULT_TOP = 5


class Parameters(BaseModel):
    """How the classes of an image are given."""

    model_config = ConfigDict(extra="forbid")
    top_k: int | None = Field(None, ge=1, description="How many classes; 5 by default.")
    function_to_apply: Function | None = Field(None, description="What makes scores of the network's; softmax.")


class ClassScore(BaseModel):
    """A class, and how likely the model holds it."""

    label: str
    score: float


def predict_router(models: Mapping[str, Served], settings: ServerSettings) -> APIRouter:
    """`/predict`; and `/`, for clients that are given the server's address alone."""
    router = APIRouter(tags=["images"], dependencies=[Depends(check_query)])

    async def predict(
        request: Request,
        model: ModelName = None,
        top_k: Annotated[int | None, Query(ge=1, description="How many classes; 5 by default.")] = None,
    ) -> JSONResponse:
        """The likeliest classes of an image, best first."""
        served = choose_model(models, model)
        served.check_classifier()
        with served.places.arriving():
            image, parameters = await read_image(request, settings, Parameters)
        scores = (await served.scores([image]))[0]
        chances = FUNCTIONS[parameters.function_to_apply or "softmax"](scores)
        return JSONResponse(best_classes(chances, served.labels, top_k or parameters.top_k or DEFAULT_TOP))

    router.post("/predict", response_model=list[ClassScore], openapi_extra=image_body(Parameters), responses=REFUSALS)(
        predict
    )
    router.post("/", include_in_schema=False)(predict)
    return router


def best_classes(chances: Tensor, labels: tuple[str, ...], count: int) -> list[dict[str, str | float]]:
    """The classes with the highest numbers of chances (K,), best first, each as a `ClassScore`."""
    return [{"label": labels[number], "score": score} for number, score in ranked_classes(chances, count)]
