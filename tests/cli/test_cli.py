"""The command as a person uses it."""

import json
import os
import re
import resource
import subprocess
import sys

import pytest

from support.colours import make_bundle, make_pictures
from vitreous import __version__
from vitreous.cli import GROUPS, VERBS, load_verb, main


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


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"vitreous {__version__}\n")


@pytest.mark.parametrize("asked", ["--help", "-h"])
def test_help_lists_every_verb_with_its_first_line(capsys, monkeypatch, asked):
    monkeypatch.setenv("COLUMNS", "160")
    status, out, err = run(capsys, asked)
    assert (status, err) == (0, "")
    words = [re.split(r" {2,}", line.strip("│ "), maxsplit=1) for line in out.splitlines()]
    assert [VERBS[first] for first, *rest in words if rest == [VERBS.get(first)]] == list(VERBS.values())
    assert [line.split()[1:-1] for line in out.splitlines() if line.startswith("╭")] == [
        title.split() for title in ("options", *GROUPS)
    ]
    assert {len(line) for line in out.splitlines() if line.startswith(("│", "╭", "╰"))} == {160}


def test_help_fits_a_narrow_terminal_and_an_old_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, run(capsys, "--help")[1].splitlines())) == 60
    code = "from vitreous.cli import main; main(['--help'])"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    assert b"fit " in done.stdout


