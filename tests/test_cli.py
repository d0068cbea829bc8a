"""The command as a person uses it."""

import json

import pytest

from vitreous import __version__
from vitreous.cli import main


def run(capsys, *args):
    """Status, stdout and stderr of a command."""
    try:
        main(args)
        status = 0
    except SystemExit as end:
        status = end.code or 0
    return status, *capsys.readouterr()


def test_models_lists_the_presets(capsys):
    status, out, _ = run(capsys, "models")
    assert status == 0
    row = next(line.split() for line in out.splitlines() if line.startswith("B/16 "))
    assert row[:7] == ["B/16", "224", "197", "768", "12", "12", "86,567,656"]


def test_models_as_json_at_another_resolution(capsys):
    _, out, _ = run(capsys, "models", "B/16", "Ti/16", "--image-size", "384", "--json")
    base, tiny = json.loads(out)
    assert base["image_size"] == [384, 384]
    assert base["tokens"] == 24 * 24 + 1
    assert base["parameters"] == 86_567_656 + (24**2 - 14**2) * 768
    assert tiny["name"] == "Ti/16"


def test_a_resolution_lists_the_presets_that_it_suits(capsys):
    _, out, _ = run(capsys, "models", "--image-size", "384", "--json")
    patches = {row["patch"] for row in json.loads(out)}
    assert patches == {2, 4, 8, 16, 32}


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"vitreous {__version__}\n")


MISTAKES = {
    ("models", "Q/16"): "model 'Q/16': write SIZE/PATCH",
    ("models", "B/16", "--image-size", "100"): "the nearest that work are 96 and 112",
    ("models", "--image-size", "0"): "--image-size 0: give the side",
    ("models", "--image-size", "17"): "no preset has a patch that divides it",
}


@pytest.mark.parametrize(("args", "says"), MISTAKES.items())
def test_a_mistake_ends_with_one_sentence_and_status_2(capsys, args, says):
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("args", [("modls",), ("models", "--image-size", "big"), ()])
def test_what_cannot_be_parsed_ends_with_status_2(capsys, args):
    status, out, err = run(capsys, *args)
    assert status == 2
    assert "Traceback" not in out + err
