"""Names of classes from files of every common kind."""

import json
import re

import pytest
from safetensors.torch import save_file

from support.tiny_models import random_model
from vitreous import UserError
from vitreous.verbs.weights import import_weights
from vitreous.weights.labels import imagenet_names, read_labels
from vitreous.weights.source import open_weights

KINDS = {
    "lines.txt": "tench\ngoldfish \ngreat white shark\n",
    "list.json": json.dumps(["tench", "goldfish", "great white shark"]),
    "pairs.json": json.dumps([["n0", "tench"], ["n1", "goldfish"], ["n2", "great white shark"]]),
    "object.json": json.dumps({"2": "great white shark", "0": "tench", "1": "goldfish"}),
    "list": json.dumps(["tench", "goldfish", "great white shark"]),
}


def test_every_kind(tmp_path):
    for name, text in KINDS.items():
        (tmp_path / name).write_text(text)
        assert read_labels(tmp_path / name) == ("tench", "goldfish", "great white shark"), name


def test_the_real_ones(shared_data):
    names = read_labels(shared_data / "imagenet_classes.json")
    assert (len(names), names[0], names[283]) == (1000, "tench", "Persian_cat")


def test_what_is_none(subtests, tmp_path):
    for name, text, names in (
        ("a.json", "{", "a.json"),
        ("b.json", "3", "b.json"),
        ("c.json", '{"a": "b"}', "c.json"),
        ("d.json", '["a", ""]', "d.json.* 1 "),
        ("e.json", '{"0": 5}', "e.json.* 0 "),
        ("f.txt", "a\n\nb", "f.txt.* 1 "),
    ):
        with subtests.test(text):
            (tmp_path / name).write_text(text)
            with pytest.raises(UserError, match=names):
                read_labels(tmp_path / name)
    with pytest.raises(UserError, match=tmp_path.name):
        read_labels(tmp_path)


def test_imagenets_names_come_with_the_package(shared_data):
    """Those of the challenge's list, as a person reads them; the two that it has twice are told apart."""
    names, public = imagenet_names(), read_labels(shared_data / "imagenet_classes.json")
    assert len(set(names)) == 1000
    assert names[285] == "Egyptian cat"
    other = {
        k: (name, was) for k, (name, was) in enumerate(zip(names, public, strict=True)) if name != was.replace("_", " ")
    }
    assert other.keys() == {134, 517, 639}
    assert all(name.startswith(was) for name, was in other.values())


@pytest.mark.parametrize(("classes", "first"), [(1000, "tench"), (999, "0"), (1001, "0")])
def test_a_thousand_outputs_without_names_are_imagenets_and_that_is_said(tmp_path, classes, first):
    model = random_model(classes=classes, image_size=(16, 16))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    found = open_weights(tmp_path / "w.safetensors", heads=4)
    assert (found.labels[0], len(found.labels)) == (first, classes)
    assert any("ImageNet" in note for note in found.notes) == (classes == 1000)
    assert found.info["numbered"] == (classes != 1000)


def test_names_that_several_classes_have_are_possible_and_said(tmp_path):
    model = random_model(image_size=(16, 16))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    names = ["crane", "bee", "crane", "dog", "elk"]
    made = import_weights(tmp_path / "w.safetensors", tmp_path / "b", heads=4, labels=names)
    assert re.search(r"\b1 .*\(crane\)", made.notes[-1])
    with pytest.raises(UserError, match=r"5 .*'crane'"):
        import_weights(tmp_path / "w.safetensors", tmp_path / "c", heads=4, labels=["crane"] * 5)
