"""Arguments checked against annotations: what is let through, what is refused, and in which words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest

from vitreous.arguments import Budget, Count, Epochs, Seed, check_fields, check_value, checked
from vitreous.errors import UserError
from vitreous.wording import Range, wanted

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
    (range(3), Sequence[int], range(3)),
    ("b", Literal["a", "b"] | None, "b"),
    ({"a": object}, Mapping[str, object], {"a": object}),
    (print, Callable[[int], None] | None, print),
    (2**31 - 1, Seed, 2**31 - 1),
    (1e-9, Epochs, 1e-9),
]


@pytest.mark.parametrize(("value", "hint", "taken"), TAKEN, ids=repr)
def test_what_an_annotation_allows_is_taken(value, hint, taken):
    found = check_value(value, hint, "x")
    assert found == taken
    assert type(found) is type(taken)


REFUSED = [
    (0, Count, "x=0: give a whole number of at least 1."),
    (True, Count | None, "x=True: give a whole number of at least 1, or leave it out."),
    (1.0, int, "x=1.0: give a whole number."),
    (10**30, int, "x=10**30: too large; give a whole number."),
    (-(10**5000), int, "x=-10**5000: too large; give a whole number."),
    (math.nan, float | None, "x=nan: not a finite number; give a number, or leave it out."),
    (-1, Seed, "x=-1: give a whole number from 0 to 2,147,483,647."),
    (0, Epochs, "x=0: give a number above 0 and at most 1,000,000,000."),
    ("", str | Path, "x='': empty; give a path."),
    (" \n", str, "x=' \\n': empty; give a text."),
    ("a\0", str, "x='a\\x00': holds a null character; give a text."),
    (5, Budget | None, "x=5: give a time with its unit, such as 90s, 5m or 1h30m, or leave it out."),
    ("c", Literal["a", "b"] | None, "x='c': give one of a, b, or leave it out."),
    ([], Literal["a", "b"], "x=[]: give one of a, b."),
    ("all", int | Literal["mean"], "x='all': give a whole number or mean."),
    (["a", 3], str | Path | Sequence[str | Path], "x[1]=3: give a path."),
    ([[0]], Sequence[Sequence[Count]], "x[0][0]=0: give a whole number of at least 1."),
    ((1, 2, 3), tuple[float, float] | None, "x=(1, 2, 3): give 2 numbers, such as (1, 1), or leave it out."),
    ("ab", Sequence[str], "x='ab': give a list, each of it a text."),
    ({1: 2}, Mapping[str, object], "x={1: 2}: give a dict of names and values."),
    (3, Callable[[int], None], "x=3: give a function."),
    (np.zeros(2), int, "x=<numpy.ndarray>: give a whole number."),
    (object(), bool, "x=<object>: give True or False."),
]


@pytest.mark.parametrize(("value", "hint", "says"), REFUSED, ids=[one[2] for one in REFUSED])
def test_what_it_does_not_allow_is_one_sentence(value, hint, says):
    with pytest.raises(UserError) as error:
        check_value(value, hint, "x")
    assert str(error.value) == says


def test_a_text_is_no_longer_than_a_path_and_a_name_no_longer_than_a_files():
    with pytest.raises(UserError, match=r"x='a+\.\.\.a+': too long \(5,000 letters\); give a text"):
        check_value("a" * 5000, str, "x")
    with pytest.raises(UserError, match="a name of more than 255 bytes"):
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
    with pytest.raises(UserError, match="side=11: give a whole number from 1 to 10"):
        Size(11)
    with pytest.raises(UserError, match=r"parts\[1\]='x': give a number"):
        Size(1, (1, "x"))


def test_alternatives_in_words():
    assert wanted(str | Path | Sequence[str | Path] | None) == "a path or a list of them, or leave it out"
    assert wanted(int | Literal["mean", "all"]) == "a whole number or one of mean, all"
