"""What must stay true of the house: names that mean one thing, options written once, the words of WORDS.md."""

import re

import pytest

import house


def test_no_public_class_name_stands_twice():
    assert house.repeated_classes() == {}


def test_the_words_of_the_rebuilt_rooms_are_the_fields():
    """For each name on the left, `house` says what WORDS.md has in its place; an exception needs a reason there."""
    assert [str(one) for one in house.dictionary_words()] == []


def test_each_option_of_fit_is_written_once():
    found = house.places_of_options()
    assert len(found) >= 19
    assert {name: places for name, places in found.items() if len(places) != 1} == {}


@pytest.mark.slow
def test_one_fit_enters_at_most_18_files():
    found = house.files_of_fit()
    assert {"verbs/fit.py", "training/train.py", "training/loop.py", "cli/parsing.py"} <= set(found)
    assert len(found) <= 18, found


def test_the_help_comes_at_once():
    assert house.seconds_of_help() <= 0.15


# The measures themselves: would they notice?


@pytest.mark.parametrize(
    ("name", "kind", "write"),
    [
        ("n_pictures", "local", "images"),
        ("PictureList", "definition", "image"),
        ("chances", "local", "probabilities"),
        ("begin_alike", "definition", "broadcast_parameters"),
        ("_said", "definition", "predictions, message"),
        ("first", "attribute", "is_main, or the first of what"),
        ("first", "local", None),
        ("first_loss", "attribute", None),
        ("seconds_share", "parameter", "fraction, lam, rate, weight, rank_slice"),
        ("share", "local", None),
        ("Asked", "attribute", "Request"),
        ("asked", "parameter", None),
        ("MOST", "attribute", "MAX_ and the thing"),
        ("MOST_TOKENS", "attribute", "MAX_ and the thing"),
        ("MAX_OPEN_FILES", "attribute", None),
        ("OPEN_FILES", "attribute", None),
        ("OPEN", "attribute", "the thing"),
        ("images", "parameter", None),
        ("shard_same", "definition", None),
    ],
)
def test_a_better_word(name, kind, write):
    assert house.better_word(name, kind) == write


def test_every_kind_of_name_is_seen(tmp_path):
    file = tmp_path / "chances.py"
    file.write_text(
        "from x import y as z\nMOST = 1\nclass C:\n    field: int = 0\n"
        "    def f(self, a, *, b=1):\n        self.g, c = a, lambda d: [e for e in d]\n"
        "        try:\n            pass\n        except OSError as h:\n            pass\n"
    )
    found = {name: kind for _, name, kind in house.bound_names(file)}
    assert found == {
        **dict.fromkeys(["chances"], "module"),
        **dict.fromkeys(["C", "f"], "definition"),
        **dict.fromkeys(["MOST", "field", "g"], "attribute"),
        **dict.fromkeys(["self", "a", "b", "d"], "parameter"),
        **dict.fromkeys(["z", "c", "e", "h"], "local"),
    }


def test_every_way_to_write_an_option_is_seen(tmp_path):
    file = tmp_path / "x.py"
    file.write_text(
        "class Fit:\n    out: str\n\nclass Other:\n    out: str\n\n"
        'def run(out: Annotated[str, "help"], plain: str):\n'
        '    """Do it.\n\n    out: where to.\n    """\n    call(out=out, plain=self.plain)\n'
    )
    assert sorted(house._written(file, {"Fit"})) == [("out", 2), ("out", 7), ("out", 7), ("out", 12)]
    assert sorted(house._written(file, set())) == [("out", 7), ("out", 12)]


def test_a_class_that_stands_twice_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(house, "PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text("class A:\n    class B: ...\nclass _C: ...\n")
    (tmp_path / "b.py").write_text("class B: ...\nclass _C: ...\n")
    assert house.repeated_classes() == {"B": ["a.py:2", "b.py:1"]}


def test_lines_that_only_pass_on_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(house, "PACKAGE", tmp_path)
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "a.py").write_text("f(\n    a=a,\n    b=c,\n    d=d,\n)\ng(e=e, h=1)\n")
    assert house.pass_through_lines() == 2


def test_every_exception_is_needed_and_has_a_reason():
    used = {text for text in house.ALLOWED if _stands(*text.split())}
    assert set(house.ALLOWED) == used
    assert all(re.search(r"\w+ \w+", reason) for reason in house.ALLOWED.values())


def _stands(place, word):
    paths = (path for room in house.REBUILT for path in (house.PACKAGE / room).rglob("*.py"))
    below = [path for path in paths if path.relative_to(house.PACKAGE).as_posix().startswith(place)]
    return any(name.strip("_").lower() == word for path in below for _, name, kind in house.bound_names(path))
