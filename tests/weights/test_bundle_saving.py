"""Saving a bundle: complete or not at all, whatever happens meanwhile."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from test_bundle import FILES, names, save

from support.tiny_models import random_model
from vitreous import UserError
from vitreous.errors import MachineError
from vitreous.storage import files
from vitreous.storage.manifest import restore_folder
from vitreous.weights import bundle as bundles
from vitreous.weights.bundle import load_bundle


def test_saving_again_replaces_the_whole_bundle(tmp_path):
    folder = save(tmp_path / "b")
    new = random_model(seed=7)
    save(folder, new)
    assert names(folder) == sorted(FILES)
    assert torch.equal(load_bundle(folder).model.head.weight, new.head.weight)
    assert names(tmp_path) == ["b"]


def test_saving_again_replaces_nothing_of_anybody_else(tmp_path):
    """Not what was put beside our files, not what was changed in them, not a folder that was never ours."""
    folder = save(tmp_path / "b")
    (folder / "more.txt").write_text("precious")
    with pytest.raises(UserError, match=r"b: .*more\.txt"):
        save(folder)
    (folder / "more.txt").unlink()
    (folder / "README.md").write_text("# My own words")
    with pytest.raises(UserError, match=r"b: .*README\.md"):
        save(folder)
    (tmp_path / "mine" / "sub.d").mkdir(parents=True)
    (tmp_path / "mine" / "sub.d" / "x").write_text("precious")
    with pytest.raises(UserError, match=r"mine: .*sub\.d"):
        save(tmp_path / "mine")
    assert (folder / "README.md").read_text() == "# My own words"
    assert names(tmp_path) == ["b", "mine"]


def test_what_comes_there_while_it_is_written_stays(tmp_path, monkeypatch):
    folder, write = tmp_path / "b", files.write_tensors

    def meanwhile(*args):
        folder.mkdir()
        (folder / "thesis.txt").write_text("precious")
        write(*args)

    monkeypatch.setattr(bundles, "write_tensors", meanwhile)
    with pytest.raises(UserError, match=r"thesis\.txt"):
        save(folder)
    assert names(folder) == ["thesis.txt"]
    assert names(tmp_path) == ["b"]


def test_saving_over_the_bundle_that_is_in_use(tmp_path):
    """The weights stay what they were, although their file has been replaced."""
    folder = save(tmp_path / "b")
    held = load_bundle(folder).model
    before = held.head.weight.clone()
    save(folder, random_model(seed=7))
    assert torch.equal(held.head.weight, before)
    save(folder, held)  # and can be saved to the place they came from
    assert torch.equal(load_bundle(folder).model.head.weight, before)


def test_without_an_exchange_of_names_the_bundle_is_replaced_too(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    test_saving_again_replaces_the_whole_bundle(tmp_path)


def test_killed_while_writing(tmp_path):
    """A half-written folder beside the bundle harms nobody, and the next save sweeps it away."""
    folder = save(tmp_path / "b")
    half = tmp_path / ".b.new-0123abcd"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    load_bundle(folder)
    save(folder)
    assert names(tmp_path) == ["b"]


def test_killed_between_the_two_renames(tmp_path):
    """Without an exchange of names there is a moment when the old bundle is aside: it is taken back."""
    folder = save(tmp_path / "run" / "bundle")
    folder.rename(tmp_path / "run" / ".bundle.old")
    assert load_bundle(tmp_path / "run").path == folder
    folder.rename(tmp_path / "run" / ".bundle.old")
    load_bundle(folder)


@pytest.mark.parametrize("before", ["whole", "killed between the two renames"])
def test_a_reader_that_takes_the_old_bundle_back_does_not_cost_the_new_one(tmp_path, monkeypatch, before):
    """It cannot know whether whoever set the bundle aside was killed, or is about to rename the new one."""
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    folder, new, rename = save(tmp_path / "b"), random_model(seed=7), Path.rename
    readers = 2

    def between(path, target):
        nonlocal readers
        if path.name.startswith(".b.new-") and readers:
            readers -= 1
            restore_folder(folder)
        return rename(path, target)

    if before != "whole":
        folder.rename(tmp_path / ".b.old")
    monkeypatch.setattr(Path, "rename", between)
    save(folder, new)
    assert not readers
    assert torch.equal(load_bundle(folder).model.head.weight, new.head.weight)
    assert names(tmp_path) == ["b"]


def test_readers_that_never_stop_end_in_a_sentence_with_the_old_bundle_intact(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    old, rename = random_model(), Path.rename
    folder = save(tmp_path / "b", old)

    def between(path, target):
        if path.name.startswith(".b.new-"):
            restore_folder(folder)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", between)
    with pytest.raises(UserError, match="b: "):
        save(folder, random_model(seed=7))
    assert torch.equal(load_bundle(folder).model.head.weight, old.head.weight)
    assert names(tmp_path) == ["b"]


def full_disk(*args, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_of_safetensors(state, filename, metadata):
    filename.write_bytes(b"half")
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_a_full_disk_leaves_the_old_bundle_intact(tmp_path, monkeypatch):
    old = random_model()
    folder = save(tmp_path / "b", old)
    for module, name, failure in (
        (files, "save_file", full_disk_of_safetensors),
        (bundles, "_plain_card", full_disk),
        (files, "write_manifest", full_disk),
        (files, "fsync_file", full_disk),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failure)
            with pytest.raises(MachineError, match="b: "):
                save(folder, random_model(seed=7))
        assert names(tmp_path) == ["b"], "nothing half-written is left to fill the disk"
        assert torch.equal(load_bundle(folder).model.head.weight, old.head.weight)


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on the size of files")
def test_a_write_that_really_fails(tmp_path):
    """The system refuses to let the weights grow beyond 20,000 bytes: what safetensors says of it is understood."""
    import resource

    old = random_model()
    folder = save(tmp_path / "b", old)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(MachineError, match="b: "):
            save(folder, random_model(mlp_width=500))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["b"]
    assert torch.equal(load_bundle(folder).model.head.weight, old.head.weight)


KILLS = """
import os, random, signal, sys, time
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
from weights.test_bundle import save
from support.tiny_models import random_model
from vitreous.storage import files
from vitreous.weights.bundle import load_bundle

