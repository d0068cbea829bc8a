"""Nothing of a person's is lost: every verb that writes, aimed at what is not ours."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.commands import check_ended_well, check_refused
from support.greys import draw_pictures, make_weights, quick_fit

PRECIOUS = {
    "a text": b"years of work",
    "a photo": None,  # a real JPEG, made below
    "a page of somebody's": b"<!doctype html>\n<html><head><title>vitreous 0.1.0</title></head></html>",
    "numbers of somebody's": b'{"name": "vitreous 0.1.0", "accuracy": 0.9}',
    "an archive of somebody's": None,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pictures, weights, and a run of one epoch on them."""
    root = tmp_path_factory.mktemp("place")
    draw_pictures(root / "pictures", count=9)
    draw_pictures(root / "others", count=2, side=21)
    make_weights(root / "weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.jobs.fit.write_report", lambda run, seconds=None: None)
        quick_fit(root / "pictures", root / "weights", root / "run")
    return root


def write_precious(path, kind):
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "a photo":
        Image.effect_noise((60, 40), 50).save(path, "JPEG")
    elif kind == "an archive of somebody's":
        with path.open("wb") as file:
            np.savez(file, **{"embedding/kernel": np.zeros(3)})
    else:
        path.write_bytes(PRECIOUS[kind])


