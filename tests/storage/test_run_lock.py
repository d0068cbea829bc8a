"""Whose a run folder is: a training writes to its own, to a new or an empty one, one process at a time."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.greys import draw_images, make_weights, stop_after
from support.greys import quick_fit as quick
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.storage import lock
from vitreous.storage.lock import LOCK, hold_folder
from vitreous.training.folder import open_run
from vitreous.verbs.fit import pretrain


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images and weights."""
    root = tmp_path_factory.mktemp("place")
    draw_images(root / "images", count=4)
    make_weights(root / "weights")
    return root


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    monkeypatch.setattr("vitreous.training.train.write_run_page", lambda *_: None)


def held(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


FOREIGN = {
    "a bundle of a person's": "bundle/thesis.txt",
    "a page": "report.html",
    "a log": "metrics.jsonl",
    "a configuration": "config.json",
    "checkpoints": "checkpoints/step-00000001/model.pt",
    "a hidden file": ".notes",
    "a lock of another program": ".lock",
    "a folder": "x/y",
}


def test_a_folder_of_anybody_else_is_left_alone(place, tmp_path, subtests):
    for title, name in FOREIGN.items():
        out = tmp_path / title
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("precious")
        before = held(out)
        for train in (
            lambda out=out: quick(place / "images", place / "weights", out),
            lambda out=out: pretrain(place / "images", model="P/4@16", epochs=1, out=out, workers=0),
        ):
            with subtests.test(title):
                with pytest.raises(UserError, match=rf"{out}.*{name.split('/')[0]}"):
                    train()
                assert held(out) == before


def test_a_folder_with_our_lock_and_other_things_is_not_ours(tmp_path):
    with hold_folder(tmp_path, print):
        shutil.copy(tmp_path / LOCK, tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / LOCK)
    assert open_run(tmp_path) is None  # what a run leaves that is killed in its first second
    (tmp_path / "metrics.jsonl").write_text("precious")
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        open_run(tmp_path)


def test_the_images_are_no_place_for_a_run(place, tmp_path):
    data = shutil.copytree(place / "images", tmp_path / "data")
    before = held(data)
    for out in (data, data / "run", data / "dark", data / "dark" / "run", tmp_path / "x" / ".." / "data"):
        with pytest.raises(UserError, match="data"):
            quick(data, place / "weights", out)
    with pytest.raises(UserError, match="data"):
        quick(data, place / "weights", tmp_path)
    for out in ("", "  "):
        with pytest.raises(UserError, match=r"out=' *'"):
            quick(data, place / "weights", out)
        with pytest.raises(UserError, match=r"out=' *'"):
            pretrain(data, out=out)
    assert held(data) == before


def test_a_bundle_that_was_changed_is_not_replaced_by_going_on(place, tmp_path):
    run = tmp_path / "run"
    assert not quick(place / "images", place / "weights", run, callbacks=Callbacks(should_stop=stop_after(1))).finished
    (run / "bundle" / "notes.txt").write_text("precious")
    heard = []
    with pytest.raises(UserError, match=r"bundle: .*notes\.txt"):
        quick(place / "images", place / "weights", run, callbacks=Callbacks(message=heard.append))
    assert heard == []  # before anything is trained
    (run / "bundle" / "notes.txt").rename(run / "notes.txt")
    assert quick(place / "images", place / "weights", run).finished
    assert (run / "notes.txt").read_text() == "precious"
    assert not (run / LOCK).exists()


def test_a_run_that_was_killed_in_its_first_second_goes_on(place, tmp_path, subtests):
    for leave in ("nothing", "empty lock", "lock", "checkpoints", "half a configuration"):
        run = tmp_path / leave
        run.mkdir()
        if leave != "nothing":
            (run / LOCK).write_text("" if leave == "empty lock" else lock._card())
        if leave in ("checkpoints", "half a configuration"):
            (run / "checkpoints").mkdir()
        if leave == "half a configuration":
            (run / ".new-0123456789abcdef").write_text('{"request": ')
        with subtests.test(leave):
            assert quick(place / "images", place / "weights", run).finished


HOLDER = """
import os, signal, sys
from pathlib import Path
from vitreous.storage.lock import hold_folder
with hold_folder(Path(sys.argv[1]), print):
    if len(sys.argv) > 2 and os.fork() == 0:  # as a process that decodes images
        signal.pause()
    print("held", flush=True)
    signal.pause()
"""


def start_holder(folder, *more):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), *more], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.slow
def test_the_second_is_told_who_holds_it(place, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    holder = start_holder(run)
    try:
        with pytest.raises(UserError, match=rf"run: .*\b{holder.pid}\b.*20\d\d-\d\d-\d\d"):
            quick(place / "images", place / "weights", run)
        assert sorted(path.name for path in run.iterdir()) == [LOCK, "checkpoints"]
        assert json.loads((run / LOCK).read_text())["pid"] == holder.pid
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert quick(place / "images", place / "weights", run).finished  # the crash has released it


@pytest.mark.slow
def test_a_crash_releases_it_though_workers_live_on(tmp_path):
    holder = start_holder(tmp_path, "fork")
    holder.kill()
    holder.wait()
    try:
        with hold_folder(tmp_path, pytest.fail):
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)  # its child
        holder.stdout.close()


