"""Archives that want to write elsewhere, or more than they should: refused, and nothing is written outside."""

import gzip
import io
import re
import shutil
import stat
import tarfile
import zipfile

import pytest

from vitreous.errors import UserError
from vitreous.fetch import archive
from vitreous.fetch.archive import unpack_archive, unpack_gzip


def make_tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as file:
        for member, content in members:
            if isinstance(member, str):
                member = tarfile.TarInfo(member)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def special(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "into" / "here"
    place.mkdir(parents=True)
    return place


def files(place):
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def test_a_tar(tmp_path, folder, subtests):
    for mode in ("w", "w:gz", "w:bz2", "w:xz"):
        with subtests.test(mode=mode):
            inner = [("a/1.jpg", b"one"), ("./a/b/2.jpg", b"two"), ("__MACOSX/a", b"no"), ("a/._1.jpg", b"no")]
            into = folder / mode.replace(":", "-")
            unpack_archive(make_tar(tmp_path / "x", inner, mode), into)
            assert files(into) == {"a/1.jpg": b"one", "a/b/2.jpg": b"two"}


def test_a_zip_of_which_some_is_wanted(tmp_path, folder):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("training/1.png", b"one")
        file.writestr("testing/2.png", b"two")
    unpack_archive(tmp_path / "x.zip", folder, only=("training/",))
    assert files(folder) == {"training/1.png": b"one"}


def test_tars_in_a_tar_each_go_to_a_folder(tmp_path, folder):
    inner = [(f"{name}.tar", make_tar(tmp_path / name, [(f"{name}_1.JPEG", b"x")], "w").read_bytes()) for name in "ab"]
    unpack_archive(make_tar(tmp_path / "x.tar", inner, "w"), folder, nested=True)
    assert files(folder) == {"a/a_1.JPEG": b"x", "b/b_1.JPEG": b"x"}


def test_a_tar_in_a_zip(tmp_path, folder):
    packed = make_tar(tmp_path / "in.tar.gz", [("c/1.jpg", b"x")]).read_bytes()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("top/in.tar.gz", packed)
    unpack_archive(tmp_path / "x.zip", folder, nested=True)
    assert files(folder) == {"top/in/c/1.jpg": b"x"}


EVIL_NAMES = ["../x", "/tmp/x", "a/../../x", "..", "a/..", "C:\\x", "C:/x", "a\\..\\x", "..\\x"]


def test_names_that_lead_elsewhere(tmp_path, folder, subtests):
    for name in EVIL_NAMES:
        for kind in ("tar", "zip", "nested"):
            with subtests.test(name=name, kind=kind):
                path = tmp_path / "x"
                if kind == "zip":
                    with zipfile.ZipFile(path, "w") as file:
                        file.writestr(zipfile.ZipInfo(name), b"evil")
                else:
                    make_tar(path, [(name, b"evil")])
                if kind == "nested":
                    inner = path.read_bytes()
                    make_tar(path, [("in.tar.gz", inner)])
                with pytest.raises(UserError, match=re.escape(f": {name!r}")):
                    unpack_archive(path, folder, nested=True)
                assert files(tmp_path / "into") == {}
                assert files(tmp_path) == {"x": path.read_bytes()}


def test_links_and_devices_in_a_tar(tmp_path, folder, subtests):
    for member in (
        special("link", tarfile.SYMTYPE, "/etc"),
        special("link", tarfile.SYMTYPE, "inside"),
        special("link", tarfile.LNKTYPE, "../x"),
        special("pipe", tarfile.FIFOTYPE),
        special("device", tarfile.CHRTYPE),
        special("disk", tarfile.BLKTYPE),
    ):
        with subtests.test(member=member):
            path = make_tar(tmp_path / "x", [(member, b""), ("link/passwd", b"evil")])
            with pytest.raises(UserError, match=f"x: {member.name!r}"):
                unpack_archive(path, folder)
            assert files(folder) == {}
            assert list(folder.iterdir()) == []


def test_links_in_a_zip(tmp_path, folder):
    member = zipfile.ZipInfo("link")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x", "w") as file:
        file.writestr(member, "/etc")
    with pytest.raises(UserError, match=r"x: .*'link'"):
        unpack_archive(tmp_path / "x", folder)
    assert list(folder.iterdir()) == []


def test_a_bomb_is_stopped(tmp_path, folder, monkeypatch, subtests):
    monkeypatch.setattr(archive, "SPARE_BYTES", 1_000_000)
    path, zeros = tmp_path / "x", bytes(10_000_000)
    for kind in ("tar", "zip", "gzip"):
        with subtests.test(kind):
            if kind == "tar":
                make_tar(path, [("zeros", zeros)])
            elif kind == "zip":
                with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                    file.writestr("zeros", zeros)
            else:
                path.write_bytes(gzip.compress(zeros))
            with pytest.raises(UserError, match=r"x: .* 1\.\d "):
                unpack_gzip(path, folder / "gzip") if kind == "gzip" else unpack_archive(path, folder / kind)
            assert sum(len(content) for content in files(folder).values()) < 2_200_000
            shutil.rmtree(folder)
            folder.mkdir()


def test_too_many_names(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    with pytest.raises(UserError, match=r"x: .* 3 "):
        unpack_archive(make_tar(tmp_path / "x", [(f"{i}", b"") for i in range(5)]), folder)


def test_a_file_and_a_folder_of_one_name(tmp_path, folder):
    with pytest.raises(UserError, match="x: "):
        unpack_archive(make_tar(tmp_path / "x", [("a", b"1"), ("a/b", b"2")]), folder)


def damaged():
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as file:
        member = tarfile.TarInfo("a")
        member.size = 20_000
        file.addfile(member, io.BytesIO(bytes(range(200)) * 100))
    cut = whole.getvalue()[:-40]
    return {"empty": b"", "text": b"hello" * 500, "cut": cut, "zip": b"PK\x03\x04" + bytes(100), "gz": cut[:20]}


def test_what_is_damaged(tmp_path, folder, subtests):
    for name in ("empty", "text", "cut", "zip", "gz"):
        with subtests.test(name=name):
            (tmp_path / "x").write_bytes(damaged()[name])
            with pytest.raises(UserError, match="x: "):
                unpack_archive(tmp_path / "x", folder)


def test_one_file_in_a_gzip(tmp_path, folder):
    (tmp_path / "x.mat.gz").write_bytes(gzip.compress(b"content"))
    unpack_gzip(tmp_path / "x.mat.gz", folder / "x.mat")
    assert files(folder) == {"x.mat": b"content"}
    (tmp_path / "x.mat.gz").write_bytes(gzip.compress(b"content" * 10_000)[:-9])
    with pytest.raises(UserError, match=r"x\.mat\.gz: "):
        unpack_gzip(tmp_path / "x.mat.gz", folder / "y.mat")
