"""HTML as text: whatever is not marked as HTML already is escaped, so that no class name can break a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from PIL import Image

from vitreous.storage.overwrite import GENERATOR
from vitreous.weights.markdown import visible

STYLE = "page.css"


class Html(str):
    """Text that is HTML already."""


def text(content: str) -> Html:
    """Any text, to be shown as it is; what cannot be seen, such as stray bytes in a file's name, is written out."""
    return content if isinstance(content, Html) else Html(escape(visible(content, keep="\n\t")))


def join(parts: Iterable[str]) -> Html:
    """Parts one after another."""
    return Html("".join(text(part) for part in parts))


def tag(name: str, *content: str, **attributes: str) -> Html:
    """An element. Attributes are written with a trailing underscore where Python needs it: class_="quiet"."""
    written = "".join(f' {key.strip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{written}>{join(content)}</{name}>")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> Html:
    """A table; the last so many columns hold numbers, which stand to the right."""

    def line(kind: str, cells: Sequence[str]) -> Html:
        first = len(cells) - numbers
        return tag("tr", *(tag(kind, cell, class_="number" if i >= first else "text") for i, cell in enumerate(cells)))

    return tag("table", tag("thead", line("th", head)), tag("tbody", *(line("td", row) for row in rows)))


def facts(rows: dict[str, str]) -> Html:
    """Names and what belongs to them."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows.items()))


def image(shown: Image.Image, alt: str, side: int | None = None, class_: str = "image") -> Html:
    """An image within the page itself, its longer side at most `side` pixels."""
    width, height = map(str, shown.size)
    made = tag("img", src=data_uri(shown, side), alt=alt, width=width, height=height, class_=class_)
    return Html(made.removesuffix("</img>"))


def data_uri(image: Image.Image, side: int | None = None) -> Html:
    """An image as an address that holds it: JPEG, or PNG where that is smaller or has transparency."""
    if side is not None and max(image.size) > side:
        image = image.copy()
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
    kinds = ["png"] if image.mode == "RGBA" else ["jpeg", "png"]
    made = {}
    for kind in kinds:
        buffer = io.BytesIO()
        image.save(buffer, kind, **({"quality": 80} if kind == "jpeg" else {"optimize": True}))
        made[kind] = buffer.getvalue()
    best = min(made, key=lambda kind: len(made[kind]))
    return Html(f"data:image/{best};base64,{base64.b64encode(made[best]).decode()}")


def document(title: str, body: Iterable[str]) -> str:
    """A whole page, which needs nothing but itself."""
    style = resources.files("vitreous.report").joinpath(STYLE).read_text(encoding="utf-8")
    head = join(
        [
            Html(f'<meta charset="utf-8"><meta name="generator" content="{GENERATOR}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'),
            tag("title", title),
            Html(f"<style>{style}</style>"),
        ]
    )
    return f'<!doctype html>\n<html lang="en">\n{tag("head", head)}\n{tag("body", tag("main", *body))}\n</html>\n'
