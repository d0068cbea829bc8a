"""`/docs`: the OpenAPI document as a plain page, which needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Response

from vitreous.server.described import REFUSAL_SENTENCES

METHODS = ("get", "post", "put", "delete", "patch")
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark }
h2 { font-size: 1.1rem; margin-top: 2.5rem } code { font: 0.95em ui-monospace, monospace }
th { text-align: left; font-weight: normal; vertical-align: top; padding-right: 1rem; white-space: nowrap }
"""


def documentation_router(app: FastAPI) -> APIRouter:
    """The page, and its style."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def page() -> Response:
        return Response("\n".join(_page(app.openapi())), media_type="text/html")

    @router.get("/docs.css")
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    return router


def _page(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="docs.css"></head><body>'
    yield f"<h1>{title}</h1><p>{escape(info.get('description', ''))}</p>"
    yield '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>'
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                yield from _operation(method, path, operations[method])
    yield "<h2>Where it refuses</h2><table>"
    for status, sentence in REFUSAL_SENTENCES.items():
        yield f"<tr><th>{status}<td>{escape(sentence)}</tr>"
    yield "</table></body></html>"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    yield f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p><table>"
    for parameter in operation.get("parameters", ()):
        name, about = escape(parameter["name"]), escape(parameter.get("description", ""))
        yield f"<tr><th><code>{name}</code><td>{about} {_choices(parameter['schema'])}</tr>"
    if body := operation.get("requestBody"):
        kinds = ", ".join(f"<code>{escape(kind)}</code>" for kind in body["content"])
        yield f"<tr><th>body<td>{escape(body.get('description', ''))} {kinds}</tr>"
    answers = ", ".join(f"<code>{escape(kind)}</code>" for kind in operation["responses"]["200"].get("content", ()))
    yield f"<tr><th>answer<td>{answers}</tr></table>"


def _choices(schema: dict[str, Any]) -> str:
    """The values that a parameter may have, where they are few."""
    for one in (schema, *schema.get("anyOf", ())):
        if "enum" in one:
            return ", ".join(f"<code>{escape(str(value))}</code>" for value in one["enum"])
    return ""
