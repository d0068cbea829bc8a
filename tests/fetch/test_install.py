"""A dataset from a server on loopback to its folder: complete, or not there."""

import gzip
import io
import json
import re
import shutil
import tarfile
import threading
from dataclasses import replace
from hashlib import md5, sha256
from pathlib import Path

import pytest

from support.commands import check_refused, run_command
from support.miniatures import MINIATURES
from vitreous.data.datasets.store import CARD, is_here
from vitreous.data.datasets.table import DATASETS
from vitreous.data.opening import open_data
from vitreous.errors import UserError
from vitreous.fetch.install import check_space, install
from vitreous.storage.http import RetryPolicy
from vitreous.storage.lock import hold_folder
from vitreous.verbs.data import get_data

QUICK = RetryPolicy(seconds=60, pause=0.0, tries=2)


def packed(folder, *names):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as file:
        for name in names:
            file.add(folder / name, name)
    return made.getvalue()


def publish(web, file, content, **changes):
    """The file as it would be in the table, had its owners published this content."""
    web.files[file.name] = content
    sums = {"sha256": sha256(content).hexdigest(), "md5": md5(content).hexdigest()}
    return replace(file, urls=(web.url + file.name,), size=len(content), **{**sums, **changes})


@pytest.fixture
def pets(web, tmp_path, monkeypatch):
    """The table's row of Pets, with a miniature on loopback."""
    original = tmp_path / "original"
    original.mkdir()
    MINIATURES["pets"](original)
    row = DATASETS["pets"]
    files = tuple(
        publish(web, file, packed(original, folder))
        for file, folder in zip(row.files, ("images", "annotations"), strict=True)
    )
    small = replace(row, files=files, classes=2, splits={"train": 6, "test": 4})
    monkeypatch.setitem(DATASETS, "pets", small)
    return small


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def left(root):
    return sorted(path.name for path in root.rglob("*")) if root.exists() else []


def test_a_dataset_is_brought(pets, root, web):
    seen = []
    folder = install(pets, root, progress=lambda *three: seen.append(three), retry=QUICK)
    assert folder == root / "pets"
    assert open_data("data:pets").train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    card = json.loads((folder / CARD).read_text())
    assert card["files"]["images.tar.gz"]["sha256"] == pets.files[0].sha256
    assert card["licence"] == "CC BY-SA 4.0"
    assert {what.split()[0] for what, _, _ in seen} == {"images.tar.gz", "annotations.tar.gz", "checking", "unpacking"}
    assert sorted(path.name for path in root.iterdir()) == ["downloads", "pets"]
    assert list((root / "downloads").rglob("*")) == []  # what is unpacked is not kept twice
    asked = len(web.asked)
    assert install(pets, root) == folder
    assert len(web.asked) == asked


def test_a_wrong_checksum_keeps_nothing(pets, root, web):
    content = web.files["annotations.tar.gz"]
    web.files["annotations.tar.gz"] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(UserError, match=rf"annotations\.tar\.gz: .*SHA-256 .*{pets.files[1].sha256}"):
        install(pets, root, retry=QUICK)
    assert not (root / "pets").exists()
    assert left(root) == ["downloads", "images.tar.gz", "images.tar.gz.from", "pets"]  # the right one is
    web.files["annotations.tar.gz"] = content
    install(pets, root, retry=QUICK)
    assert [name for name, _ in web.asked].count("images.tar.gz") == 1


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_either_checksum_is_enough_to_refuse(pets, root, kind):
    wrong = replace(pets.files[0], **{kind: "0" * (64 if kind == "sha256" else 32)})
    with pytest.raises(UserError, match=r"images\.tar\.gz: .*0{32}"):
        install(replace(pets, files=(wrong, pets.files[1])), root, retry=QUICK)
    assert not (root / "pets").exists()


def test_without_a_checksum_the_sum_is_written_down(pets, root, web):
    files = tuple(replace(file, sha256=None, md5=None, size=None) for file in pets.files)
    folder = install(replace(pets, files=files), root, retry=QUICK)
    card = json.loads((folder / CARD).read_text())
    assert card["files"]["images.tar.gz"]["sha256"] == sha256(web.files["images.tar.gz"]).hexdigest()


