"""Images to try a model on, for whoever has none at hand."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from vitreous.data.builtin import builtin_data

PHOTOGRAPH = "grace_hopper.jpg"
"""A photograph in the public domain that most installations of Matplotlib bring along."""


@cache
def sample_images() -> Mapping[str, bytes]:
    """Files by name: one image of each class that comes with the package, and a photograph where there is one."""
    images = {}
    if (photograph := _photograph()) is not None:
        images["Grace Hopper"] = photograph
    source = builtin_data().splits["test"]
    for label, name in enumerate(source.classes):
        file = io.BytesIO()
        source.read(int((source.labels == label).nonzero()[0][0]), channels=1).save(file, "PNG")
        images[name] = file.getvalue()
    return images


def _photograph() -> bytes | None:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "sample_data" / PHOTOGRAPH
    try:
        return path.read_bytes()
    except OSError:
        return None  # some distributions leave it out
