"""The names of classes: from a file, and ImageNet's, which come with the package.

imagenet.txt.xz     one name per line, in the order of ILSVRC 2012's 1,000 classes: the first name of each WordNet
                    synset, as in the challenge's public list, but two cranes and two maillots are told apart
"""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous.errors import UserError
from vitreous.inputs import parse_json, read_text

IMAGENET = 1000
"""A classifier of so many outputs is ImageNet's, unless somebody says otherwise."""


def imagenet_names() -> tuple[str, ...]:
    """(1000,) "tench", "goldfish", ..."""
    text = lzma.decompress(Path(__file__).with_name("imagenet.txt.xz").read_bytes()).decode()
    return tuple(text.splitlines())


def repeated_names(names: Sequence[str]) -> str | None:
    """What is said of names that several classes have; None if there are none."""
    several = [name for name, count in Counter(names).items() if count > 1]
    if not several:
        return None
    some = ", ".join(several[:3]) + (", ..." if len(several) > 3 else "")
    return f"{len(several)} name{'s' * (len(several) > 1)} of more than one class ({some}); answers do not tell which"


def read_labels(path: str | Path) -> tuple[str, ...]:
    """One name per class, in the classifier's order.

    A text file with one name per line; or JSON: a list of names, a list of pairs [id, name], or an object from
    number to name.
    """
    path = Path(path)
    text = read_text(path)
    if path.suffix != ".json" and not text.lstrip().startswith(("[", "{")):
        return _checked(path, [line.strip() for line in text.strip().splitlines()])
    found = parse_json(text, path)
    try:
        names = _from_json(found)
    except (ValueError, TypeError, KeyError, IndexError):
        raise UserError(
            f"{path}: not a list of names, of [id, name] pairs, nor an object from number to name; mend it."
        ) from None
    return _checked(path, names)


def _from_json(found: Any) -> list[Any]:
    if isinstance(found, dict):
        return [found[str(number)] for number in range(len(found))]
    if not isinstance(found, list):
        raise TypeError
    return [one if isinstance(one, str) else str(one[1]) for one in found]


def _checked(path: Path, names: list[Any]) -> tuple[str, ...]:
    if empty := [number for number, name in enumerate(names) if not isinstance(name, str) or not name]:
        raise UserError(f"{path}: class {empty[0]} has no name; give each class one.")
    return tuple(names)
