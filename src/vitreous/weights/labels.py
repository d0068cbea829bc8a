"""The names of classes from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitreous.errors import UserError


def read_labels(path: str | Path) -> tuple[str, ...]:
    """One name per class, in the classifier's order.

    A text file with one name per line; or JSON: a list of names, a list of pairs [id, name], or an object from
    number to name.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{path}: cannot be read ({reason}); give a text or JSON file with one name per class."
        ) from None
    if path.suffix != ".json" and not text.lstrip().startswith(("[", "{")):
        return _checked(path, [line.strip() for line in text.strip().splitlines()])
    try:
        names = _from_json(json.loads(text))
    except (ValueError, TypeError, KeyError):
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
