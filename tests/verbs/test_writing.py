"""Files and folders of a person survive: every verb that writes is pointed at what vitreous did not write."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from support.commands import check_ended_well, check_refused, run_command
from support.greys import draw_images, make_weights, quick_fit


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images, weights, and a run of two epochs on them."""
    root = tmp_path_factory.mktemp("place")
    draw_images(root / "images", count=9)
    draw_images(root / "others", count=2, side=21)
    make_weights(root / "weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.training.train.write_run_page", lambda *_: None)
        quick_fit(root / "images", root / "weights", root / "run")
    return root


def fill(words, place, out=None):
    """The words of a command with the paths that they stand for."""
    paths = {
        "IMAGES": place / "images",
        "OTHERS": place / "others",
        "WEIGHTS": place / "weights",
        "RUN": place / "run",
        "IMAGE": place / "images/dark/0.png",
    }
    return [paths.get(word, word.replace("OUT", str(out))) for word in words.split()]


def held(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


FILE_VERBS = {
    "report": ("report WEIGHTS --out OUT/x.html", ["x.html"]),
    "report, a strange name": ("report WEIGHTS --out OUT/x.jpg", ["x.jpg"]),
    "report of a run": ("report RUN --out OUT/x", ["x"]),
    "export to google": ("export WEIGHTS OUT/x.npz --to google", ["x.npz"]),
    "analyze": ("analyze WEIGHTS --data IMAGES --out OUT", ["analysis.html", "analysis.json"]),
    "analyze, bias": ("analyze WEIGHTS --data IMAGES --what bias --out OUT", ["bias.json"]),
    "evaluate, answers": ("evaluate RUN IMAGES --out OUT/x.csv", ["x.csv"]),
    "evaluate, page": (
        "evaluate RUN IMAGES --corruptions --severities 1 --count 2 --workers 0 --out OUT",
        ["corruptions.html"],
    ),
    "explain": ("explain WEIGHTS IMAGE --out OUT", ["0-relevance.png"]),
    "explain, arrays": ("explain WEIGHTS IMAGE --save-arrays --out OUT", ["0-relevance.npz"]),
    "walkthrough": ("walkthrough WEIGHTS IMAGE --out OUT", ["0-walkthrough.html"]),
    "plot-weights": ("plot-weights WEIGHTS --out OUT", ["filters.svg", "positions.png"]),
}
"""Every verb that writes files: its command, and files that it writes."""
FILES = [(verb, words, name) for verb, (words, names) in FILE_VERBS.items() for name in names]


@pytest.fixture(scope="module")
def precious(tmp_path_factory):
    """Contents that look more or less like what vitreous writes, and are somebody else's."""
    root = tmp_path_factory.mktemp("precious")
    Image.effect_noise((60, 40), 50).save(root / "photo.jpg")
    np.savez(root / "archive.npz", **{"embedding/kernel": np.zeros(3)})
    return {
        "text": b"years of work",
        "photo": (root / "photo.jpg").read_bytes(),
        "page": b"<!doctype html>\n<html><head><title>vitreous 0.1.0</title></head></html>",
        "numbers": b'{"name": "vitreous 0.1.0", "accuracy": 0.9}',
        "archive": (root / "archive.npz").read_bytes(),
    }


def test_a_file_of_a_person_is_not_replaced(place, precious, tmp_path, subtests):
    for number, (verb, words, name) in enumerate(FILES):
        for kind, content in precious.items():
            with subtests.test(f"{verb}, {name}: {kind}"):
                out = tmp_path / f"{number}-{kind}"
                out.mkdir()
                (out / name).write_bytes(content)
                check_refused(run_command(*fill(words, place, out)), name)
                assert held(out) == {name: content}


def test_a_folder_with_the_name_of_the_file_leaves_no_debris(place, tmp_path, subtests):
    for number, (verb, words, name) in enumerate(FILES):
        with subtests.test(f"{verb}, {name}"):
            out = tmp_path / str(number)
            (out / name).mkdir(parents=True)
            check_refused(run_command(*fill(words, place, out)), name)
            assert held(out) == {name: False}


@pytest.mark.slow
def test_json_names_the_files(place, tmp_path, subtests):
    for verb in ("report", "export to google", "explain", "walkthrough", "evaluate, answers"):
        with subtests.test(verb):
            words, names = FILE_VERBS[verb]
            out = tmp_path / verb.partition(",")[0]
            out.mkdir()
            found = json.loads(run_command(*fill(words, place, out), "--json").stdout)
            assert str(out / names[0]) in json.dumps(found)


@pytest.mark.slow
def test_what_the_verb_wrote_before_is_replaced(place, tmp_path, subtests):
    """Else it could not be repeated; an empty file, as mktemp makes, is replaced too."""
    for number, (verb, (words, names)) in enumerate(FILE_VERBS.items()):
        with subtests.test(verb):
            out = tmp_path / str(number)
            out.mkdir()
            for name in names:
                (out / name).touch()
            for _ in range(2):
                outcome = run_command(*fill(words, place, out))
                check_ended_well(outcome, seconds=30, memory=2**31)
                assert outcome.status == 0, outcome.stderr
            assert all((out / name).stat().st_size > 100 for name in names)


OUT_LAST = {
    "fit": "fit IMAGES --weights WEIGHTS --out",
    "pretrain": "pretrain IMAGES --out",
    "compare": "compare IMAGES --models F/4@16 --budget 9h --out",
    "self-train": "self-train IMAGES OTHERS --out",
    "transfer": "transfer WEIGHTS --tasks IMAGES --protocols knn --out",
    "report": "report WEIGHTS --out",
    "analyze": "analyze WEIGHTS --data IMAGES --out",
    "explain": "explain WEIGHTS IMAGE --out",
    "walkthrough": "walkthrough WEIGHTS IMAGE --out",
    "plot-weights": "plot-weights WEIGHTS --out",
    "import": "import WEIGHTS",
    "export to timm": "export WEIGHTS --to timm",
    "export to google": "export WEIGHTS --to google",
}
NO_NAMES = {"empty": "", "a link to itself": "loop", "long": "x" * 300, "a file": "file", "below a file": "file/below"}


def test_a_name_that_nothing_can_have(place, tmp_path, subtests):
    """Refused, and nothing is left behind."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("precious")
    for verb, words in OUT_LAST.items():
        for kind, name in NO_NAMES.items():
            with subtests.test(f"{verb}: {kind}"):
                check_refused(run_command(*fill(words, place), name, cwd=tmp_path))
                assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]
                assert (tmp_path / "file").read_text() == "precious"


FOLDER_VERBS = {
    "fit": "fit IMAGES --weights WEIGHTS --epochs 1 --workers 0 --out OUT",
    "pretrain": "pretrain IMAGES --epochs 1 --workers 0 --out OUT",
    "self-train": "self-train IMAGES OTHERS --epochs 1 --workers 0 --out OUT",
    "transfer": "transfer WEIGHTS --tasks IMAGES --protocols knn --workers 0 --out OUT",
    "import": "import WEIGHTS OUT",
    "export to timm": "export WEIGHTS --to timm OUT",
    "export to huggingface": "export WEIGHTS --to huggingface OUT",
}
FOREIGN = {
    "a thesis": {"thesis.txt": "x"},
    "a bundle with more": {"bundle/thesis.txt": "x"},
    "a page": {"report.html": "x"},
    "a log": {"metrics.jsonl": "x"},
    "a configuration": {"config.json": "{}"},
    "a manifest of another program": {"manifest.json": '{"name": "app", "icons": []}', "model.safetensors": "x"},
    "a manifest like ours": {"manifest.json": '{\n  "format": 1,\n  "files": {}\n}\n', "thesis.txt": "x"},
    "a model of another program": {"config.json": "{}", "model.safetensors": "x", "manifest.json": "{}"},
    "a hidden file": {".git/HEAD": "x"},
    "a checkpoint": {"checkpoints/step-00000001/model.pt": "x"},
}


def test_a_folder_of_a_person_is_not_replaced(place, tmp_path, subtests):
    for verb, words in FOLDER_VERBS.items():
        for kind, files in FOREIGN.items():
            with subtests.test(f"{verb}: {kind}"):
                out = tmp_path / f"{verb} {kind}" / "out"
                for name, text in files.items():
                    (out / name).parent.mkdir(parents=True, exist_ok=True)
                    (out / name).write_text(text)
                before = held(out.parent)
                check_refused(run_command(*fill(words, place, out)), "out")
                assert held(out.parent) == before


def change_a_word(out):
    (out / "config.json").write_text((out / "config.json").read_text().replace("{", "{ ", 1))


def add_below(out):
    (out / "sub").mkdir()
    (out / "sub" / "notes.txt").write_text("precious")


def make_a_link(out):
    (out / "config.json").rename(out.parent / "c")
    (out / "config.json").symlink_to(out.parent / "c")


CHANGES = {
    "a word": change_a_word,
    "one more": lambda out: (out / "notes.txt").write_text("precious"),
    "one more below": add_below,
    "one less": lambda out: (out / "config.json").unlink(),
    "a link": make_a_link,
}


def test_what_a_person_changed_in_it_is_not_replaced(place, tmp_path, subtests):
    for verb in ("import", "export to timm", "export to huggingface"):
        for kind, change in CHANGES.items():
            with subtests.test(f"{verb}: {kind}"):
                out = tmp_path / f"{verb} {kind}" / "out"
                words = fill(FOLDER_VERBS[verb], place, out)
                for _ in range(2):
                    outcome = run_command(*words)
                    assert outcome.status == 0, outcome.stderr
                change(out)
                before = held(out.parent)
                check_refused(run_command(*words), "out")
                assert held(out.parent) == before


def test_images_and_runs_are_not_mixed(place, tmp_path, subtests):
    images = shutil.copytree(place / "images", tmp_path / "images")
    before = held(tmp_path)
    for verb in ("fit", "pretrain", "self-train"):
        for out in ("images", "images/run", "images/dark", "images/dark/run", "."):
            with subtests.test(f"{verb}: {out}"):
                words = fill(FOLDER_VERBS[verb], place, tmp_path / out)
                words = [images if word == place / "images" else word for word in words]
                check_refused(run_command(*words, cwd=tmp_path))
                assert held(tmp_path) == before


def test_a_page_within_a_run_is_the_runs_own(place, tmp_path):
    """Also one that an earlier version wrote, without a mark."""
    run = shutil.copytree(place / "run", tmp_path / "run")
    (run / "report.html").write_text("<!doctype html>\n<html><head></head></html>")
    outcome = run_command("report", run)
    assert outcome.status == 0, outcome.stderr
    assert '<meta name="generator" content="vitreous ' in (run / "report.html").read_text()[:400]
    assert json.loads((run / "result.json").read_text())["finished"]