def test_files_that_a_person_put_there_are_taken_and_kept(pets, root, web):
    place = root / "downloads" / "pets"
    place.mkdir(parents=True)
    for name, content in web.files.items():
        (place / name).write_bytes(content)
    for note in ({"url": web.url + "images.tar.gz", "tag": None, "size": 9}, {"url": "", "tag": None, "finished": 1}):
        (place / "images.tar.gz.from").write_text(json.dumps(note))  # left by a download that was given up
        folder = install(pets, root)
        assert json.loads((folder / CARD).read_text())["files"]["images.tar.gz"]["url"] is None
        assert (place / "images.tar.gz").read_bytes() == web.files["images.tar.gz"]
        shutil.rmtree(folder)
    (place / "images.tar.gz.from").unlink()
    install(pets, root)
    assert web.asked == []
    assert sorted(path.name for path in place.iterdir()) == ["annotations.tar.gz", "images.tar.gz"]
    shutil.rmtree(root / "pets")
    (place / "images.tar.gz").write_bytes(b"not it")
    with pytest.raises(UserError, match=rf"images\.tar\.gz: .* 6 .*{pets.files[0].size:,}"):
        install(pets, root)
    assert (place / "images.tar.gz").read_bytes() == b"not it"


def test_images_that_are_missing(pets, root, web, tmp_path):
    (tmp_path / "original" / "images" / "Abyssinian_2.jpg").unlink()
    first = publish(web, pets.files[0], packed(tmp_path / "original", "images"))
    with pytest.raises(UserError, match=r"pets: images/Abyssinian_2\.jpg"):
        install(replace(pets, files=(first, pets.files[1])), root, retry=QUICK)
    more = replace(pets, files=(first, pets.files[1]), splits={"train": 7, "test": 4})
    with pytest.raises(UserError, match=r"pets: 6 .* 4 .* 2 .* 7 .* 4 .* 2 "):
        install(more, root, retry=QUICK)
    assert not (root / "pets").exists()
    assert not list(root.glob(".*"))


def test_an_evil_archive_leaves_nothing(pets, root, web, tmp_path):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        file.addfile(tarfile.TarInfo("images/ok.jpg"), io.BytesIO(b""))
        file.addfile(tarfile.TarInfo("../../evil"), io.BytesIO(b""))
    evil = publish(web, pets.files[0], made.getvalue())
    with pytest.raises(UserError, match=r"'\.\./\.\./evil'"):
        install(replace(pets, files=(evil, pets.files[1])), root, retry=QUICK)
    assert not list(tmp_path.rglob("evil"))
    assert not list(root.glob(".*"))
    assert not (root / "pets").exists()


def test_what_others_put_at_the_place_stays(pets, root):
    (root / "pets").mkdir(parents=True)
    (root / "pets" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="pets: "):
        install(pets, root, retry=QUICK)
    assert (root / "pets" / "mine.txt").read_text() == "mine"


def test_an_unfinished_folder_is_replaced(pets, root):
    (root / ".pets.new").mkdir(parents=True)
    (root / ".pets.new" / "half").touch()
    install(pets, root, retry=QUICK)
    assert not (root / ".pets.new").exists()
    assert not (root / "pets" / "half").exists()


def test_no_room(pets, root):
    large = replace(pets, files=(replace(pets.files[0], size=10**15), pets.files[1]))
    with pytest.raises(UserError, match=r"pets: .* 2\.0 "):
        check_space(large, root)
    copied = replace(pets.files[0], size=10**15, kind="plain")
    with pytest.raises(UserError, match=r" 2\.0 "):
        check_space(replace(pets, files=(copied,)), root)
    with pytest.raises(UserError, match=r" 3\.0 "):
        check_space(replace(pets, files=(copied,), prepared=10**15), root)


