"""Data and images that no reader should trust, with every verb that takes them: one sentence each, in little memory."""

import re

import pytest

from support.colours import make_bundle, make_images
from support.commands import MB, SECONDS, check_ended_well, check_refused, run_command
from support.hostile_data import DATA, IMAGE_FILES, JPEG, PLACES, WITHOUT_LABELS, make_image, sparse, special, tree
from vitreous.data import levels

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
    "transfer": lambda model, data: ("transfer", model, "--tasks", data, "--protocols", "knn", "--out", "run"),
    "score-explanations": lambda model, data: ("score-explanations", model, data),
}
MEMORY_IS_NAMED = ("csv of terabytes", "idx.gz, claims terabytes", "cifar, petabytes")
NEEDS_LABELS = ("inspect", "fit", "evaluate", "probe")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A bundle that tells three colours apart."""
    return make_bundle(tmp_path_factory.mktemp("model") / "bundle")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """{case: (its own folder, the hostile data in it)}."""
    found = {}
    for number, (case, make) in enumerate(DATA.items()):
        folder = tmp_path_factory.mktemp(f"case-{number}")
        found[case] = folder, make(folder)
    return found


@pytest.mark.parametrize(
    "verb", ["inspect", *(pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS if verb != "inspect")]
)
def test_data(model, places, subtests, verb):
    for case, (folder, place) in places.items():
        with subtests.test(case):
            before = sorted(path.name for path in folder.iterdir())
            outcome = run_command(*VERBS[verb](model, place), cwd=folder)
            check_refused(outcome, "x" * 10 if case == "a long name" else place.name.split("\n")[0])
            assert "ran" not in before
            if verb == "analyze" and (folder / "out").exists():
                (folder / "out").rmdir()
            assert sorted(path.name for path in folder.iterdir()) == before, "nothing is left"
            if case in MEMORY_IS_NAMED:
                assert len(re.findall(r" \d[\d.,]* ", outcome.stderr.rpartition(": ")[2])) == 2, (
                    "needed and available memory"
                )


def test_data_without_labels(model, tmp_path, subtests):
    for case, make in WITHOUT_LABELS.items():
        (tmp_path / case).mkdir()
        place = make(tmp_path / case)
        for verb in NEEDS_LABELS:
            with subtests.test(case, verb=verb):
                check_refused(run_command(*VERBS[verb](model, place), cwd=tmp_path), place.name)


def test_no_data(model, tmp_path, subtests):
    for verb, arguments in VERBS.items():
        with subtests.test(verb):
            check_refused(run_command(*arguments(model, ""), cwd=tmp_path), "''")


def make_hostile(case, path):
    """A file, or something else at its path."""
    if case in PLACES:
        special(path, case)
    elif case == "terabytes":
        sparse(path, 10**12, JPEG)
    else:
        path.write_bytes(IMAGE_FILES[case])
    return path


def check_told(outcome, name, statuses=(1, 2)):
    """One sentence that names the image."""
    check_ended_well(outcome, seconds=SECONDS, memory=200 * MB)
    assert outcome.status in statuses, outcome
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("vitreous: "), lines
    assert name in lines[0]


@pytest.mark.parametrize("verb", ["predict", "explain", "walkthrough"])
def test_an_image(model, tmp_path, subtests, verb):
    more = {"predict": (), "explain": ("--out", "maps"), "walkthrough": ("--out", "page.html")}[verb]
    for case in (*IMAGE_FILES, *PLACES, "terabytes"):
        with subtests.test(case):
            folder = tmp_path / case
            folder.mkdir()
            outcome = run_command(verb, model, make_hostile(case, folder / "hostile.jpg"), *more, cwd=folder)
            check_told(outcome, "hostile.jpg")
            assert not (folder / "page.html").exists()


def test_an_image_among_good_ones_is_left_out_and_named(model, tmp_path, subtests):
    data = make_images(tmp_path / "data")
    for case in (*IMAGE_FILES, "loop", "broken", "terabytes"):
        with subtests.test(case):
            hostile = make_hostile(case, data / "red" / "hostile.jpg")
            outcome = run_command("evaluate", model, data, "--workers", 0)
            hostile.unlink()
            check_told(outcome, "hostile.jpg", statuses=(0,))
            assert re.search(r"(?<![\d.,])12 ", outcome.stdout)


def test_what_is_no_file_is_passed_over_and_counted(tmp_path, subtests):
    for kind in ("pipe", "socket", "device"):
        with subtests.test(kind):
            data = tree(tmp_path / kind / "data")
            special(data / "a" / "x.png", kind)
            (data / "b" / "new.jxl").write_bytes(b"x")
            outcome = run_command("inspect", data)
            check_ended_well(outcome, seconds=SECONDS, memory=200 * MB)
            assert outcome.status == 0
            assert f"1 .jxl, 1 {kind}" in outcome.stdout


def test_an_empty_folder_among_others_is_named(model, tmp_path, subtests):
    (tmp_path / "empty").mkdir()
    (tmp_path / "good.png").write_bytes(make_image())
    for verb, more in {"predict": (), "explain": ("--out", "maps")}.items():
        with subtests.test(verb):
            outcome = run_command(verb, model, tmp_path / "empty", tmp_path / "good.png", *more, cwd=tmp_path)
            check_told(outcome, str(tmp_path / "empty"), statuses=(0,))
            assert "good" in outcome.stdout
            check_refused(run_command(verb, model, tmp_path / "empty", *more, cwd=tmp_path), "empty")


def test_jpegs_without_their_end_are_read_and_one_is_named(model, tmp_path, subtests):
    for lost in (1, 2):
        data = tmp_path / str(lost)
        for k, name in enumerate(("red", "blue", "blue")):
            (data / name).mkdir(parents=True, exist_ok=True)
            (data / name / f"{k}.jpg").write_bytes(make_image("JPEG", seed=k)[:-lost])
        for verb, more in {"predict": (model,), "evaluate": (model,), "inspect": ()}.items():
            with subtests.test(verb, lost=lost):
                levels._LOGGED_BY[:] = bytes(8)  # a command of its own: nothing was said before
                outcome = run_command(verb, *more, data)
                check_ended_well(outcome, seconds=5, memory=200 * MB)
                assert outcome.status == 0
                assert outcome.stderr.count(".jpg: ") == 1, outcome.stderr
