"""What a teacher taught: some training images, and over each what it says of every place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np
from PIL import Image

from vitreous.report.content import TaughtImage
from vitreous.report.html import Html, data_uri, tag

COLOURS = ("#e8590c", "#1971c2", "#2f9e44", "#c2255c", "#f2c200", "#7048e8", "#0c8599", "#8a5a2b", "#74b816", "#e599f7")
OTHER = "#868e96"
"""Of classes beyond the most frequent ones."""
FAINTEST, STRONGEST = 40, 215
"""Of 255: how much of the image a label hides that has no probability, and one that is certain."""
SIDE = 224


def token_labels(teacher: str, images: Sequence[TaughtImage]) -> list[Html]:
    """A paragraph, the images with their labels, and which colour is which class."""
    if not images:
        return []
    counts = Counter(name for shown in images for row in shown.labels for name in row)
    colours = {name: COLOURS[i] if i < len(COLOURS) else OTHER for i, (name, _) in enumerate(counts.most_common())}
    said = (
        f"What {teacher} says of the places of some training images: each place in the colour of its likeliest "
        "class, the stronger the surer. Labels follow an image when it is cut, mirrored and mixed."
    )
    return [
        tag("p", said, class_="quiet"),
        tag("div", *(_labelled(shown, colours) for shown in images), class_="examples"),
        _legend(colours, counts),
    ]


def _labelled(shown: TaughtImage, colours: Mapping[str, str]) -> Html:
    """The image beside itself under its labels."""
    small = shown.image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    width, height = map(str, small.size)
    size, address = {"width": width, "height": height}, data_uri(small)
    veil = tag("image", href=data_uri(_veil(shown, colours)), **size, preserveAspectRatio="none", class_="cells")
    view = {"viewBox": f"0 0 {width} {height}", "class_": "map"}
    plain = tag("svg", tag("image", href=address, **size), **view)
    covered = tag("svg", tag("image", href=address, **size), veil, **view)
    caption = tag("figcaption", shown.label, tag("span", PurePath(shown.name).name, class_="file"))
    return tag("figure", tag("div", plain, covered, class_="two"), caption, class_="taught")


def _veil(shown: TaughtImage, colours: Mapping[str, str]) -> Image.Image:
    """(h, w) RGBA: a colour for each place."""
    pixels = [[tuple(bytes.fromhex(colours[name][1:])) for name in row] for row in shown.labels]
    strength = FAINTEST + (STRONGEST - FAINTEST) * np.clip(np.array(shown.shares), 0, 1)
    return Image.fromarray(np.dstack([np.array(pixels), np.rint(strength)]).astype(np.uint8), "RGBA")


def _legend(colours: Mapping[str, str], counts: Mapping[str, int]) -> Html:
    total = sum(counts.values())
    named = [name for name, colour in colours.items() if colour != OTHER]
    rows = [_entry(colours[name], name, counts[name] / total) for name in named]
    if rest := total - sum(counts[name] for name in named):
        rows.append(_entry(OTHER, f"{len(colours) - len(named)} others", rest / total))
    return tag("ul", *rows, class_="legend")


def _entry(colour: str, name: str, share: float) -> Html:
    swatch = tag("svg", tag("rect", width="12", height="12", fill=colour), width="12", height="12", aria_hidden="true")
    return tag("li", swatch, f" {name}, {share:.0%} of these places")
