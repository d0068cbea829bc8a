"""What a page shows of token labels: the colour of each place is that of its class in the legend."""

import base64
import io
import re

import numpy as np
from PIL import Image

from vitreous.report.html import macros
from vitreous.report.page import COLOURS, OTHER, TokenLabelImage, label_maps


def shown(labels, shares):
    return TokenLabelImage("cats/1.png", "cat", Image.new("RGB", (30, 20), "white"), labels, shares)


def token_labels(teacher, taught):
    return macros("token_labels.html").token_labels(teacher, label_maps(taught))


def veils(html):
    """The images that lie over others, as pixels (h, w, 4)."""
    found = re.findall(r'href="data:image/png;base64,([^"]+)"[^>]*class="cells"', html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one))).convert("RGBA")) for one in found]


def rgb(colour):
    return list(bytes.fromhex(colour[1:]))


def test_every_place_has_the_colour_of_its_class_and_is_as_strong_as_it_is_sure():
    labels, shares = [["cat", "cat", "grass"], ["cat", "dog", "cat"]], [[1.0, 0.5, 0.2], [0.9, 0.0, 0.7]]
    html = token_labels("a teacher", [shown(labels, shares)])
    (veil,) = veils(html)
    assert veil.shape == (2, 3, 4)
    legend = dict(re.findall(r'fill="(#[0-9a-f]{6})".*?</svg> (\w+),', html))
    colour = {name: rgb(value) for value, name in legend.items()}
    assert set(colour) == {"cat", "dog", "grass"}
    assert [[list(pixel[:3]) for pixel in row] for row in veil.tolist()] == [
        [colour[name] for name in row] for row in labels
    ]
    assert veil[0, 0, 3] > veil[0, 1, 3] > veil[0, 2, 3] > veil[1, 1, 3] > 0
    assert re.search(r"cat\D+67%", html)
    assert "a teacher" in html
    assert "1.png" in html


def test_of_many_classes_the_rarest_are_others():
    names = [f"class {i:02}" for i in range(14)]
    labels = [names, names[:12] + names[:2]]
    html = token_labels("a teacher", [shown(labels, [[0.5] * 14] * 2)])
    assert html.count(f'fill="{OTHER}"') == 1
    assert re.search(r" 4 \D+21%", html)
    assert sum(html.count(f'fill="{colour}"') for colour in COLOURS) == 10
    (veil,) = veils(html)
    assert veil[0, 13, :3].tolist() == rgb(OTHER)


def test_nothing_without_images():
    assert label_maps([]) is None
