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
from vitreous.server.batching import usable_cores
from vitreous.server.errors import ApiError, handle_error
from vitreous.server.guard import Guard, Policy
from vitreous.server.metrics import ServerMetrics
from vitreous.server.page.routes import router as page_router
from vitreous.server.served_model import ModelToServe, ServedModel

DESCRIPTION = (
    "Answers for models of images: their classes, what they looked at, and the numbers that stand for an image. "
    "Every refusal is JSON with one sentence, error."
)


def make_app(models: Sequence[ModelToServe], settings: ServerSettings) -> FastAPI:
    """An application that answers for these models, of different names; the first where a request names none.

    Each has answered once when this returns, so that a model that cannot is found before anybody asks.
    """
    metrics = ServerMetrics()
    served = {model.name: ServedModel(model, settings, metrics) for model in models}
    for model in served.values():
        model.warm_up()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Images are decoded in these threads: more would need more memory, and gain nothing.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(usable_cores(), "decode"))
        yield
        for model in served.values():
            model.close()

    def check_queues() -> None:
        """Refuse where no model has a place for another image."""
        refused: ApiError | None = None
        for model in served.values():
            try:
                return model.queue.check_before_reading()
            except ApiError as error:
                refused = error
        assert refused is not None
        raise refused

    app = _App(
        title="vitreous",
        description=DESCRIPTION,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to an address that a proxy's client may not know
        lifespan=lifespan,
    )
    policy = Policy(settings, check_queues)
    app.state.metrics, app.state.models, app.state.policy = metrics, served, policy
    app.state.page_lock, app.state.page_start = asyncio.Lock(), None
    app.add_middleware(Guard, settings=settings, metrics=metrics, policy=policy)
    for error in (ApiError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, handle_error)
    app.include_router(routes.router)
    app.include_router(inference_protocol.router)
    app.include_router(page_router)
    return app


class _App(FastAPI):
    """FastAPI's, whose document also has the schemas of bodies that it does not read itself."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["schemas"].update(inference_protocol.infer_schemas())
        return document