def test_within_one_process_too(tmp_path):
    with hold_folder(tmp_path, pytest.fail):
        with pytest.raises(UserError, match=rf"\b{os.getpid()}\b"), hold_folder(tmp_path, pytest.fail):
            pass
        assert (tmp_path / LOCK).exists()
    with hold_folder(tmp_path, pytest.fail):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_that_name_that_is_not_ours_stays(tmp_path):
    (tmp_path / LOCK).write_text("precious")
    with pytest.raises(UserError, match=LOCK), hold_folder(tmp_path, pytest.fail):
        pass
    assert (tmp_path / LOCK).read_text() == "precious"


def test_without_locks_it_is_said_and_goes_on(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    heard = []
    with hold_folder(tmp_path, heard.append):
        pass
    assert len(heard) == 1
    assert str(tmp_path) in heard[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_last_holder_may_remove_the_file_at_any_moment(tmp_path):
    """Two processes take turns; each writes its number, waits and reads it back: no other was there meanwhile."""
    script = """
import os, random, sys, time
from pathlib import Path
from vitreous import UserError
from vitreous.storage.lock import hold_folder
folder, turns = Path(sys.argv[1]), 0
while turns < 60:
    try:
        with hold_folder(folder, print):
            (folder / "who").write_text(str(os.getpid()))
            time.sleep(random.uniform(0, 0.002))
            assert (folder / "who").read_text() == str(os.getpid())
            turns += 1
    except UserError:
        pass
"""
    both = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]


def test_another_process_that_was_quicker_is_noticed(place, tmp_path, monkeypatch):
    """Between reading the folder and holding it, somebody else has trained there."""
    run, weights = tmp_path / "run", place / "weights"
    whole = quick(place / "images", weights, tmp_path / "whole")
    hold = lock.hold_folder

    def late(folder, say):
        shutil.copytree(tmp_path / "whole", folder, dirs_exist_ok=True)
        return hold(folder, say)

    monkeypatch.setattr("vitreous.training.folder.hold_folder", late)
    with pytest.raises(UserError, match=str(run)):
        quick(place / "images", weights, run)
    assert quick(place / "images", weights, run).validation == whole.validation


@pytest.mark.slow
def test_two_trainings_at_once_and_one_is_refused(place, tmp_path):
    """The first stops itself before its first step, and holds the folder until it is continued."""
    stopping = """
import os, signal
from vitreous.training import loop
step, stopped = loop.train_step, []
def stop_once(*given, **more):
    if not stopped:
        stopped.append(True)
        os.kill(os.getpid(), signal.SIGSTOP)
    return step(*given, **more)
loop.train_step = stop_once
"""
    main = "import sys; from vitreous.cli import main; main(sys.argv[1:])"
    words = ["fit", str(place / "images"), "--weights", str(place / "weights"), "--epochs", "2", "--workers", "0"]
    words += ["--out", str(tmp_path / "run")]
    first = subprocess.Popen(
        [sys.executable, "-c", stopping + main, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
    second = subprocess.run([sys.executable, "-c", main, *words], capture_output=True, text=True)
    os.kill(first.pid, signal.SIGCONT)
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert re.search(rf"\b{first.pid}\b", second.stderr)
    assert first.wait() == 0
    assert not (tmp_path / "run" / LOCK).exists()
    assert Path(tmp_path / "run" / "bundle" / "manifest.json").exists()