def test_tasks_share_their_files(web, root, tmp_path, monkeypatch):
    original = tmp_path / "original"
    original.mkdir()
    MINIATURES["smallnorb-azimuth"](original)
    row = DATASETS["smallnorb-azimuth"]
    files = tuple(
        publish(web, file, gzip.compress((original / file.name.removesuffix(".gz")).read_bytes())) for file in row.files
    )
    for name in ("smallnorb-azimuth", "smallnorb-elevation"):
        small = replace(DATASETS[name], files=files, splits={"train": 648, "val": 324, "test": 324})
        monkeypatch.setitem(DATASETS, name, small)
        get_data(name)
    assert len(web.asked) == 4  # once
    assert sorted(path.name for path in root.iterdir()) == [
        *("downloads", "smallnorb", "smallnorb-azimuth", "smallnorb-elevation")
    ]
    assert len(open_data("data:smallnorb-azimuth").classes) == 18
    assert len(open_data(root / "smallnorb-elevation").classes) == 9


def test_what_a_person_has_to_get_is_named_and_then_linked(web, root, monkeypatch):
    row = DATASETS["resisc45"]
    with pytest.raises(UserError, match=r"resisc45: .*NWPU-RESISC45/"):
        install(row, root)
    place = root / "downloads" / "resisc45"
    place.mkdir(parents=True)
    MINIATURES["resisc45"](place)
    files = [row.files[0]]
    files += [publish(web, file, (place / file.name).read_bytes()) for file in row.files[1:]]
    for file in row.files[1:]:
        (place / file.name).unlink()
    small = replace(row, files=tuple(files), classes=2, splits=dict.fromkeys(("train", "val", "test"), 2))
    monkeypatch.setitem(DATASETS, "resisc45", small)
    install(small, root, retry=QUICK)
    assert (root / "resisc45" / "NWPU-RESISC45").readlink() == Path("../downloads/resisc45/NWPU-RESISC45")
    moved = root.rename(root.with_name("moved"))  # all of it can go elsewhere
    assert open_data(moved / "resisc45").train.labels.tolist() == [0, 1]
    assert open_data(moved / "resisc45").train.read(0)
    assert is_here(small, moved)
    (moved / "downloads" / "resisc45" / "NWPU-RESISC45").rename(moved / "elsewhere")
    assert not is_here(small, moved)
    with pytest.raises(UserError, match=r"downloads/resisc45/NWPU-RESISC45"):
        install(small, moved)


def test_a_plain_file_that_a_person_put_there_is_copied(pets, root):
    notes = replace(pets.files[0], name="notes.csv", urls=(), kind="plain", size=None, sha256=None, md5=None)
    place = root / "downloads" / "pets"
    place.mkdir(parents=True)
    (place / "notes.csv").write_text("a,b\n")
    folder = install(replace(pets, files=(*pets.files, notes)), root, retry=QUICK)
    assert (place / "notes.csv").exists()
    shutil.rmtree(root / "downloads")
    assert (folder / "notes.csv").read_text() == "a,b\n"


