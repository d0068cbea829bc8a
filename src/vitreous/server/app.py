"""The application: models in, routes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from vitreous import __version__
from vitreous.config.server import ServerSettings
from vitreous.server import inference_protocol, routes
from vitreous.server.errors import ApiError, handle_error
from vitreous.server.guard import Guard, Policy
from vitreous.server.metrics import ServerMetrics
from vitreous.server.page.routes import router as page_router
from vitreous.server.served_model import LoadedModels, ModelToServe
from vitreous.threads import usable_cores

DESCRIPTION = (
    "Answers for models of images: their classes, what they looked at, and the numbers that stand for an image. "
    "Every refusal is JSON with one sentence, error."
)


def make_app(opened: Sequence[ModelToServe], settings: ServerSettings) -> FastAPI:
    """The application for these models; with none, it answers 503 until its `state.models` have loaded some."""
    metrics = ServerMetrics()
    models = LoadedModels(settings, metrics)
    models.load(opened)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # These threads decode images: more would need more memory without being faster.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(usable_cores(), "decode"))
        yield
        models.close()

    app = _App(
        title="vitreous",
        description=DESCRIPTION,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy the redirect's address may be wrong
        lifespan=lifespan,
    )
    policy = Policy(settings, models.reserve)
    app.state.metrics, app.state.models, app.state.policy = metrics, models, policy
    app.state.samples = settings.samples
    app.state.page_lock, app.state.page_start = asyncio.Lock(), None
    app.add_middleware(Guard, settings=settings, metrics=metrics, policy=policy)
    for error in (ApiError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, handle_error)
    app.include_router(routes.router)
    app.include_router(inference_protocol.router)
    app.include_router(page_router)
    return app


class _App(FastAPI):
    """FastAPI with the schemas of bodies that it does not parse itself in its OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["schemas"].update(inference_protocol.infer_schemas())
        return document
