"""The page's own files, as a browser is given them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources

from fastapi import Request, Response

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True)
class PageFile:
    """One file of the page."""

    content: bytes
    kind: str
    tag: str
    """Changes with the content, so that a browser that has it need not be sent it again."""

    def response(self, request: Request) -> Response:
        """The file, or that it has not changed."""
        headers = {"ETag": self.tag, "Cache-Control": "no-cache"}  # kept, but asked for each time: versions change
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=f"{self.kind}; charset=utf-8", headers=headers)


@cache
def page_files() -> Mapping[str, PageFile]:
    """All of them, by name."""
    files = {}
    for entry in resources.files("vitreous.server.page").joinpath("static").iterdir():
        ending = entry.name.rpartition(".")[2]
        if ending in KINDS:
            content = entry.read_bytes()
            files[entry.name] = PageFile(content, KINDS[ending], f'"{sha256(content).hexdigest()[:32]}"')
    return files
