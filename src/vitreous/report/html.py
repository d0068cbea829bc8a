"""Pages from the templates of this package: whatever is not marked as HTML already is escaped and made visible, so that
no class name can break a page."""

from __future__ import annotations

import base64
import io
import shlex
from functools import cache
from inspect import isfunction
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from vitreous import __version__
from vitreous.explain.overlay import COLOURS, SCALE
from vitreous.glossary import GLOSSARY
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
    made.globals |= {"term": mark_term, "map_colours": Image.fromarray(COLOURS[None]), "map_scale": SCALE}
    made.filters |= {one.__name__: one for one in (data_uri, line_colour, shortened)}
    made.filters |= {name: one for name, one in vars(numbers).items() if isfunction(one)}
    made.filters |= {
        "anchor": lambda title: title.lower().replace(" ", "-"),
        "file_name": lambda path: PurePath(path).name,
        "python": repr,
        "quoted": shlex.quote,
    }
    return made


def mark_term(term: str, shown: str | None = None) -> Html:
    """A word of the glossary, where a page uses it first, with its meaning for whoever points at it.

    shown: how the page says it, if not as the glossary does.
    """
    return Html('<abbr title="{}">{}</abbr>').format(GLOSSARY[term], shown or term)


def _shown(value: Any) -> Any:
    """What a template shows of a value: of text also what cannot be seen, such as stray bytes in a file's name."""
    return value if hasattr(value, "__html__") else visible(str(value), allowed="\n\t")


def data_uri(image: Image.Image, side: int | None = None) -> str:
    """An image as an address that holds it, its longer side at most `side` pixels.

    JPEG, or PNG where that is smaller or has transparency.
    """
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
    return f"data:image/{best};base64,{base64.b64encode(made[best]).decode()}"