def test_help_takes_no_time():
    """At most 0.3 s of processor time, and no parser is imported for it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import sys; from vitreous.cli import main; main(['--help']); sys.exit('tyro' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_begins_as_the_list_says(capsys, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "120")
    status, out, _ = run(capsys, *verb.split(), "--help")
    usage, _, first, *_ = out.splitlines()
    assert status == 0
    assert usage.startswith(f"usage: vitreous {verb} [-h]")
    assert first == VERBS[verb]
    assert load_verb(verb).__doc__.splitlines()[0] == VERBS[verb]
    assert "default: None" not in out


UNKNOWN = {
    "modls": "modls: there is no such command; did you mean `vitreous models`?",
    "score": "score: there is no such command; did you mean `vitreous score-explanations`?",
    "train": "train: there is no such command; did you mean `vitreous fit`?",
    "zzz": "zzz: there is no such command; `vitreous --help` lists the commands.",
    "--zzz": "--zzz: there is no such option; `vitreous --help` lists the commands.",
}


@pytest.mark.parametrize(("word", "says"), UNKNOWN.items())
def test_an_unknown_verb(capsys, word, says):
    assert run(capsys, word, "x") == (2, "", f"vitreous: {says}\n")


def test_without_a_verb_the_list_is_on_stderr(capsys):
    status, out, err = run(capsys)
    assert (status, out) == (2, "")
    assert VERBS["predict"] in err


def test_shell_completion_knows_every_verb(capsys):
    status, out, _ = run(capsys, "--tyro-print-completion", "bash")
    assert status == 0
    assert all(f"'{word}'" in out for verb in VERBS for word in verb.split())
    assert "--masks" in out


MISTAKES = {
    ("models", "Q/16"): "model 'Q/16': write SIZE/PATCH",
    ("models", "B/16", "--image-size", "100"): "the nearest that work are 96 and 112",
    ("models", "--image-size", "0"): "--image-size 0: give a whole number of at least 1",
}


@pytest.mark.parametrize(("args", "says"), MISTAKES.items())
def test_a_mistake_ends_with_one_sentence_and_status_2(capsys, args, says):
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("args", [("models", "--image-size", "big"), ("models", "--masks", "m"), ("probe", "b")])
def test_what_cannot_be_parsed_ends_with_status_2(capsys, args):
    status, out, err = run(capsys, *args)
    assert status == 2
    assert "Traceback" not in out + err


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return str(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("pictures") / "p")


def test_predict_prints_a_line_a_picture(capsys, bundle, pictures):
    status, out, err = run(capsys, "predict", bundle, str(pictures), "--top", "2")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 12
    path, rest = lines[0].split("  ", 1)
    assert path == str(pictures / "blue" / "0.png")
    assert rest.startswith("blue ")
    assert rest.count("%") == 2


def test_predict_as_json_with_a_picture_that_cannot_be_read(capsys, bundle, pictures, tmp_path):
    (tmp_path / "bad [1].jpg").write_text("text")
    status, out, _ = run(capsys, "predict", bundle, str(tmp_path), str(pictures / "red"), "--json")
    assert status == 1
    bad, *good = (json.loads(line) for line in out.splitlines())
    assert bad["path"] == str(tmp_path / "bad [1].jpg")
    assert set(bad) == {"path", "error"}
    assert [one["label"] for one in good] == ["red"] * 4
    assert set(good[0]) == {"path", "label", "score", "top"}


def test_predict_says_on_stderr_what_it_could_not_read(capsys, bundle, pictures, tmp_path):
    picture = str(pictures / "red" / "0.png")
    status, out, err = run(capsys, "predict", bundle, str(tmp_path / "no\nne.jpg"), picture)
    assert status == 1
    assert out.startswith(f"{picture}  red ")
    assert err == f"vitreous: {tmp_path}/no\\nne.jpg: there is no such file; check the path.\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_unicode(capsys, bundle, pictures, tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff\xfe.png"
    with open(name, "wb") as file:  # noqa: PTH123
        file.write((pictures / "red" / "0.png").read_bytes())
    status, out, _ = run(capsys, "predict", bundle, str(tmp_path))
    assert (status, "\\udcff\\udcfe.png  red" in out) == (0, True)
    _, out, _ = run(capsys, "predict", bundle, str(tmp_path), "--json")
    assert os.fsencode(json.loads(out)["path"]) == name


def test_a_reader_that_wants_no_more_is_not_an_error_to_shout_about(bundle, pictures):
    run_it = f"{sys.executable} -c 'from vitreous.cli import main; main()' predict {bundle} {pictures} --batch-size 1"
    done = subprocess.run(f"{run_it} | head -n 1", shell=True, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_evaluate_prints_figures_classes_and_pairs(capsys, bundle, pictures):
    status, out, err = run(capsys, "evaluate", bundle, str(pictures))
    assert (status, err) == (0, "")
    assert "12 pictures of 3 classes (all)" in out
    assert "top-1 accuracy     100.00%" in out
    assert "predicted as" not in out


def test_evaluate_shows_what_is_confused(capsys, pictures, tmp_path):
    mixed = make_bundle(tmp_path / "b", labels=("green", "blue", "red"))
    _, out, _ = run(capsys, "evaluate", str(mixed), str(pictures))
    assert ["blue", "green", "4", "100.0%"] in [line.split() for line in out.splitlines()]


def test_evaluate_writes_answers_and_takes_several_labels(capsys, bundle, pictures, tmp_path):
    status, out, _ = run(capsys, "evaluate", bundle, str(pictures), "--answers", str(tmp_path / "a.csv"))
    assert (status, out.splitlines()[-1]) == (0, f"the answer to each picture: {tmp_path / 'a.csv'}")
    names = {path.name for path in pictures.rglob("*.png")}
    (tmp_path / "l.json").write_text(json.dumps({name: [0, 1, 2] for name in names}))
    status, out, _ = run(capsys, "evaluate", bundle, str(pictures), "--labels", str(tmp_path / "l.json"))
    assert status == 0
    assert "any-label accuracy  100.00%" in out
    assert "3.00 labels each" in out


def test_evaluate_under_corruptions(capsys, bundle, pictures):
    words = ("evaluate", bundle, str(pictures), "--corruptions", "--count", "2", "--workers", "0")
    status, out, _ = run(capsys, *words, "--severity", "2,5")
    assert status == 0
    assert "each as it is and in 30 corruptions of what the model sees" in out
    assert "drawn at random by seed 0" in out
    assert "mean corruption error" in out
    assert out.count("procedural") == 0  # --json and the page say what differs
    for more, says in {
        ("--severity", "6"): "--severity 6: give numbers from 1 to 5",
        ("--answers", "a.csv"): "--answers a.csv: this is possible only without --corruptions",
    }.items():
        status, _, err = run(capsys, *words, *more)
        assert status == 2
        assert says in err
    status, _, err = run(capsys, "evaluate", bundle, str(pictures), "--count", "3")
    assert "--count 3: this is possible only with --corruptions" in err


def test_evaluate_as_json(capsys, bundle, pictures):
    status, out, _ = run(capsys, "evaluate", bundle, str(pictures), "--json")
    assert status == 0
    said = json.loads(out)
    assert (said["n"], said["top1"]) == (12, 1.0)
    assert said["confusion"] == [[4, 0, 0], [0, 4, 0], [0, 0, 4]]
    assert {"top5", "ece", "per_class", "most_confused", "top1_interval"} <= set(said)


def test_inspect_is_readable_and_json(capsys, pictures, tmp_path):
    make_pictures(tmp_path / "p" / "train", count=2)
    make_pictures(tmp_path / "p" / "test", count=1)  # all of it is in train too
    (tmp_path / "p" / "train" / "red" / "1.png").write_bytes(b"")
    status, out, _ = run(capsys, "inspect", str(tmp_path / "p"))
    assert status == 0
    assert "9 pictures of 3 classes" in out
    assert "1 cannot be read:" in out
    assert "1.png: the file is empty" in out
    assert "3 in more than one split" in out
    said = json.loads(run(capsys, "inspect", str(tmp_path / "p"), "--json")[1])
    assert len(said["leaks"]) == 3
    assert "there are no duplicates" in run(capsys, "inspect", str(pictures))[1]


def test_mistakes_of_the_other_verbs(capsys, bundle, pictures, tmp_path):
    (tmp_path / "empty").mkdir()
    for args, says in {
        ("predict", str(tmp_path / "none"), "x.jpg"): "none: there is nothing of this name; give a bundle folder",
        ("predict", str(tmp_path / "empty"), "x.jpg"): "empty: no weights in it",
        ("predict", bundle): "no pictures: give at least one",
        ("predict", bundle, "x.jpg", "--preprocess", "colour=1"): "'colour' is not one of",
        ("evaluate", bundle, str(tmp_path / "empty")): "empty: there are no pictures here",
        ("evaluate", bundle, str(pictures), "--split", "test"): "split='test': the data have only train",
        ("evaluate", bundle, "builtin", "--engine", "torch"): "the data have it and the model does not",
        ("evaluate", bundle, str(pictures), "--batch-size", "0"): "--batch-size 0: give a whole number of at least 1",
        ("inspect", str(tmp_path / "none")): "none: there is nothing of this name",
    }.items():
        status, out, err = run(capsys, *args)
        assert (status, out) == (2, ""), args
        assert says in err
        assert err.count("\n") == 1
