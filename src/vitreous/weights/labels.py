"""The names of classes: from a file, and ImageNet's (ILSVRC 2012), which come with the package.

imagenet.txt.xz             one name per line, in the order of the 1,000 classes: the first name of each WordNet synset,
                            as in the challenge's public list, but two cranes and two maillots are told apart
imagenet_synsets.txt.xz     the WordNet ids of the classes, one per line; their order is that of the ids
"""

from __future__ import annotations

import lzma
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from vitreous.errors import UserError
from vitreous.inputs import parse_json, read_text

IMAGENET = 1000  # a classifier with this number of outputs is assumed to be ImageNet's
MIN_IMAGENET_FRACTION = 0.98
"""Fraction of labels that must match ImageNet's: lists differ in a few names, such as the two cranes."""
SUBSETS = {
    "ff8c384504d3ec59dd70537e83c7ed3dfa0debb07210febc47b58c136a443706": "ImageNet-A",
    "354baa0a46566aa68cee6a8093d8de471b7d45a1004b81a95c6210f757ad3740": "ImageNet-R",
}
"""Datasets whose papers restrict predictions to their own classes, by SHA-256 of their sorted WordNet ids, joined by
spaces."""

Naming = Literal["WordNet ids", "class numbers", "names"]  # how a dataset names ImageNet's classes


def imagenet_names() -> tuple[str, ...]:
    """(1000,) "tench", "goldfish", ..."""
    return _lines("imagenet.txt.xz")


def imagenet_synsets() -> tuple[str, ...]:
    """(1000,) "n01440764", "n01443537", ..."""
    return _lines("imagenet_synsets.txt.xz")


@cache
def _lines(file: str) -> tuple[str, ...]:
    return tuple(lzma.decompress(Path(__file__).with_name(file).read_bytes()).decode().splitlines())


def duplicate_names_note(names: Sequence[str]) -> str | None:
    """A note about names that several classes have; None if there are none."""
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
        if isinstance(found, dict):
            found = [found[str(number)] for number in range(len(found))]
        elif not isinstance(found, list):
            raise TypeError
        else:
            found = [one if isinstance(one, str) else str(one[1]) for one in found]
    except (ValueError, TypeError, KeyError, IndexError):
        raise UserError(
            f"{path}: not a list of names, of [id, name] pairs, nor an object from number to name; mend it."
        ) from None
    return _checked(path, found)


def _checked(path: Path, names: list[Any]) -> tuple[str, ...]:
    if empty := [number for number, name in enumerate(names) if not isinstance(name, str) or not name]:
        raise UserError(f"{path}: class {empty[0]} has no name; give each class one.")
    return tuple(names)


def is_imagenet(labels: Sequence[str]) -> bool:
    """Whether a classifier's labels are ImageNet's in its order: WordNet ids, or names up to small differences."""
    if len(labels) != IMAGENET:
        return False
    matches = [
        label == synset or _plain(label) == _plain(name)
        for label, synset, name in zip(labels, imagenet_synsets(), imagenet_names(), strict=True)
    ]
    return sum(matches) >= MIN_IMAGENET_FRACTION * IMAGENET


def class_numbers(names: Collection[str]) -> tuple[Naming, dict[str, int]] | None:
    """The kind of these names, and the class number of each; None if one is not ImageNet's.

    A name of several classes is an error.
    """
    if all(re.fullmatch(r"0|[1-9]\d{0,2}", name) for name in names):
        return "class numbers", {name: int(name) for name in names}
    by_id = {synset: number for number, synset in enumerate(imagenet_synsets())}
    if all(name in by_id for name in names):
        return "WordNet ids", {name: by_id[name] for name in names}
    by_name = {name: _numbers_of(name) for name in names}
    if not all(by_name.values()):
        return None
    for name, numbers in by_name.items():
        if len(numbers) > 1:
            ids = " or ".join(imagenet_synsets()[number] for number in numbers)
            raise UserError(f"class {name!r}: ImageNet has {len(numbers)} classes of this name; call it {ids}.")
    return "names", {name: numbers[0] for name, numbers in by_name.items()}


def subset_name(numbers: Collection[int]) -> str | None:
    """The dataset with exactly these classes, "ImageNet-A" or "ImageNet-R"; None if there is none."""
    ids = " ".join(imagenet_synsets()[number] for number in sorted(numbers))
    return SUBSETS.get(sha256(ids.encode()).hexdigest())


def _numbers_of(name: str) -> tuple[int, ...]:
    """The classes of this name; capitals count if they tell two apart: a Cardigan is a dog, a cardigan is not."""
    exact, plain = _numbers_by_name()
    return exact.get(_short(name)) or plain.get(_plain(name), ())


@cache
def _numbers_by_name() -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    exact: dict[str, tuple[int, ...]] = {}
    plain: dict[str, tuple[int, ...]] = {}
    for number, name in enumerate(imagenet_names()):
        exact[_short(name)] = (*exact.get(_short(name), ()), number)
        plain[_plain(name)] = (*plain.get(_plain(name), ()), number)
    return exact, plain


def _plain(name: str) -> str:
    """The normalised name: "Persian_cat" and "Persian cat, Felis catus" are "persian cat"."""
    return _short(name).lower()


def _short(name: str) -> str:
    """The same with its capitals; some names need what follows their comma."""
    whole = " ".join(name.replace("_", " ").split())
    return whole if whole.lower() in _with_comma() else whole.split(",")[0]


@cache
def _with_comma() -> frozenset[str]:
    return frozenset(name.lower() for name in imagenet_names() if "," in name)
