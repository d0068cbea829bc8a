"""The application: models in, routes out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from vitreous import __version__
from vitreous.config.server import ServerSettings
from vitreous.server.described import schemas_of
from vitreous.server.documentation import documentation_router
from vitreous.server.explaining import explain_router
from vitreous.server.guard import Guard, Policy
from vitreous.server.inference_protocol import protocol_router
from vitreous.server.metrics import ServerMetrics
from vitreous.server.page.routes import page_router
from vitreous.server.predicting import predict_router
from vitreous.server.refusal import RefusedError, refuse
from vitreous.server.served import ModelToServe, Served
from vitreous.server.tensors import InferRequest

ABOUT = (
    "Answers for models of images: their classes, what they looked at, and the numbers that stand for an image. "
    "Every refusal is JSON with one sentence, error."
)


def make_app(models: Sequence[ModelToServe], settings: ServerSettings) -> FastAPI:
    """An application that answers for these models, of different names; the first where a request names none.

    Each has answered once when this returns, so that a model that cannot is found before anybody asks.
    """
    metrics = ServerMetrics()
    served = {model.name: Served(model, settings, metrics) for model in models}
    for model in served.values():
        model.warm_up()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Images are decoded in these threads: more would need more memory, and gain nothing.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(os.cpu_count(), "decode"))
        yield
        for model in served.values():
            model.close()

    app = _App(
        title="vitreous",
        description=ABOUT,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to an address that a proxy's client may not know
        lifespan=lifespan,
    )
    policy = Policy(settings, lambda: _check_places(served.values()))
    app.state.metrics, app.state.models, app.state.policy = metrics, served, policy
    app.add_middleware(Guard, settings=settings, metrics=metrics, policy=policy)
    for error in (RefusedError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, refuse)
    app.include_router(predict_router(served, settings))
    app.include_router(explain_router(served, settings))
    app.include_router(protocol_router(served, settings))
    app.include_router(_metrics_router(metrics))
    app.include_router(documentation_router(app))
    app.include_router(page_router(served))
    return app


class _App(FastAPI):
    """FastAPI's, whose document also has the schemas of bodies that it does not read itself."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        document = super().openapi()
        document["components"]["schemas"].update(schemas_of(InferRequest))
        return document


def _check_places(models: Iterable[Served]) -> None:
    """Refuse where no model has a place for another image."""
    refused: RefusedError | None = None
    for model in models:
        try:
            return model.places.check_before_reading()
        except RefusedError as error:
            refused = error
    assert refused is not None
    raise refused


def _metrics_router(metrics: ServerMetrics) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def show() -> Response:
        """What the server counts, for Prometheus."""
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
