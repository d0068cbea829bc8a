"""The command as a person uses it."""

import json
import os
import re
import subprocess
import sys

import pytest

from support.colours import make_bundle, make_images
from vitreous import __version__
from vitreous.cli import load_verb, main, summaries
from vitreous.cli.overview import START
from vitreous.cli.parsing import parse
from vitreous.storage.cache import cache_path

VERBS = {verb: line for group in summaries().values() for verb, line in group.items()}


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
    assert patches == {2, 4, 8, 16, 32, None}
    _, out, _ = run(capsys, "models", "--image-size", "17", "--json")
    assert {row["family"] for row in json.loads(out)} == {"bit", "efficientnet"}  # no patch divides 17


def test_every_result_can_be_json():
    assert [name for name in VERBS if not load_verb(name).json_help] == ["serve"]


def test_help_after_an_argument_is_the_whole_help(capsys):
    assert run(capsys, "fit", "photos", "--help") == run(capsys, "fit", "--help")


def test_names_of_other_programs_are_understood(capsys, subtests):
    for given, meant in {"--time": "--budget", "--lr": "--overrides lr=", "--mixup": "augment.mixup="}.items():
        with subtests.test(given):
            check_mistake(capsys, ("fit", "photos", given, "1"), f"{given}: ", meant)


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"vitreous {__version__}\n")


def test_help_lists_every_verb_with_its_first_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    status, out, err = run(capsys, "--help")
    assert (status, err) == (0, "")
    assert run(capsys, "-h") == (0, out, "")
    words = [re.split(r" {2,}", line.strip("│ "), maxsplit=1) for line in out.splitlines()]
    assert [VERBS[first] for first, *rest in words if rest == [VERBS.get(first)]] == list(VERBS.values())
    assert [line.split()[1:-1] for line in out.splitlines() if line.startswith("╭")] == [
        title.split() for title in ("start with", *summaries(), "options")
    ]
    assert {len(line) for line in out.splitlines() if line.startswith(("│", "╭", "╰"))} == {160}


def test_the_commands_to_start_with_can_be_parsed():
    for command in START:
        _, name, *words = command.split()
        parse(name, load_verb(name), words)


def test_help_fits_a_narrow_terminal_and_an_old_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, run(capsys, "--help")[1].splitlines())) == 60
    code = "from vitreous.cli import main; main(['--help'])"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    assert b"fit " in done.stdout


