"""A training that is repeated, interrupted, killed or asked for differently: `fit` goes on exactly, or says why not."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.greys import make_weights, stop_after
from support.greys import quick_fit as quick
from vitreous import UserError
from vitreous.jobs.fit import fit
from vitreous.jobs.pretrain import pretrain
from vitreous.run.request import Listeners
from vitreous.weights.bundle import load_bundle


def test_the_same_command_again_has_nothing_to_do(pictures, weights, tmp_path):
    first = quick(pictures, weights, tmp_path / "run")
    heard = []
    again = quick(pictures, weights, tmp_path / "run", listeners=Listeners(say=heard.append))
    assert "finished" in heard[0]
    assert again.validation == first.validation
    page = (tmp_path / "run/report.html").read_text()
    (tmp_path / "run/report.html").unlink()
    quick(pictures, weights, tmp_path / "run", listeners=Listeners(say=heard.append))
    assert "only its report.html was missing" in heard[1]
    assert (tmp_path / "run/report.html").read_text() == page


def test_it_goes_on_with_the_same_data_only(pictures, weights, tmp_path, no_page):
    data = shutil.copytree(pictures, tmp_path / "data")
    assert not quick(data, weights, tmp_path / "run", listeners=Listeners(stop=stop_after(1))).finished
    (data / "dark/0.png").rename(data / "dark/another.png")
    with pytest.raises(UserError, match=r"data: has other train pictures, or other labels, than when .*run began"):
        quick(data, weights, tmp_path / "run")
    (data / "dark/another.png").unlink()
    with pytest.raises(UserError, match=r"data: has 23 train pictures, and had 24 when .*run began; bring them back"):
        quick(data, weights, tmp_path / "run")
    (data / "dark").rename(data / "black")
    with pytest.raises(UserError, match=r"data: its classes have changed since .*run began"):
        quick(data, weights, tmp_path / "run")


def test_a_place_is_the_same_however_it_is_written(pictures, weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures, "photos")
    shutil.copytree(weights, "base")
    quick("photos/", "base/", None)
    for data, base in (("photos", "base"), ("./photos", Path("base"))):
        heard = []
        quick(data, base, None, listeners=Listeners(say=heard.append))
        assert heard == [f"{Path('runs/photos')} is finished; nothing to do."]


def test_data_of_two_versions_get_two_run_folders(pictures, weights, tmp_path, monkeypatch, no_page):
    monkeypatch.chdir(tmp_path)
    for name in ("photos.v1", "photos.v2"):
        shutil.copytree(pictures, name)
        assert quick(name, weights, None).run == str(Path("runs") / name)


def test_exchanged_weights_are_noticed(pictures, weights, tmp_path, no_page):
    """After a checkpoint, and before the first."""

    def crash(event):
        raise RuntimeError("the power is gone")

    base = shutil.copytree(weights, tmp_path / "base")
    quick(pictures, base, tmp_path / "stopped", listeners=Listeners(stop=stop_after(1)))
    with pytest.raises(RuntimeError):
        quick(pictures, base, tmp_path / "crashed", listeners=Listeners(step=crash))
    shutil.rmtree(base)
    make_weights(base, seed=8)
    for run in ("stopped", "crashed"):
        with pytest.raises(UserError, match=rf"base: other weights than when .*{run} began; bring those back"):
            quick(pictures, base, tmp_path / run)


def test_once_there_is_a_checkpoint_the_weights_may_be_gone(pictures, weights, tmp_path, no_page):
    whole = quick(pictures, weights, tmp_path / "whole")
    base = shutil.copytree(weights, tmp_path / "base")
    assert not quick(pictures, base, tmp_path / "part", listeners=Listeners(stop=stop_after(1))).finished
    shutil.rmtree(base)
    rest = quick(pictures, base, tmp_path / "part")
    assert rest.finished
    assert rest.validation == whole.validation
    one, other = (load_file(tmp_path / name / "bundle/model.safetensors") for name in ("whole", "part"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_weights_at_the_start_are_written_once_and_watched(pictures, weights, tmp_path, no_page):
    """The result lies half-way between them and what was trained, so a training that goes on needs them."""
    folder, seen, saved = tmp_path / "run/checkpoints", set(), set()

    def look(event):
        saved.update(path.name for path in folder.glob("step-*"))
        if event.step > 1:
            found = (folder / "start/start.safetensors").stat()
            seen.add((found.st_ino, found.st_mtime_ns))

    ways = {"weights": weights, "epochs": 6, "out": tmp_path / "run", "workers": 0, "changes": {"save_seconds": 0}}
    fit(pictures, **ways, listeners=Listeners(step=look, stop=stop_after(4)))
    assert len(saved) == 3  # those of the steps before each
    assert len(seen) == 1
    assert not list(folder.glob("step-*/start*"))
    start = load_file(folder / "start/start.safetensors")
    assert torch.equal(start["pos_embed"], load_bundle(weights).model.pos_embed)
    content = bytearray((folder / "start/start.safetensors").read_bytes())
    content[-5] ^= 4
    (folder / "start/start.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"start\.safetensors: damaged or changed, .*; restore it from a copy"):
        fit(pictures, **ways)
    shutil.rmtree(folder / "start")
    with pytest.raises(UserError, match=r"start.manifest\.json: missing"):
        fit(pictures, **ways)


def test_another_command_in_the_same_place_is_refused(pictures, weights, tmp_path, no_page):
    quick(pictures, weights, tmp_path / "run")
    with pytest.raises(UserError, match="holds a training with seed=0, not 1"):
        quick(pictures, weights, tmp_path / "run", seed=1)


def test_a_pretraining_in_the_same_place_is_refused(pictures, weights, tmp_path):
    run = tmp_path / "run"
    pretrain(pictures, model="P/4@16", epochs=1, out=run, workers=0, listeners=Listeners(stop=stop_after(0)))
    with pytest.raises(UserError, match="holds a pretraining, which is another kind than this one"):
        quick(pictures, weights, run)


def test_stopped_and_repeated_equals_uninterrupted(pictures, weights, tmp_path, no_page):
    whole = quick(pictures, weights, tmp_path / "whole")
    part = quick(pictures, weights, tmp_path / "part", listeners=Listeners(stop=stop_after(1)))
    assert not part.finished
    rest = quick(pictures, weights, tmp_path / "part")
    assert rest.finished
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
    one, other = (load_file(tmp_path / name / "bundle/model.safetensors") for name in ("whole", "part"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert rest.validation == whole.validation


def test_interrupted_before_the_first_checkpoint_it_fits_the_classifier_again(pictures, weights, tmp_path, no_page):
    whole = quick(pictures, weights, tmp_path / "whole")

    def crash(event):
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        quick(pictures, weights, tmp_path / "part", listeners=Listeners(step=crash))
    assert not list((tmp_path / "part/checkpoints").iterdir())
    rest = quick(pictures, weights, tmp_path / "part")
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
    assert rest.validation == whole.validation


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from vitreous.jobs.fit import fit
often = {"save_seconds": 0}  # save at every step, so that saving is often interrupted
fit(sys.argv[1], weights=sys.argv[2], epochs=15, out=sys.argv[3], workers=0, changes=often)
"""


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bits(pictures, weights, tmp_path):
    """SIGKILL, saving included: it always goes on, never from before the last save, and ends as if nothing happened.

    With decoding processes, tests/hostile/test_kill.py does it.
    """

    def start(out):
        words = [sys.executable, "-c", SCRIPT, str(pictures), str(weights), str(out)]
        return subprocess.Popen(words, start_new_session=True)

    def saved():
        return max((path.name for path in (tmp_path / "hurt/checkpoints").glob("step-*")), default="")

    begin = time.monotonic()
    assert start(tmp_path / "whole").wait() == 0
    length = time.monotonic() - begin
    chance = random.Random(0)
    before = ""
    for _ in range(3):
        process = start(tmp_path / "hurt")
        time.sleep(length * chance.uniform(0.3, 1.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert saved() >= before
        before = saved()
        if (tmp_path / "hurt/result.json").exists():  # it came through: again from nothing
            shutil.rmtree(tmp_path / "hurt")
            before = ""
    assert start(tmp_path / "hurt").wait() == 0
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "hurt/metrics.jsonl").read_text()
    last = sorted((tmp_path / "whole/checkpoints").glob("step-*"))[-1]
    for file in last.glob("*.safetensors"):
        one, other = load_file(file), load_file(tmp_path / "hurt/checkpoints" / last.name / file.name)
        assert all(torch.equal(one[name], other[name]) for name in one), file.name
    one, other = (load_file(tmp_path / name / "bundle/model.safetensors") for name in ("whole", "hurt"))
    assert all(torch.equal(one[name], other[name]) for name in one)
