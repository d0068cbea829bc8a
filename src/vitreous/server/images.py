"""One image of a request: its own bytes, or base64 in JSON."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from vitreous.config.server import ServerSettings
from vitreous.server.bodies import LARGE, decode_base64, is_json, parse_fields, read_body

Parameters = TypeVar("Parameters", bound=BaseModel)

FEW_ITEMS = 1000
"""Most items of JSON in which an image is one of them."""


class ImageFields(BaseModel, Generic[Parameters]):
    """An image in JSON, in Hugging Face's form. What is not known is refused: nobody should take it for heeded."""

    model_config = ConfigDict(extra="forbid")
    inputs: str = Field(description="The bytes of the image's file, in base64.")
    parameters: Parameters | None = None


class NoParameters(BaseModel):
    """Of a question that has none."""

    model_config = ConfigDict(extra="forbid")


async def read_image(
    request: Request, settings: ServerSettings, parameters: type[Parameters]
) -> tuple[bytes, Parameters]:
    """The bytes of the image's file, and the parameters beside it."""
    as_json = is_json(request)
    body = await read_body(request, settings)
    if not as_json:
        return body, parameters()
    fields = await parse_fields(body, ImageFields[parameters], FEW_ITEMS)  # type: ignore[valid-type]
    if len(fields.inputs) < LARGE:
        image = decode_base64(fields.inputs, "inputs")
    else:
        image = await asyncio.to_thread(decode_base64, fields.inputs, "inputs")
    return image, fields.parameters or parameters()