def held(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def verbs(place, out):
    """Every verb that writes: what it is told, and the file that it would write."""
    picture, pictures, weights = place / "pictures/dark/0.png", place / "pictures", place / "weights"
    return {
        "report": (["report", weights, "--out", out / "x.html"], "x.html"),
        "report, a strange name": (["report", weights, "--out", out / "x.jpg"], "x.jpg"),
        "report of a run": (["report", place / "run", "--out", out / "x"], "x"),
        "export to google": (["export", weights, out / "x.npz", "--to", "google"], "x.npz"),
        "analyze, page": (["analyze", weights, "--data", pictures, "--out", out], "analysis.html"),
        "analyze, numbers": (["analyze", weights, "--data", pictures, "--out", out], "analysis.json"),
        "analyze, bias": (["analyze", weights, "--data", pictures, "--what", "bias", "--out", out], "bias.json"),
        "evaluate, answers": (["evaluate", place / "run", pictures, "--answers", out / "x.csv"], "x.csv"),
        "evaluate, page": (
            ["evaluate", place / "run", pictures, "--corruptions", "--severity", "1", "--count", "2", "--out", out],
            "corruptions.html",
        ),
        "explain": (["explain", weights, picture, "--out", out], "0-relevance.png"),
        "explain, arrays": (["explain", weights, picture, "--save-arrays", "--out", out], "0-relevance.npz"),
        "walkthrough": (["walkthrough", weights, picture, "--out", out], "0-walkthrough.html"),
        "plot-weights": (["plot-weights", weights, "--out", out], "filters.svg"),
        "plot-weights, png": (["plot-weights", weights, "--out", out], "positions.png"),
    }


FILE_VERBS = list(verbs(Path(), Path()))


@pytest.mark.parametrize("kind", PRECIOUS)
@pytest.mark.parametrize("verb", FILE_VERBS)
def test_a_file_of_a_persons_is_not_replaced(processes, place, tmp_path, verb, kind):
    words, name = verbs(place, tmp_path / "out")[verb]
    write_precious(tmp_path / "out" / name, kind)
    before = held(tmp_path)
    check_refused(processes(*words), name)
    assert held(tmp_path) == before


@pytest.mark.parametrize("verb", FILE_VERBS)
def test_a_folder_in_its_place_leaves_no_debris(processes, place, tmp_path, verb):
    words, name = verbs(place, tmp_path / "out")[verb]
    (tmp_path / "out" / name).mkdir(parents=True)
    before = held(tmp_path)
    check_refused(processes(*words), name)
    assert held(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("verb", FILE_VERBS)
def test_what_the_verb_wrote_before_is_replaced(processes, place, tmp_path, verb):
    """Else it could not be repeated; and an empty file, as mktemp makes, is as good as none."""
    words, name = verbs(place, tmp_path / "out")[verb]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).touch()
    for _ in range(2):
        outcome = processes(*words)
        check_ended_well(outcome, seconds=30, memory=2**31)
        assert outcome.status == 0, outcome.stderr
    assert (tmp_path / "out" / name).stat().st_size > 100


NO_NAME = {
    "fit": ["fit", "PICTURES", "--weights", "WEIGHTS", "--out"],
    "pretrain": ["pretrain", "PICTURES", "--out"],
    "compare": ["compare", "PICTURES", "--models", "F/4@16", "--budget", "9h", "--out"],
    "self-train": ["self-train", "PICTURES", "OTHERS", "--out"],
    "transfer": ["transfer", "WEIGHTS", "--tasks", "PICTURES", "--protocol", "knn", "--out"],
    "report": ["report", "WEIGHTS", "--out"],
    "analyze": ["analyze", "WEIGHTS", "--data", "PICTURES", "--out"],
    "explain": ["explain", "WEIGHTS", "PICTURE", "--out"],
    "walkthrough": ["walkthrough", "WEIGHTS", "PICTURE", "--out"],
    "plot-weights": ["plot-weights", "WEIGHTS", "--out"],
    "import": ["import", "WEIGHTS"],
    "export to timm": ["export", "WEIGHTS", "--to", "timm"],
    "export to google": ["export", "WEIGHTS", "--to", "google"],
}


def fill(words, place):
    paths = {"PICTURES": "pictures", "OTHERS": "others", "WEIGHTS": "weights", "PICTURE": "pictures/dark/0.png"}
    return [place / paths[word] if word in paths else word for word in words]


@pytest.mark.parametrize("verb", NO_NAME)
@pytest.mark.parametrize("out", ["", "loop", "x" * 300, "file", "file/below"])
def test_a_name_that_is_none(processes, place, tmp_path, verb, out):
    """Empty, a link to itself, too long, a file where a folder must be: refused, and nothing is left behind."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("precious")
    before = sorted(path.name for path in tmp_path.iterdir())
    check_refused(processes(*fill(NO_NAME[verb], place), out, cwd=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "precious"


FOLDER_VERBS = {
    "fit": ["fit", "PICTURES", "--weights", "WEIGHTS", "--epochs", "1", "--workers", "0", "--out"],
    "pretrain": ["pretrain", "PICTURES", "--epochs", "1", "--workers", "0", "--out"],
    "self-train": ["self-train", "PICTURES", "OTHERS", "--epochs", "1", "--workers", "0", "--out"],
    "transfer": ["transfer", "WEIGHTS", "--tasks", "PICTURES", "--protocol", "knn", "--workers", "0", "--out"],
    "import": ["import", "WEIGHTS"],
    "export to timm": ["export", "WEIGHTS", "--to", "timm"],
    "export to huggingface": ["export", "WEIGHTS", "--to", "huggingface"],
}
FOREIGN = {
    "a thesis": {"thesis.txt": "x"},
    "a bundle of a person's": {"bundle/thesis.txt": "x"},
    "a page": {"report.html": "x"},
    "a log": {"metrics.jsonl": "x"},
    "a configuration": {"config.json": "{}"},
    "a manifest of another program": {"manifest.json": '{"name": "app", "icons": []}', "model.safetensors": "x"},
    "a manifest like ours": {"manifest.json": '{\n  "format": 1,\n  "files": {}\n}\n', "thesis.txt": "x"},
    "a model of another program": {"config.json": "{}", "model.safetensors": "x", "manifest.json": "{}"},
    "a hidden file": {".git/HEAD": "x"},
    "a checkpoint": {"checkpoints/step-00000001/model.pt": "x"},
}


@pytest.mark.parametrize("verb", FOLDER_VERBS)
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_folder_of_a_persons_is_not_replaced(processes, place, tmp_path, verb, kind):
    out = tmp_path / "out"
    for name, text in FOREIGN[kind].items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    before = held(tmp_path)
    check_refused(processes(*fill(FOLDER_VERBS[verb], place), out), "out")
    assert held(tmp_path) == before


@pytest.mark.parametrize("verb", ["import", "export to timm", "export to huggingface"])
@pytest.mark.parametrize("change", ["a word", "one more", "one more below", "one less", "a link"])
def test_what_a_person_changed_in_it_is_not_replaced(processes, place, tmp_path, verb, change):
    out = tmp_path / "out"
    words = fill(FOLDER_VERBS[verb], place)
    assert processes(*words, out).status == 0
    assert processes(*words, out).status == 0
    if change == "a word":
        (out / "config.json").write_text((out / "config.json").read_text().replace("{", "{ ", 1))
    elif change == "one less":
        (out / "config.json").unlink()
    elif change == "a link":
        (out / "config.json").rename(tmp_path / "c")
        (out / "config.json").symlink_to(tmp_path / "c")
    else:
        more = out / ("notes.txt" if change == "one more" else "sub/notes.txt")
        more.parent.mkdir(exist_ok=True)
        more.write_text("precious")
    before = held(tmp_path)
    check_refused(processes(*words, out), "out")
    assert held(tmp_path) == before


@pytest.mark.parametrize("out", ["pictures", "pictures/run", "pictures/dark", "pictures/dark/run", "."])
@pytest.mark.parametrize("verb", ["fit", "pretrain", "self-train"])
def test_pictures_and_runs_are_not_mixed(processes, place, tmp_path, verb, out):
    data = shutil.copytree(place / "pictures", tmp_path / "pictures")
    before = held(tmp_path)
    words = [data if word == "PICTURES" else word for word in FOLDER_VERBS[verb]]
    check_refused(processes(*fill(words, place), tmp_path / out, cwd=tmp_path))
    assert held(tmp_path) == before


def test_a_page_within_a_run_is_the_runs_own(processes, place, tmp_path):
    """Also one that an earlier version wrote, without a mark."""
    run = shutil.copytree(place / "run", tmp_path / "run")
    (run / "report.html").write_text("<!doctype html>\n<html><head></head></html>")
    outcome = processes("report", run)
    assert outcome.status == 0, outcome.stderr
    assert '<meta name="generator" content="vitreous ' in (run / "report.html").read_text()[:400]
    numbers = json.loads((run / "result.json").read_text())
    assert numbers["finished"]
