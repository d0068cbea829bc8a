"""Pages from the templates of this package: whatever is not marked as HTML already is escaped and made visible, so that
no class name can break a page."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from inspect import isfunction
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from vitreous import __version__
from vitreous.report import numbers
from vitreous.report.plots import line_colour, shortened
from vitreous.storage.overwrite import GENERATOR
from vitreous.weights.markdown import visible

Html = Markup
"""Text that is HTML already."""


def render(template: str, **content: Any) -> str:
    """The page that the template makes of the content."""
    return _environment().get_template(template).render(content)


def macros(template: str) -> Any:
    """A template's macros, as methods that return HTML."""
    return _environment().get_template(template).module


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("vitreous.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.globals |= {"generator": GENERATOR, "version": __version__, "bar_height": numbers.BAR_HEIGHT}
    made.filters |= {one.__name__: one for one in (data_uri, line_colour, shortened)}
    made.filters |= {name: one for name, one in vars(numbers).items() if isfunction(one)}
    made.filters |= {
        "anchor": lambda title: title.lower().replace(" ", "-"),
        "file_name": lambda path: PurePath(path).name,
        "python": repr,
        "quoted": shlex.quote,
    }
    return made


def _shown(value: Any) -> Any:
    """What a template shows of a value: of text also what cannot be seen, such as stray bytes in a file's name."""
    return value if hasattr(value, "__html__") else visible(str(value), allowed="\n\t")


def text(content: str) -> Html:
    """Any text, to be shown as it is; what cannot be seen is written out."""
    return escape(_shown(content))


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
    return render("written.html", title=title, body=join(body))
