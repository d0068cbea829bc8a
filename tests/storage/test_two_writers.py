"""Two processes or threads that write to one place at once: each waits for the other, and the last one wins."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from support.tiny_models import LABELS, preprocess_for, random_model
from vitreous import UserError
from vitreous.storage import files, lock, manifest
from vitreous.storage.files import new_folder, remove_unfinished
from vitreous.storage.manifest import check_manifest
from vitreous.weights.bundle import load_bundle, save_bundle

PAIRS = [10, pytest.param(200, marks=pytest.mark.exhaustive)]


def save(path, model):
    return save_bundle(path, model, preprocess_for(model), LABELS[: model.config.classes])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=["exchange", "two renames"])
def renaming(request, monkeypatch):
    """With and without a file system that exchanges two names in one step."""
    if request.param == "two renames":
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)


@pytest.mark.parametrize("pairs", PAIRS)
def test_pairs_of_threads(tmp_path, renaming, pairs):
    """Both succeed, a third that reads meanwhile never finds anything damaged, and nothing else is left."""
    models = [random_model(seed=seed) for seed in range(3)]
    sums = [float(model.head.weight.detach().sum()) for model in models]
    folder, ended = save(tmp_path / "b", models[0]), threading.Event()

    def read():
        found = {float(load_bundle(folder).model.head.weight.detach().sum())}
        while not ended.is_set():
            found.add(float(load_bundle(folder).model.head.weight.detach().sum()))
        return found

    with ThreadPoolExecutor(3) as pool:
        reader = pool.submit(read)
        try:
            for _ in range(pairs):
                assert list(pool.map(lambda model: save(folder, model), models[1:])) == [folder, folder]
                assert float(load_bundle(folder).model.head.weight.detach().sum()) in sums[1:]
                assert names(tmp_path) == ["b"]
        finally:
            ended.set()
        assert reader.result() <= set(sums)


PROCESSES = """
import os, sys, traceback
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
from storage.test_two_writers import save
from support.tiny_models import random_model
import vitreous
from vitreous.storage import files
from vitreous.storage.manifest import check_manifest

torch.set_num_threads(1)
place, pairs = Path(sys.argv[1]), int(sys.argv[4])
if sys.argv[3] == "two renames":
    files._exchange = lambda one, other: False
models = [random_model(seed=seed) for seed in range(2)]
sources = [save(place / f"source{number}", model) for number, model in enumerate(models)]
WRITERS = {
    "saved": lambda number, out: save(out, models[number]),
    "imported": lambda number, out: vitreous.import_weights(sources[number], out),
    "exported": lambda number, out: vitreous.export_weights(sources[number], out, to="timm"),
}

def start(name, number):
    child = os.fork()
    if child == 0:
        try:
            WRITERS[name](number, place / name)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child

for pair in range(pairs):
    for name in WRITERS:
        both = [start(name, number) for number in range(2)]
        assert [os.waitpid(child, 0)[1] for child in both] == [0, 0], f"{name}, pair {pair}"
        check_manifest(place / name)
        weights = (place / name / "model.safetensors").read_bytes()
        assert weights in [(source / "model.safetensors").read_bytes() for source in sources]
assert sorted(path.name for path in place.iterdir()) == ["exported", "imported", "saved", "source0", "source1"]
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("how", ["exchange", "two renames"])
@pytest.mark.parametrize("pairs", PAIRS)
def test_pairs_of_processes(tmp_path, how, pairs):
    """That save, import and export, to a new place first and then over what is there: both succeed."""
    argv = [sys.executable, "-c", PROCESSES, str(tmp_path), str(Path(__file__).parents[1]), how, str(pairs)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_living_process_writes_is_not_removed(tmp_path, monkeypatch):
    """Whoever comes meanwhile waits, and if that takes too long says for whom."""
    monkeypatch.setattr(lock, "WRITE_SECONDS", 0.1)
    with new_folder(tmp_path / "b") as first:
        (first / "x").write_text("first")
        with pytest.raises(UserError, match=rf"b: .*\b{os.getpid()}\b"), new_folder(tmp_path / "b"):
            pytest.fail("both write")
        with new_folder(tmp_path / "b.new-01234567") as other:  # whose name looks like what is left of the first
            (other / "x").write_text("other")
    assert check_manifest(tmp_path / "b") == check_manifest(tmp_path / "b.new-01234567") == {"x"}
    assert (tmp_path / "b" / "x").read_text() == "first"
    assert names(tmp_path) == ["b", "b.new-01234567"]


def test_without_locks_each_writes_for_itself_and_removes_nothing_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    with new_folder(tmp_path / "b") as first:
        (first / "x").write_text("first")
        with new_folder(tmp_path / "b") as second:
            (second / "x").write_text("second")
        assert (tmp_path / "b" / "x").read_text() == "second"
    assert (tmp_path / "b" / "x").read_text() == "first"
    assert names(tmp_path) == ["b"]


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    folder = save(tmp_path / "b", random_model())
    new, digest, replaced = random_model(seed=7), manifest.sha256_file, []

    def meanwhile(path):
        if not replaced:
            replaced.append(True)
            save(folder, new)
        return digest(path)

    monkeypatch.setattr(manifest, "sha256_file", meanwhile)
    assert torch.equal(load_bundle(folder).model.head.weight, new.head.weight)


def test_what_killed_processes_left_is_removed(tmp_path):
    left = (".new-0123456789abcdef", ".step-1.lock")
    kept = (".notes", ".new-mine", ".b.new-mine", "x.lock", "b.new", lock.LOCK)
    for name in (*left, *kept):
        (tmp_path / name).write_text("")
    for name in (".step-1.new", ".step-1.new-01234567"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("")
    remove_unfinished(tmp_path)
    assert names(tmp_path) == sorted(kept)
