"""What the OpenAPI document says of bodies and refusals that many routes share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Refused(BaseModel):
    """What was wrong, and what to do, in one sentence."""

    error: str


REFUSAL_SENTENCES = {
    400: "The request makes no sense.",
    401: "The token is missing or wrong.",
    403: "A page of another server sent this.",
    404: "There is no such path or model.",
    408: "The body came too slowly.",
    413: "The request is too large.",
    415: "The body is a form, or compressed.",
    421: "The server does not answer to this name.",
    422: "The image cannot be read.",
    503: "Too much is waiting; Retry-After says when to try again.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refused, "description": sentence} for status, sentence in REFUSAL_SENTENCES.items()
}


def image_body(parameters: type[BaseModel]) -> dict[str, Any]:
    """The body of a question about one image, with these parameters beside it in JSON."""
    fields = {
        "type": "object",
        "required": ["inputs"],
        "additionalProperties": False,
        "properties": {
            "inputs": {"type": "string", "description": "The bytes of the image's file, in base64."},
            "parameters": parameters.model_json_schema(),
        },
    }
    about = "An image: the bytes of its file (JPEG, PNG, WEBP, GIF, BMP, TIFF or PPM), or base64 in JSON."
    return _body(about, {"application/octet-stream": _BYTES, "application/json": fields})


def infer_body(request: type[BaseModel]) -> dict[str, Any]:
    """The body of a request of the Open Inference Protocol; `schemas_of` has what it refers to."""
    about = f"The request in JSON; or JSON and after it the bytes of its tensor, with {JSON_LENGTH} to tell them apart."
    reference = {"$ref": f"#/components/schemas/{request.__name__}"}
    length = {
        "name": JSON_LENGTH,
        "in": "header",
        "required": False,
        "description": "How many bytes of the body are JSON, where the bytes of a tensor follow it.",
        "schema": {"type": "integer", "minimum": 0},
    }
    return {
        **_body(about, {"application/json": reference, "application/octet-stream": _BYTES}),
        "parameters": [length],
    }


def schemas_of(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema and those that it refers to, by name, as a document has them among its components."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), model.__name__: schema}


def _body(about: str, schemas: dict[str, Any]) -> dict[str, Any]:
    content = {kind: {"schema": schema} for kind, schema in schemas.items()}
    return {"requestBody": {"required": True, "description": about, "content": content}}


_BYTES = {"type": "string", "format": "binary"}
JSON_LENGTH = "Inference-Header-Content-Length"
"""The header that says how much of a body is JSON, where bytes follow it."""