def test_help_says_which_folder_is_the_cache(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    named = run(capsys, "--help")[1].partition("$VITREOUS_CACHE/")[2].split()[0]
    assert cache_path("features", "x").is_relative_to(tmp_path / named)


def test_help_imports_neither_parser_nor_torch():
    """So that it is there at once."""
    heavy = ("tyro", "torch", "numpy", "PIL", "rich")
    code = f"import sys; from vitreous.cli import main; main(['--help']); sys.exit(any(map(sys.modules.get, {heavy})))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=120).returncode == 0


def test_the_help_of_a_verb_begins_as_the_list_says(subtests, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for verb in VERBS:
        with subtests.test(verb):
            status, out, _ = run(capsys, *verb.split(), "--help")
            usage, _, first, *_ = out.splitlines()
            assert status == 0
            assert usage.startswith(f"usage: vitreous {verb} [-h]")
            assert first == VERBS[verb]
            assert load_verb(verb).__doc__.splitlines()[0] == VERBS[verb]
            assert "default: None" not in out


def check_mistake(capsys, args, *names):
    """Status 2, and one line on standard error that has these names."""
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert err.startswith("vitreous: ")
    assert err.count("\n") == 1
    assert all(name in err for name in names), err


def test_an_unknown_verb(subtests, capsys):
    for word, meant in {
        "modls": "models",
        "score": "score-explanations",
        "train": "fit",
        "zzz": "--help",
        "--zzz": "--help",
    }.items():
        with subtests.test(word):
            check_mistake(capsys, (word, "x"), f"vitreous: {word}: ", f"`vitreous {meant}`")


def test_without_a_verb_the_list_is_on_stderr(capsys):
    status, out, err = run(capsys)
    assert (status, out) == (2, "")
    assert VERBS["predict"] in err


def test_shell_completion_knows_every_verb(capsys):
    status, out, _ = run(capsys, "--tyro-print-completion", "bash")
    assert status == 0
    assert all(f"'{word}'" in out for verb in VERBS for word in verb.split())
    assert "--masks" in out


def test_a_model_that_cannot_be(capsys):
    check_mistake(capsys, ("models", "Q/16"), "model 'Q/16'")
    check_mistake(capsys, ("models", "B/16", "--image-size", "100"), "image_size 100x100: ", "96", "112")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return str(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "p")


def test_predict_prints_a_line_a_image(capsys, bundle, images):
    status, out, err = run(capsys, "predict", bundle, str(images), "--top-k", "2")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 12
    path, rest = lines[0].split("  ", 1)
    assert path == str(images / "blue" / "0.png")
    assert rest.startswith("blue ")
    assert rest.count("%") == 2


def test_predict_as_json_with_a_image_that_cannot_be_read(capsys, bundle, images, tmp_path):
    (tmp_path / "bad [1].jpg").write_text("text")
    status, out, _ = run(capsys, "predict", bundle, str(tmp_path), str(images / "red"), "--json")
    assert status == 1
    bad, *good = (json.loads(line) for line in out.splitlines())
    assert bad["path"] == str(tmp_path / "bad [1].jpg")
    assert (bad["prediction"], bool(bad["error"])) == (None, True)
    assert [(one["prediction"], one["error"]) for one in good] == [("red", None)] * 4
    assert set(good[0]) == set(bad) == {"path", "prediction", "probability", "top", "error"}


def test_predict_says_on_stderr_what_it_could_not_read(capsys, bundle, images, tmp_path):
    image = str(images / "red" / "0.png")
    status, out, err = run(capsys, "predict", bundle, str(tmp_path / "no\nne.jpg"), image)
    assert status == 1
    assert out.startswith(f"{image}  red ")
    assert err.startswith(f"vitreous: {tmp_path}/no\\nne.jpg: ")
    assert err.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_unicode(capsys, bundle, images, tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff\xfe.png"
    with open(name, "wb") as file:  # noqa: PTH123
        file.write((images / "red" / "0.png").read_bytes())
    status, out, _ = run(capsys, "predict", bundle, str(tmp_path))
    assert (status, "\\udcff\\udcfe.png  red" in out) == (0, True)
    _, out, _ = run(capsys, "predict", bundle, str(tmp_path), "--json")
    assert os.fsencode(json.loads(out)["path"]) == name


def test_evaluate_prints_figures_classes_and_pairs(capsys, bundle, images):
    status, out, err = run(capsys, "evaluate", bundle, str(images))
    assert (status, err) == (0, "")
    assert re.match(r"12 \w+ of 3 classes \(all\)", out)
    assert re.search(r"top-1 .*100\.00%", out)
    assert out.count("blue") == 1, "among the classes, and not among what is confused"


def test_evaluate_shows_what_is_confused(capsys, images, tmp_path):
    mixed = make_bundle(tmp_path / "b", labels=("green", "blue", "red"))
    _, out, _ = run(capsys, "evaluate", str(mixed), str(images))
    assert ["blue", "green", "4", "100.0%"] in [line.split() for line in out.splitlines()]


def test_evaluate_writes_predictions_and_takes_several_labels(capsys, bundle, images, tmp_path):
    status, out, _ = run(capsys, "evaluate", bundle, str(images), "--out", str(tmp_path / "a.csv"))
    assert (status, out.split()[-1]) == (0, str(tmp_path / "a.csv"))
    names = {path.name for path in images.rglob("*.png")}
    (tmp_path / "l.json").write_text(json.dumps({name: [0, 1, 2] for name in names}))
    status, out, _ = run(capsys, "evaluate", bundle, str(images), "--label-sets", str(tmp_path / "l.json"))
    assert status == 0
    assert re.search(r"accuracy .*100\.00%", out)
    assert "3.00 labels" in out


def test_evaluate_under_corruptions(capsys, bundle, images):
    words = ("evaluate", bundle, str(images), "--corruptions", "--count", "2", "--workers", "0")
    status, out, _ = run(capsys, *words, "--severities", "2,5")
    assert status == 0
    assert re.search(r"\b30\b", out)
    assert "seed 0" in out
    assert "mean corruption error" in out
    assert "procedural" not in out  # --json and the page say what differs
    check_mistake(capsys, (*words, "--severities", "6"), "--severities 6: ", "1", "5")
    check_mistake(capsys, (*words, "--out", "a.csv"), "out=a.csv: ", "corruptions")
    check_mistake(capsys, ("evaluate", bundle, str(images), "--seed", "3"), "seed=3: ", "count")


def test_evaluate_as_json(capsys, bundle, images):
    status, out, _ = run(capsys, "evaluate", bundle, str(images), "--json")
    assert status == 0
    said = json.loads(out)
    assert (said["n"], said["top1"]) == (12, 1.0)
    assert said["confusion"] == {"true": [0, 1, 2], "predicted": [0, 1, 2], "images": [4, 4, 4]}
    assert {"top5", "ece", "per_class", "most_confused", "top1_interval"} <= set(said)


def test_inspect_is_readable_and_json(capsys, images, tmp_path):
    make_images(tmp_path / "p" / "train", count=2)
    make_images(tmp_path / "p" / "test", count=1)  # all of it is in train too
    (tmp_path / "p" / "train" / "red" / "1.png").write_bytes(b"")
    status, out, _ = run(capsys, "inspect", str(tmp_path / "p"))
    assert status == 0
    assert re.search(r"\b9 \w+ of 3 classes", out)
    assert re.search(r"^1 .*:\n  \S+/train/red/1\.png: ", out, re.MULTILINE), "cannot be read"
    assert re.search(r"^3 .*:\n  (\S+)/train/blue/0.png = \1/test/blue/0.png \(test, train\)\n", out, re.MULTILINE)
    said = json.loads(run(capsys, "inspect", str(tmp_path / "p"), "--json")[1])
    assert len(said["leaks"]) == 3
    assert len(said["unreadable"]) == 1
    assert " = " not in run(capsys, "inspect", str(images))[1], "no duplicates"


def test_mistakes_of_the_other_verbs(subtests, capsys, bundle, images, tmp_path):
    (tmp_path / "empty").mkdir()
    for args, names in {
        ("predict", str(tmp_path / "none"), "x.jpg"): ["none: "],
        ("predict", str(tmp_path / "empty"), "x.jpg"): ["empty: "],
        ("predict", bundle): [],
        ("predict", bundle, "x.jpg", "--preprocess", "colour=1"): ["'colour'"],
        ("evaluate", bundle, str(tmp_path / "empty")): ["empty: "],
        ("evaluate", bundle, str(images), "--split", "test"): ["split='test'"],
        ("evaluate", bundle, "builtin", "--engine", "torch"): ["class 'Ankle boot': "],
        ("inspect", str(tmp_path / "none")): ["none: "],
    }.items():
        with subtests.test(" ".join(args)):
            check_mistake(capsys, args, *names)


def test_every_verb_can_be_made():
    """An abstract method that is missing would be noticed only when the command runs."""
    assert {name: load_verb(name).__abstractmethods__ for name in VERBS if load_verb(name).__abstractmethods__} == {}