def test_imagenet_from_its_own_archives(web, root, tmp_path, monkeypatch):
    original = tmp_path / "original"
    original.mkdir()
    MINIATURES["imagenet"](original)
    place = root / "downloads" / "imagenet"
    place.mkdir(parents=True)
    row = DATASETS["imagenet"]
    with tarfile.open(place / "ILSVRC2012_img_train.tar", "w") as outer:
        for synset in ("n01", "n02"):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as file:
                for path in sorted((original / "train" / synset).iterdir()):
                    file.add(path, path.name)
            member = tarfile.TarInfo(f"{synset}.tar")
            member.size = len(inner.getvalue())
            outer.addfile(member, io.BytesIO(inner.getvalue()))
    with tarfile.open(place / "ILSVRC2012_img_val.tar", "w") as file:
        for path in sorted((original / "val").iterdir()):
            file.add(path, path.name)
    (place / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(packed(original, "ILSVRC2012_devkit_t12"))
    files = tuple(replace(file, size=None, sha256=None, md5=None) for file in row.files)
    small = replace(row, files=files, classes=2, splits={"train": 4, "val": 3})
    monkeypatch.setitem(DATASETS, "imagenet", small)
    install(small, root)
    data = open_data("data:imagenet")
    assert data.classes == ("n01", "n02")
    assert data.splits["val"].labels.tolist() == [1, 0, 1]
    assert len(list(place.iterdir())) == 3  # they are the person's


def test_a_package_that_is_missing_is_named_before_any_download(root):
    row = replace(DATASETS["camelyon"], needs=("no_such_package",))
    with pytest.raises(UserError, match="no_such_package"):
        install(row, root)
    assert left(root) == []


def test_one_process_at_a_time(pets, root):
    place = root / "downloads" / "pets"
    place.mkdir(parents=True)
    held, done = threading.Event(), threading.Event()

    def hold():
        with hold_folder(place, print):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        with pytest.raises(UserError, match="pets"):
            get_data("pets")
    finally:
        done.set()
        thread.join()


def run(*args):
    outcome = run_command(*args)
    return outcome.status, outcome.stdout, outcome.stderr


def test_the_commands(pets, root):
    status, out, err = run("data", "get", "pets")
    assert (status, out, err) == (0, f"{root / 'pets'}\n", "")
    status, out, err = run("data", "get", "pets")
    assert (status, out) == (0, f"{root / 'pets'}\n")
    assert err.startswith(f"vitreous: {root / 'pets'}: ")
    status, out, _ = run("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["pets"]["here"]
    assert not rows["dtd"]["here"]
    assert rows["imagenet"]["by_hand"][0] == "ILSVRC2012_img_train.tar"
    images = pets.files[0]
    assert rows["pets"]["sources"][0] == {
        "name": "images.tar.gz",
        "urls": list(images.urls),
        "size": images.size,
        "sha256": images.sha256,
        "md5": images.md5,
    }
    status, out, _ = run("data", "list")
    assert next(line.split()[:3] for line in out.splitlines() if line.startswith("pets")) == ["pets", "yes", "2"]
    status, out, _ = run("inspect", "data:pets")
    assert status == 0
    assert re.match(r"10 .*\b2 ", out.splitlines()[0])


def test_one_damaged_card_is_said_in_its_row(root):
    for name, card in (("pets", "{"), ("dtd", '{"dataset": 3}')):
        (root / name).mkdir(parents=True)
        (root / name / CARD).write_text(card)
    status, out, err = run("data", "list")
    assert (status, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines() if line.split()[1:2] == ["damaged"]} == {"pets", "dtd"}
    rows = {row["name"]: row for row in json.loads(run("data", "list", "--json")[1])}
    assert "vitreous-dataset.json" in rows["pets"]["damaged"]
    assert (rows["svhn"]["damaged"], rows["pets"]["here"]) == (None, False)


MISTAKES = {
    ("data", "gte"): ("data gte: ", "`vitreous data get`"),
    ("data", "zzz"): ("data zzz: ", "`vitreous data --help`"),
    ("data", "--zzz"): ("data --zzz: ", "`vitreous data --help`"),
    ("data", ""): ("data '': ", "`vitreous data --help`"),
    ("data", "get"): ("data get: ", "NAME", "`vitreous data get --help`"),
    ("data", "get", "petz"): ("'petz': ", "pets"),
    ("data", "get", "pets", "--root", ""): ("--root '': ",),
    ("data", "get", "pets", "--rot", "x"): ("--rot: ", "--root"),
    ("inspect", "data:dtd"): ("data:dtd: ", "`vitreous data get dtd`"),
}


def test_mistakes(root, subtests):
    for args, (start, *named) in MISTAKES.items():
        with subtests.test(args=args):
            outcome = run_command(*args)
            assert outcome.stdout == ""
            check_refused(outcome, f"vitreous: {start}", *named)


def test_help_of_the_first_word():
    for args, code in {("data",): 2, ("data", "--help"): 0, ("data", "-h"): 0}.items():
        status, out, err = run(*args)
        assert status == code
        assert "data get" in (err if code else out)
        assert (out if code else err) == ""
