"""A training that is repeated, interrupted, killed or asked for differently: `fit` goes on exactly, or says why not."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from support.greys import make_weights, stop_after
from support.greys import quick_fit as quick
from support.killing import run_and_kill
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.verbs.fit import fit, pretrain
from vitreous.weights.bundle import load_bundle


@pytest.fixture(scope="module")
def whole(images, weights, tmp_path_factory):
    """A training that nothing disturbed, with its page."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return SimpleNamespace(run=run, result=quick(images, weights, run))


def check_same(one, other):
    """The same log and the same bits."""
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    first, second = (load_file(run / "bundle/model.safetensors") for run in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def crash(event):
    raise RuntimeError("the power is gone")


def test_the_same_command_again_has_nothing_to_do(whole, images, weights):
    heard = []
    again = quick(images, weights, whole.run, callbacks=Callbacks(message=heard.append))
    assert again == whole.result
    page = (whole.run / "report.html").read_text()
    (whole.run / "report.html").unlink()
    assert quick(images, weights, whole.run, callbacks=Callbacks(message=heard.append)) == whole.result
    assert (whole.run / "report.html").read_text() == page
    assert [str(whole.run) in said for said in heard] == [True, True]
    assert ["report.html" in said for said in heard] == [False, True]


def test_another_command_in_the_same_place_is_refused(whole, images, weights, tmp_path):
    with pytest.raises(UserError, match=f"{whole.run}: .*seed=0.* 1"):
        quick(images, weights, whole.run, seed=1)
    run = tmp_path / "pretraining"
    pretrain(images, model="P/4@16", epochs=1, out=run, workers=0, callbacks=Callbacks(should_stop=stop_after(0)))
    with pytest.raises(UserError, match=str(run)):
        quick(images, weights, run)


def test_it_goes_on_with_the_same_data_only(images, weights, tmp_path, no_page):
    data = shutil.copytree(images, tmp_path / "data")
    assert not quick(data, weights, tmp_path / "run", callbacks=Callbacks(should_stop=stop_after(1))).finished
    (data / "dark/0.png").rename(data / "dark/another.png")
    with pytest.raises(UserError, match=rf"{data}: .*{tmp_path / 'run'}"):
        quick(data, weights, tmp_path / "run")
    (data / "dark/another.png").unlink()
    with pytest.raises(UserError, match=rf"{data}: .* 23 .* 24 .*{tmp_path / 'run'}"):
        quick(data, weights, tmp_path / "run")
    (data / "dark").rename(data / "black")
    with pytest.raises(UserError, match=rf"{data}: .*{tmp_path / 'run'}"):
        quick(data, weights, tmp_path / "run")


def test_a_place_is_the_same_however_it_is_written_and_another_version_is_another(
    images, weights, tmp_path, monkeypatch, no_page
):
    monkeypatch.chdir(tmp_path)
    for name in ("photos.v1", "photos.v2"):
        shutil.copytree(images, name)
    shutil.copytree(weights, "base")
    first = quick("photos.v1/", "base/", None)
    steps = []
    for data, base in (("photos.v1", "base"), ("./photos.v1", Path("base"))):
        assert quick(data, base, None, callbacks=Callbacks(step=steps.append)) == first
    assert not steps
    assert first.run == str(Path("runs/photos.v1"))
    assert quick("photos.v2", weights, None).run == str(Path("runs/photos.v2"))


def test_interrupted_before_and_after_the_first_checkpoint_it_ends_with_the_same_bits(
    whole, images, weights, tmp_path, no_page
):
    """Exchanged weights are noticed; once there is a checkpoint, the weights are not needed any more."""
    base, stopped, crashed = tmp_path / "base", tmp_path / "stopped", tmp_path / "crashed"
    shutil.copytree(weights, base)
    assert not quick(images, base, stopped, callbacks=Callbacks(should_stop=stop_after(1))).finished
    with pytest.raises(RuntimeError):
        quick(images, base, crashed, callbacks=Callbacks(step=crash))
    assert not list((crashed / "checkpoints").iterdir())
    shutil.rmtree(base)
    make_weights(base, seed=8)
    for run in (stopped, crashed):
        with pytest.raises(UserError, match=f"{base}: .*{run}"):
            quick(images, base, run)
    shutil.rmtree(base)
    rest = quick(images, base, stopped)
    assert rest.finished
    assert rest.validation == whole.result.validation
    check_same(stopped, whole.run)
    shutil.copytree(weights, base)
    assert quick(images, base, crashed).validation == whole.result.validation
    check_same(crashed, whole.run)


def test_the_weights_at_the_start_are_written_once_and_watched(images, weights, tmp_path, no_page):
    """The result lies half-way between them and what was trained, so a training that goes on needs them."""
    folder, seen, saved = tmp_path / "run/checkpoints", set(), set()

    def look(event):
        saved.update(path.name for path in folder.glob("step-*"))
        if event.step > 1:
            found = (folder / "start/start.safetensors").stat()
            seen.add((found.st_ino, found.st_mtime_ns))

    ways = {"weights": weights, "epochs": 6, "out": tmp_path / "run", "workers": 0, "overrides": {"save_seconds": 0}}
    fit(images, **ways, callbacks=Callbacks(step=look, should_stop=stop_after(4)))
    assert len(saved) == 3  # those of the steps before each
    assert len(seen) == 1
    assert not list(folder.glob("step-*/start*"))
    start = load_file(folder / "start/start.safetensors")
    assert torch.equal(start["pos_embed"], load_bundle(weights).model.pos_embed)
    content = bytearray((folder / "start/start.safetensors").read_bytes())
    content[-5] ^= 4
    (folder / "start/start.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"start\.safetensors"):
        fit(images, **ways)
    shutil.rmtree(folder / "start")
    with pytest.raises(UserError, match=r"start.manifest\.json"):
        fit(images, **ways)


PROGRAM = """
from vitreous.verbs.fit import fit
from vitreous.training import checkpoint
save_file, calls = checkpoint.save_file, []
def save_and_die(tensors, file):
    save_file(tensors, file)
    calls.append(file)
    if len(calls) == {files}:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save_file = save_and_die
fit({data!r}, weights={weights!r}, epochs=6, out=out, workers=0, overrides={{"save_seconds": 0}})
"""


@pytest.mark.slow
def test_killed_in_the_midst_of_saving_it_ends_with_the_same_bits(processes, images, weights, tmp_path, no_page):
    """SIGKILL after a checkpoint, then within each of several: it never goes on from before the last whole one.

    `tests/training/test_kill.py` kills at random moments, with decoding processes.
    """

    def saved():
        return max((path.name for path in (tmp_path / "hurt/checkpoints").glob("step-*")), default="")

    ways = {"weights": weights, "epochs": 6, "workers": 0, "overrides": {"save_seconds": 0}}
    before = ""
    for files, checkpoints in ((1, 9), (99, 1), (2, 9), (4, 9), (99, 2)):
        program = PROGRAM.format(files=files, data=str(images), weights=str(weights))
        run_and_kill(processes, program, tmp_path / "hurt", checkpoints)
        assert saved() >= before
        before = saved()
    assert before
    assert fit(images, **ways, out=tmp_path / "hurt").finished
    assert fit(images, **ways, out=tmp_path / "whole").finished
    check_same(tmp_path / "hurt", tmp_path / "whole")
    last = sorted((tmp_path / "whole/checkpoints").glob("step-*"))[-1]
    for file in last.glob("*.safetensors"):
        one, other = load_file(file), load_file(tmp_path / "hurt/checkpoints" / last.name / file.name)
        assert all(torch.equal(one[name], other[name]) for name in one), file.name
