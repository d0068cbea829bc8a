"""Data and pictures that no reader should trust, over every verb that takes them: one sentence each, in time."""

import pytest

from support.colours import make_bundle, make_pictures
from support.commands import MB, SECONDS, check_ended_well, check_refused
from support.hostile_data import DATA, JPEG, PICTURES, PLACES, WITHOUT_LABELS, picture, sparse, special, tree

VERBS = {
    "inspect": lambda model, data: ("inspect", data),
    "fit": lambda model, data: ("fit", data, "--out", "run", "--epochs", 1, "--workers", 0),
    "evaluate": lambda model, data: ("evaluate", model, data, "--workers", 0),
    "probe": lambda model, data: ("probe", model, data, "--workers", 0),
    "pretrain": lambda model, data: ("pretrain", data, "--out", "run", "--epochs", 1, "--workers", 0),
    "self-train": lambda model, data: ("self-train", data, "builtin", "--out", "run", "--epochs", 1, "--workers", 0),
    "data pack": lambda model, data: ("data", "pack", data, "packed"),
    "analyze": lambda model, data: ("analyze", model, "--data", data, "--out", "out"),
    "compare": lambda model, data: ("compare", data, "--models", "Ti/16,bit-r50x1", "--budget", "9h", "--out", "run"),
    "transfer": lambda model, data: ("transfer", model, "--tasks", data, "--protocol", "knn", "--out", "run"),
    "score-explanations": lambda model, data: ("score-explanations", model, data),
}
TOLD_WITH_NUMBERS = ("csv of terabytes", "idx.gz, claims terabytes", "cifar, petabytes")
LABELLED = ["inspect", "fit", "evaluate", "probe"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A bundle that tells three colours apart."""
    return make_bundle(tmp_path_factory.mktemp("model") / "bundle")


def others(number):
    """`inspect`, and in turn one of the others: so every verb sees many cases, and none of them all."""
    rest = [verb for verb in VERBS if verb != "inspect"]
    return ["inspect", rest[number % len(rest)]]


@pytest.mark.parametrize(("case", "verb"), [(case, verb) for k, case in enumerate(DATA) for verb in others(k)])
def test_data(processes, model, tmp_path, case, verb):
    place = DATA[case](tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    outcome = processes(*VERBS[verb](model, place), cwd=tmp_path)
    name = "x" * 10 if case == "a long name" else place.name.split("\n")[0]
    check_refused(outcome, name)
    assert sorted(path.name for path in tmp_path.iterdir()) in (before, sorted([*before, "out"])), "nothing is left"
    if case in TOLD_WITH_NUMBERS:
        assert "of memory, and there are" in outcome.stderr, "both numbers are told"


@pytest.mark.parametrize("verb", LABELLED)
@pytest.mark.parametrize("case", WITHOUT_LABELS)
def test_data_without_labels(processes, model, tmp_path, case, verb):
    place = WITHOUT_LABELS[case](tmp_path)
    check_refused(processes(*VERBS[verb](model, place), cwd=tmp_path), place.name)


@pytest.mark.parametrize("verb", VERBS)
def test_no_data(processes, model, tmp_path, verb):
    check_refused(processes(*VERBS[verb](model, ""), cwd=tmp_path), "'': empty")


def make_hostile(case, path):
    """A file, or what stands in the place of one."""
    if case in PLACES:
        special(path, case)
    elif case == "terabytes":
        sparse(path, 10**12, JPEG)
    else:
        path.write_bytes(PICTURES[case])
    return path


def check_told(outcome, name, statuses=(1, 2)):
    """One sentence that names the picture."""
    check_ended_well(outcome, seconds=SECONDS, memory=200 * MB)
    assert outcome.status in statuses, outcome
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("vitreous: "), lines
    assert name in lines[0]


@pytest.mark.parametrize("case", [*PICTURES, *PLACES, "terabytes"])
@pytest.mark.parametrize("verb", ["predict", "explain", "walkthrough"])
def test_a_picture(processes, model, tmp_path, case, verb):
    path = make_hostile(case, tmp_path / "hostile.jpg")
    more = {"predict": (), "explain": ("--out", "maps"), "walkthrough": ("--out", "page.html")}[verb]
    outcome = processes(verb, model, path, *more, cwd=tmp_path)
    check_told(outcome, "hostile.jpg")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("case", [*PICTURES, "loop", "broken", "terabytes"])
def test_a_picture_among_good_ones(processes, model, tmp_path, case):
    """It is left out and told of; the others are measured."""
    data = make_pictures(tmp_path / "data")
    make_hostile(case, data / "red" / "hostile.jpg")
    outcome = processes("evaluate", model, data, "--workers", 0)
    check_told(outcome, "hostile.jpg", statuses=(0,))
    assert "12 pictures" in outcome.stdout


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_is_passed_over_and_counted(processes, tmp_path, kind):
    data = tree(tmp_path / "data")
    special(data / "a" / "x.png", kind)
    (data / "b" / "new.avif").write_bytes(b"x")
    outcome = processes("inspect", data)
    check_ended_well(outcome, seconds=SECONDS, memory=200 * MB)
    assert outcome.status == 0
    assert f"passed over 1 .avif, 1 {kind}" in outcome.stdout


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_an_empty_folder_among_others_is_said(processes, model, tmp_path, verb):
    (tmp_path / "empty").mkdir()
    (tmp_path / "good.png").write_bytes(picture())
    more = ("--out", "maps") if verb == "explain" else ()
    outcome = processes(verb, model, tmp_path / "empty", tmp_path / "good.png", *more, cwd=tmp_path)
    check_ended_well(outcome, seconds=5, memory=200 * MB)
    assert outcome.status == 0
    assert "empty: there are no pictures here" in outcome.stderr
    assert "good" in outcome.stdout
    check_refused(processes(verb, model, tmp_path / "empty", *more, cwd=tmp_path), "empty")


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("verb", ["predict", "evaluate", "inspect"])
def test_jpegs_without_their_end_are_taken_and_said_once(processes, model, tmp_path, verb, lost):
    for k, name in enumerate(("red", "blue", "blue")):
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name / f"{k}.jpg").write_bytes(picture("JPEG", seed=k)[:-lost])
    more = {"predict": (model,), "evaluate": (model,), "inspect": ()}[verb]
    outcome = processes(verb, *more, tmp_path / "data")
    check_ended_well(outcome, seconds=5, memory=200 * MB)
    assert outcome.status == 0
    assert outcome.stderr.count("without its end marker") == 1, outcome.stderr
