"""Names of classes from files of every common kind."""

import json

import pytest

from vitreous import UserError
from vitreous.weights.labels import read_labels

KINDS = {
    "lines.txt": "tench\ngoldfish \ngreat white shark\n",
    "list.json": json.dumps(["tench", "goldfish", "great white shark"]),
    "pairs.json": json.dumps([["n0", "tench"], ["n1", "goldfish"], ["n2", "great white shark"]]),
    "object.json": json.dumps({"2": "great white shark", "0": "tench", "1": "goldfish"}),
    "list": json.dumps(["tench", "goldfish", "great white shark"]),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind(tmp_path, name):
    (tmp_path / name).write_text(KINDS[name])
    assert read_labels(tmp_path / name) == ("tench", "goldfish", "great white shark")


def test_the_real_ones(shared_data):
    names = read_labels(shared_data / "imagenet_classes.json")
    assert (len(names), names[0], names[283]) == (1000, "tench", "Persian_cat")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.json", "3", "not a list of names"),
        ("a.json", '{"a": "b"}', "not a list of names"),
        ("a.json", '["a", ""]', "class 1 has no name"),
        ("a.json", '{"0": 5}', "class 0 has no name"),
        ("a.txt", "a\n\nb", "class 1 has no name"),
    ],
)
def test_what_is_none(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=says):
        read_labels(tmp_path / name)
    with pytest.raises(UserError, match="this is a folder"):
        read_labels(tmp_path)
