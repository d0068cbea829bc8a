"""A file is whole or as it was before, whatever happens while it is written."""

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vitreous import UserError
from vitreous.errors import MachineError
from vitreous.storage import files
from vitreous.storage.files import create_file, write_file


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_and_bytes_in_a_folder_that_is_made(tmp_path):
    path = tmp_path / "new" / "folder" / "x.html"
    assert write_file(path, "Kühe\n") == path
    assert path.read_bytes() == "Kühe\n".encode()
    write_file(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert names(path.parent) == ["x.html"]


def test_it_is_on_the_disk_before_it_has_its_name_and_then_its_name_is(tmp_path, monkeypatch):
    path, events = tmp_path / "x", []
    path.write_text("old")
    fsync, replace = os.fsync, Path.replace

    def recorded(handle):
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"{os.fstat(handle).st_size} bytes"
        events.append((kind, path.read_text()))
        fsync(handle)

    def renamed(self, target):
        events.append(("rename", path.read_text()))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(Path, "replace", renamed)
    write_file(path, "new text")
    assert events == [("8 bytes", "old"), ("rename", "old"), ("folder", "new text")]


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), MachineError, "x: "),
        (OSError(errno.EIO, "Input/output error"), UserError, "x: .*Input/output"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
    ids=["full", "broken", "interrupted"],
)
def test_what_was_there_stays_when_it_fails(tmp_path, monkeypatch, error, raised, says):
    (tmp_path / "x").write_text("old")

    def fail(_):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(raised, match=says):
        write_file(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "old"
    assert names(tmp_path) == ["x"]


def test_two_processes_at_once_never_mix(tmp_path):
    """Readers see one of the two texts, all of it."""
    path, texts = tmp_path / "x", ["a" * 300_000, "b" * 200_000]
    write_file(path, texts[0])
    children = []
    for text in texts:
        children.append(os.fork())
        if children[-1] == 0:
            try:
                for _ in range(40):
                    write_file(path, text)
                os._exit(0)
            finally:
                os._exit(1)
    waiting, seen = set(children), set()
    while waiting:
        seen.add(path.read_text())
        done, status = os.waitpid(-1, os.WNOHANG)
        waiting -= {done}
        assert status == 0
    assert seen | {path.read_text()} <= set(texts)
    assert names(tmp_path) == ["x"]


def test_it_may_be_read_by_whoever_may_read_a_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "x", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "x")
    for text in ("one", "two"):
        write_file(tmp_path / "link", text)
        assert (tmp_path / "real" / "x").read_text() == text
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    heard = []
    reader = threading.Thread(target=lambda: heard.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    write_file(tmp_path / "pipe", "page")
    reader.join(60)
    assert heard == ["page"]
    assert (tmp_path / "pipe").is_fifo()


def test_places_where_no_file_can_be(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder", tmp_path / "file" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(UserError, match=str(path)):
            write_file(path, "text")
    assert names(tmp_path) == ["file", "folder"]


def test_without_permission(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.Path, "open", refuse)  # the tests may run as root, who may do anything
    with pytest.raises(UserError, match="x: "):
        write_file(tmp_path / "x", "text")


def test_of_many_who_create_a_file_one_does(tmp_path):
    """And the others find it whole, whoever was first."""
    texts = [f"{number}" * 10_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda text: create_file(tmp_path / "below" / "plan.json", text), texts))
    assert sum(created) == 1
    assert (tmp_path / "below" / "plan.json").read_text() == texts[created.index(True)]
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["plan.json"]


def test_a_file_is_created_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def refuse(path, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert create_file(tmp_path / "plan.json", "first")
    assert not create_file(tmp_path / "plan.json", "second")
    assert (tmp_path / "plan.json").read_text() == "first"
