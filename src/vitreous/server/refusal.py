"""What a server answers where it cannot do what it was asked: a status and one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from vitreous.wording import shown


class RefusedError(Exception):
    """An answer that is no success. The sentence says what, and what to do."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """retry_after: seconds after which it is worth trying again."""
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def response(self) -> JSONResponse:
        """{"error": sentence}, as clients of both protocols read it."""
        return JSONResponse({"error": self.sentence}, self.status, self.headers)

    def as_http(self, more: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The same as a connection sends it, with more headers."""
        body = json.dumps({"error": self.sentence}).encode()
        own = {**self.headers, "content-type": "application/json", "content-length": str(len(body))}
        lines = [b"%s: %s\r\n" % pair for pair in more]
        lines += [f"{name.lower()}: {value}\r\n".encode("latin-1") for name, value in own.items()]
        start = f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n".encode()
        return b"".join((start, *lines, b"\r\n", body))


def too_many(most: int) -> RefusedError:
    """What is said of a request with more images than are ever taken at once."""
    return RefusedError(413, f"at most {most} images are taken at once; send them in several requests.")


def too_late() -> RefusedError:
    """What is said of an image that waited until nobody wants to know any more."""
    return RefusedError(503, "there was no time for it soon enough; try again later.", retry_after=1)


def not_valid(error: ValidationError | RequestValidationError) -> RefusedError:
    """The first thing that is wrong with the fields of a request."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))
    if first["type"] == "extra_forbidden":
        return _no_parameter(place)
    complaint = str(first["msg"])
    return RefusedError(400, f"{place or 'the request'}: {complaint[:1].lower()}{complaint[1:]}.")


def _no_parameter(name: str) -> RefusedError:
    return RefusedError(400, f"{shown(name)}: there is no parameter of this name here; /docs lists those there are.")


async def check_query(request: Request) -> None:
    """For routes to depend on: refuse a parameter of the address that the route does not know and would not heed."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise _no_parameter(name)


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """The answer to an error that says itself what it is: ours, or one of the framework's own."""
    match error:
        case RefusedError():
            return error.response()
        case RequestValidationError():
            return not_valid(error).response()
        case HTTPException(status_code=404):
            sentence = "there is nothing at this path; /docs lists what there is."
        case HTTPException(status_code=405):
            sentence = f"this path does not take {request.method}; /docs says what it takes."
        case _:
            sentence = f"{getattr(error, 'detail', error)}."
    status = error.status_code if isinstance(error, HTTPException) else 500
    return RefusedError(status, sentence, headers=getattr(error, "headers", None)).response()
