"""Errors as responses: a status and one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from vitreous.arguments import shown
from vitreous.inputs import format_bytes


class ErrorBody(BaseModel):
    """What was wrong, and what to do, in one sentence."""

    error: str


STATUS_SENTENCES = {
    400: "The request makes no sense.",
    401: "The token is missing or wrong.",
    403: "A page of another server sent this.",
    404: "There is no such path or model.",
    408: "The body came too slowly.",
    413: "The request is too large.",
    415: "The body is compressed.",
    421: "The server does not answer to this name.",
    422: "The image cannot be read.",
    503: "Too much is waiting; Retry-After says when to try again.",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": sentence} for status, sentence in STATUS_SENTENCES.items()
}


class ApiError(Exception):
    """A refusal with an HTTP status. The sentence says what is wrong, and what to do."""

    def __init__(
        self, status: int, sentence: str, *, retry_after: float | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """retry_after: seconds after which it is worth trying again."""
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.sentence}, self.status, self.headers)

    def as_http(self, more: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The response as bytes, with more headers."""
        body = json.dumps({"error": self.sentence}).encode()
        own = {**self.headers, "content-type": "application/json", "content-length": str(len(body))}
        lines = [b"%s: %s\r\n" % pair for pair in more]
        lines += [f"{name.lower()}: {value}\r\n".encode("latin-1") for name, value in own.items()]
        start = f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n".encode()
        return b"".join((start, *lines, b"\r\n", body))


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"the request has more than {format_bytes(limit)}, the limit; send a smaller image.")


def too_many_images(limit: int) -> ApiError:
    return ApiError(413, f"at most {limit} images are taken at once; send them in several requests.")


def timeout_error() -> ApiError:
    return ApiError(503, "there was no time for it soon enough; try again later.", retry_after=1)


def validation_error(error: ValidationError | RequestValidationError) -> ApiError:
    """The error for the first invalid field of a request."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))
    if first["type"] == "extra_forbidden":
        return _unknown_parameter(place)
    complaint = str(first["msg"])
    return ApiError(400, f"{place or 'the request'}: {complaint[:1].lower()}{complaint[1:]}.")


def _unknown_parameter(name: str) -> ApiError:
    return ApiError(400, f"{shown(name)}: there is no parameter of this name here; /docs lists those there are.")


async def check_query(request: Request) -> None:
    """A dependency of routes: refuse unknown query parameters."""
    route = request.scope["route"].dependant
    known = {parameter.alias for part in (route, *route.dependencies) for parameter in part.query_params}
    for name in request.query_params:
        if name not in known:
            raise _unknown_parameter(name)


async def handle_error(request: Request, error: Exception) -> JSONResponse:
    """The response to our own errors and the framework's."""
    match error:
        case ApiError():
            return error.response()
        case RequestValidationError():
            return validation_error(error).response()
        case HTTPException(status_code=404):
            sentence = "there is nothing at this path; /docs lists what there is."
        case HTTPException(status_code=405):
            sentence = f"this path does not take {request.method}; /docs says what it takes."
        case _:
            sentence = f"{getattr(error, 'detail', error)}."
    status = error.status_code if isinstance(error, HTTPException) else 500
    return ApiError(status, sentence, headers=getattr(error, "headers", None)).response()
