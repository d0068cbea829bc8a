"""A full disk: status 1, one sentence that says so, and nothing half-written left behind."""

import errno
import os
import resource

import pytest

from support.colours import make_bundle, make_images
from support.commands import run_command


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model and images."""
    folder = tmp_path_factory.mktemp("full")
    make_bundle(folder / "model")
    make_images(folder / "images")
    return folder


@pytest.fixture
def full(monkeypatch, tmp_path):
    """No file comes to rest on the disk, as where its last block is taken."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))

    def refuse(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)


def check_full(done, out):
    assert done.status == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"vitreous: {out.parent}")
    assert "the disk is full" in last


COMMANDS = {
    "fit": "fit IMAGES --weights MODEL --epochs 1 --workers 0 --out OUT",
    "predict": "predict MODEL IMAGES --out OUT",
    "evaluate": "evaluate MODEL IMAGES --corruptions --workers 0 --out OUT",
    "explain": "explain MODEL IMAGES --out OUT",
    "import": "import MODEL OUT",
    "export, a folder": "export MODEL OUT --to timm",
    "export, a file": "export MODEL OUT.npz --to google",
    "data pack": "data pack IMAGES OUT",
    "report": "report MODEL --out OUT.html",
    "transfer": "transfer MODEL --tasks IMAGES --protocols knn --workers 0 --out OUT",
}
KEEPS_ITS_FOLDER = ("fit", "predict", "evaluate", "explain", "transfer")


@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_the_machine_that_refuses(place, full, tmp_path, name):
    out = tmp_path / "out" / "x"
    words = COMMANDS[name].replace("OUT", str(out)).replace("MODEL", str(place / "model"))
    check_full(run_command(*words.replace("IMAGES", str(place / "images")).split()), out)
    left = [path for path in out.parent.rglob("*") if path.is_file()]
    if name not in KEEPS_ITS_FOLDER:
        assert not list(out.parent.iterdir())
    assert not [path for path in left if ".new" in path.name]


def test_no_room_for_another_name(place, tmp_path, monkeypatch):
    """The disk has bytes left but no inodes: folders and locks cannot be made."""
    out, opened, mkdir = tmp_path / "out" / "x", os.open, os.mkdir

    def refuse(path, *args, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(
        os,
        "open",
        lambda path, *args, **more: (
            refuse(path) if str(path).endswith(".vitreous.lock") else opened(path, *args, **more)
        ),
    )
    check_full(run_command("data", "pack", place / "images", out), out)
    assert not list(out.parent.iterdir())
    monkeypatch.setattr(
        os, "mkdir", lambda path, *args: refuse(path) if "checkpoints" in str(path) else mkdir(path, *args)
    )
    check_full(run_command("fit", place / "images", "--epochs", "1", "--workers", "0", "--out", out), out)


def test_finished_shards_are_taken_up(place, tmp_path, monkeypatch):
    """Where the disk is full after some, they stay, and the same command goes on with the next."""
    out, fsync, sizes = tmp_path / "out" / "x", os.fsync, []

    def refuse(handle):
        sizes.append(os.fstat(handle).st_size)
        if len(sizes) > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        check_full(run_command("data", "pack", place / "images", out, "--shard-size", "10kB"), out)
    records = list((out.parent / ".x.new").glob("*.safetensors"))
    kept = {path.stem: path.with_suffix(".tar").stat().st_mtime_ns for path in records}
    assert len(kept) == 2
    assert run_command("data", "pack", place / "images", out, "--shard-size", "10kB").status == 0
    assert {name: (out / f"{name}.tar").stat().st_mtime_ns for name in kept} == kept
    assert [path.name for path in out.parent.iterdir()] == ["x"]


def test_a_cache_that_has_no_room_is_done_without(place, full, tmp_path):
    done = run_command("probe", place / "model", place / "images", "--workers", "0")
    assert done.status == 0, done.stderr
    assert str(tmp_path / "cache") in done.stderr + done.stdout


@pytest.mark.slow
def test_openvino_says_it_in_our_words(place, tmp_path):
    """OpenVINO itself says "basic_ios::clear: iostream error", whatever the system refused."""
    pytest.importorskip("openvino")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    out = tmp_path / "out" / "x"
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        done = run_command("export", place / "model", out, "--to", "openvino")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_full(done, out)
    assert not list(out.parent.iterdir())
