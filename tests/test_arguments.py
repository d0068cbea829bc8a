"""Arguments checked against annotations: what is let through, and what is refused by its name."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest

from vitreous.arguments import Budget, Count, Epochs, Range, Seed, check_fields, check_value, checked, wanted
from vitreous.errors import UserError

TAKEN = [
    (3, int, 3),
    (np.int32(3), Count | None, 3),
    (None, Count | None, None),
    (3, float, 3),
    (np.float32(0.5), float, 0.5),
    (np.bool_(True), bool, True),
    ("a", str | Path, "a"),
    (Path("a"), str | Path, Path("a")),
    (["a", Path("b")], Sequence[str | Path], ["a", Path("b")]),
    ("a", str | Path | Sequence[str | Path], "a"),
    ([1, np.float64(2)], tuple[float, float], (1, 2.0)),
    (range(3), Sequence[int], [0, 1, 2]),
    ("b", Literal["a", "b"] | None, "b"),
    ({"a": object}, Mapping[str, object], {"a": object}),
    (print, Callable[[int], None] | None, print),
    (2**31 - 1, Seed, 2**31 - 1),
    (1e-9, Epochs, 1e-9),
]


def test_what_an_annotation_allows_is_taken(subtests):
    for value, hint, taken in TAKEN:
        with subtests.test(repr((value, hint))):
            found = check_value(value, hint, "x")
            assert found == taken
            assert type(found) is type(taken)


REFUSED = [
    (0, Count, "x=0: ", "1"),
    (True, Count | None, "x=True: ", "1"),
    (1.0, int, "x=1.0: "),
    (10**30, int, "x=10**30: "),
    (-(10**5000), int, "x=-10**5000: "),
    (math.nan, float | None, "x=nan: "),
    (-1, Seed, "x=-1: ", "0", "2,147,483,647"),
    (0, Epochs, "x=0: ", "0", "1,000,000,000"),
    ("", str | Path, "x='': "),
    (" \n", str, "x=' \\n': "),
    ("a\0", str, "x='a\\x00': "),
    (5, Budget | None, "x=5: ", "90s", "1h30m"),
    ("c", Literal["name_a", "name_b"] | None, "x='c': ", "name_a", "name_b"),
    ([], Literal["name_a", "name_b"], "x=[]: ", "name_a", "name_b"),
    ("all", int | Literal["head_mean"], "x='all': ", "head_mean"),
    (["a", 3], str | Path | Sequence[str | Path], "x[1]=3: "),
    ([[0]], Sequence[Sequence[Count]], "x[0][0]=0: ", "1"),
    ((1, 2, 3), tuple[float, float] | None, "x=(1, 2, 3): ", "2", "(1, 1)"),
    ("ab", Sequence[str], "x='ab': "),
    ({1: 2}, Mapping[str, object], "x={1: 2}: "),
    (3, Callable[[int], None], "x=3: "),
    (np.zeros(2), int, "x=<numpy.ndarray>: "),
    (object(), bool, "x=<object>: "),
]


def test_what_it_does_not_allow_is_named_with_what_it_allows(subtests):
    for value, hint, start, *names in REFUSED:
        with subtests.test(start):
            with pytest.raises(UserError) as error:
                check_value(value, hint, "x")
            sentence = str(error.value)
            assert sentence.startswith(start)
            assert sentence.endswith(".")
            assert all(name in sentence.removeprefix(start) for name in names)


def test_a_text_is_no_longer_than_a_path_and_a_name_no_longer_than_a_files():
    with pytest.raises(UserError, match=r"^x='a+\.\.\.a+': .*5,000"):
        check_value("a" * 5000, str, "x")
    with pytest.raises(UserError, match=r"^x=.*255"):
        check_value("b/" + "ä" * 128, str | Path, "x")
    assert check_value("b/" + "a" * 255, str | Path, "x")
    assert check_value("a" * 300, str, "x"), "what is no path may be longer"


@checked
def greet(name: str, *, times: Count = 1) -> str:
    """Greet."""
    return " ".join(["hello"] * times + [name])


def test_a_checked_function_is_the_function():
    assert greet("you", times=np.int8(2)) == "hello hello you"
    assert greet.__doc__ == "Greet."
    for call in (lambda: greet("you", tims=2), lambda: greet(), lambda: greet("you", 3), lambda: greet(3)):
        with pytest.raises(UserError, match=r"^(greet\(|name=3: )"):
            call()


@dataclass(frozen=True)
class Size:
    side: Annotated[int, Range(1, 10)]
    parts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


def test_fields_of_a_dataclass():
    made = Size(np.int64(3), [np.float32(0.5), 1])
    assert made == Size(3, (0.5, 1))
    assert type(made.side) is int
    with pytest.raises(UserError, match=r"^side=11: .* 1 .* 10"):
        Size(11)
    with pytest.raises(UserError, match=r"^parts\[1\]='x': "):
        Size(1, (1, "x"))


def test_alternatives_are_named_once():
    path = wanted(Path)
    assert wanted(str | Path) == path, "a text beside a path is a path"
    assert wanted(str | Path | Sequence[str | Path]).count(path) == 1
    assert wanted(Path | None).startswith(path)
    assert wanted(Path | None) != path
    said = wanted(int | Literal["mean", "all"])
    assert all(name in said for name in (wanted(int), "mean", "all"))