torch.set_num_threads(1)
place, exchange, kills = Path(sys.argv[1]), sys.argv[3] == "exchange", sys.argv[4]
if not exchange:
    files._exchange = lambda one, other: False
models = [random_model(seed=seed) for seed in range(2)]
save(place, models[0])
sums = {float(model.head.weight.detach().sum()) for model in models}

def killed_after(seconds):
    child = os.fork()
    if child == 0:
        while True:
            for model in models:
                save(place, model)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

def killed_at(operation):
    # Before the n-th time that Python opens, makes, renames or removes a file; whether there was an n-th.
    child = os.fork()
    if child == 0:
        count = 0
        def hook(event, _):
            nonlocal count
            if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
                count += 1
                if count == operation:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        save(place, models[operation % 2])
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0

def check():
    assert exchange <= place.exists(), "with an exchange of names there is no moment without"
    assert float(load_bundle(place).model.head.weight.detach().sum()) in sums

if kills == "random":
    rng = random.Random(0)
    for _ in range(400):
        killed_after(rng.uniform(0.001, 0.03))
        check()
else:
    operation = 1
    while killed_at(operation):
        check()
        operation += 1
    assert operation > 15, operation
save(place, models[0])
assert sorted(path.name for path in place.parent.iterdir()) == ["b"]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("how", ["exchange", "two renames"])
@pytest.mark.parametrize(
    "kills",
    [pytest.param("each operation", marks=pytest.mark.slow), pytest.param("random", marks=pytest.mark.exhaustive)],
)
def test_killed_at_any_moment(tmp_path, how, kills):
    """One whole bundle, the old or the new, is always there."""
    argv = [sys.executable, "-c", KILLS, str(tmp_path / "b"), str(Path(__file__).parents[1]), how, kills]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_permission_to_write(tmp_path, monkeypatch):
    def refuse(self, *args, **more):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(files.Path, "mkdir", refuse)
    with pytest.raises(UserError, match="b: "):
        save(tmp_path / "b")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_mine(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="b: "):
        save(tmp_path / "b")


def test_a_file_is_in_the_way(tmp_path):
    (tmp_path / "b").write_text("precious")
    with pytest.raises(UserError, match="b: "):
        save(tmp_path / "b")
    with pytest.raises(UserError, match="b/bundle: "):
        save(tmp_path / "b" / "bundle")
    assert (tmp_path / "b").read_text() == "precious"


def test_a_link_is_followed(tmp_path):
    save(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    new = random_model(seed=7)
    save(tmp_path / "link", new)
    assert (tmp_path / "link").is_symlink()
    assert torch.equal(load_bundle(tmp_path / "real").model.head.weight, new.head.weight)


def test_another_error_stays_itself(tmp_path):
    with pytest.raises(TypeError):
        save(tmp_path / "b", info={"a": object()})
    assert names(tmp_path) == []


def test_everything_is_on_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    synced = []
    real = files.fsync_file
    monkeypatch.setattr(files, "fsync_file", lambda path: (synced.append(path.name), real(path)))
    replace = files.replace_folder

    def check(temporary, final):
        assert sorted(synced[:4]) == sorted(FILES)
        assert synced[4:] == [temporary.name]
        replace(temporary, final)

    monkeypatch.setattr(files, "replace_folder", check)
    save(tmp_path / "b")
    assert synced[-1] == tmp_path.name
