import json
import os
import re
import tracemalloc
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from support.images import make_tree, smooth
from vitreous.data.folder import FolderSource, Names
from vitreous.data.opening import open_data
from vitreous.data.source import NoClassesError
from vitreous.errors import UserError


def keys(source: FolderSource) -> list[str]:
    return [source.key(i) for i in range(len(source))]


def check_notes(data, *places: Path):
    """One note on each of these folders, in this order."""
    assert len(data.notes) == len(places), data.notes
    for note, place in zip(data.notes, places, strict=True):
        assert note.startswith(f"{place}: "), note


def test_a_folder_a_class(tmp_path: Path):
    make_tree(tmp_path, {"dog": 2, "cat": 3})
    (tmp_path / "cat" / "deeper").mkdir()
    smooth(9, 9).save(tmp_path / "cat" / "deeper" / "more.JPG", "JPEG")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / "._000.png").write_bytes(b"what a Mac leaves")
    (tmp_path / "nothing").mkdir()
    data = open_data(tmp_path)
    assert data.classes == ("cat", "dog")
    train = data.splits["train"]
    assert set(data.splits) == {"train"}
    assert keys(train) == [
        *("cat/000.png", "cat/001.png", "cat/002.png", "cat/deeper/more.JPG", "dog/000.png", "dog/001.png"),
    ]
    assert train.labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert train.name(0) == str(tmp_path / "cat" / "000.png")
    assert train.read(3, channels=1).size == (9, 9)
    assert train.header(0)[:3] == (20, 24, "RGB")
    assert train.content(4) == (tmp_path / "dog" / "000.png").read_bytes()
    check_notes(data, tmp_path / "nothing")


def test_train_val_and_test_folders(tmp_path: Path, subtests):
    for val in ("val", "valid", "validation", "Val"):
        with subtests.test(val=val):
            folder = Path(mkdtemp(dir=tmp_path))
            for part in ("train", val, "test", "masks"):
                make_tree(folder / part, {"a": 2, "b": 1})
            data = open_data(folder)
            assert list(data.splits) == ["train", "val", "test"]
            assert [len(source) for source in data.splits.values()] == [3, 3, 3]
            assert data.splits["val"].name(0) == str(folder / val / "a" / "000.png")
            check_notes(data, folder / "masks")


def test_a_class_may_be_called_train(tmp_path: Path):
    make_tree(tmp_path, {"train": 2, "plane": 2, "car": 2})
    data = open_data(tmp_path)
    assert data.classes == ("car", "plane", "train")
    assert list(data.splits) == ["train"]


def parts(data):
    return {split: keys(source) for split, source in data.splits.items()}


def test_flat_train_val_and_test_folders_are_parts_without_classes(tmp_path: Path, subtests):
    for val in ("val", "valid", "Validation"):
        with subtests.test(val=val):
            folder = Path(mkdtemp(dir=tmp_path))
            make_tree(folder, {"train": 2, val: 1, "test": 1})
            (folder / "labels").mkdir()
            (folder / "labels" / "000.txt").write_text("a list")
            with pytest.raises(NoClassesError, match=folder.name):
                open_data(folder)
            data = open_data(folder, labelled=False)
            assert parts(data) == {"train": ["000.png", "001.png"], "val": ["000.png"], "test": ["000.png"]}
            assert all((source.labels == -1).all() for source in data.splits.values())
            assert data.splits["val"].name(0) == str(folder / val / "000.png")
            check_notes(data, folder / "labels")


def test_images_beside_flat_parts_make_no_classes_of_them(tmp_path: Path):
    make_tree(tmp_path / "all", {"train": 2, "test": 1, "masks": 1})
    with pytest.raises(NoClassesError, match="all/train: "):
        open_data(tmp_path / "all")
    data = open_data(tmp_path / "all", labelled=False)
    assert parts(data) == {"train": ["000.png", "001.png"], "test": ["000.png"]}
    assert any("masks" in note for note in data.notes)
    with pytest.raises(UserError, match=f"{tmp_path}: .*{tmp_path / 'all'}"):  # where the splits are
        open_data(tmp_path, labelled=False)


def test_without_labels_what_lies_beside_the_parts_is_noted(tmp_path: Path):
    make_tree(tmp_path / "train", {"a": 1, "b": 1})
    make_tree(tmp_path, {"test": 1, "more": 1})
    smooth(9, 9).save(tmp_path / "flat.png")
    data = open_data(tmp_path, labelled=False)
    assert parts(data) == {"train": ["a/000.png", "b/000.png"], "test": ["000.png"]}
    check_notes(data, tmp_path / "more", tmp_path)


def test_one_part_has_class_folders_and_another_not(tmp_path: Path):
    make_tree(tmp_path / "train", {"a": 1, "b": 1})
    make_tree(tmp_path, {"test": 1})
    data = open_data(tmp_path)
    assert list(data.splits) == ["train"]
    check_notes(data, tmp_path / "test")
    make_tree(tmp_path / "other" / "test", {"a": 1, "b": 1})
    make_tree(tmp_path / "other", {"train": 1})
    with pytest.raises(NoClassesError, match="train: "):
        open_data(tmp_path / "other")


def test_two_folders_for_the_same_part(tmp_path: Path):
    make_tree(tmp_path, {"val": 1, "valid": 1})
    with pytest.raises(UserError, match=rf"{tmp_path}: .*\bval\b.*\bvalid\b"):
        open_data(tmp_path)


def test_a_test_folder_alone_and_missing_classes(tmp_path: Path):
    make_tree(tmp_path / "test", {"a": 1, "b": 1})
    assert list(open_data(tmp_path).splits) == ["test"]
    with pytest.raises(UserError, match=r"\btrain\b.*\btest\b"):
        _ = open_data(tmp_path).train
    make_tree(tmp_path / "train", {"a": 1, "c": 1})
    with pytest.raises(UserError, match=r": .*\btest\b.*'b'.*\btrain\b"):
        open_data(tmp_path)


def test_numbered_classes_count_as_numbers(tmp_path: Path):
    make_tree(tmp_path, {"10": 1, "9": 1, "2": 1})
    assert open_data(tmp_path).classes == ("2", "9", "10")


def test_images_without_labels(tmp_path: Path):
    make_tree(tmp_path, {"x": 1, "train": 1})
    smooth(9, 9).save(tmp_path / "flat.png")
    data = open_data(tmp_path, labelled=False)
    assert keys(data.train) == ["flat.png", "train/000.png", "x/000.png"]
    assert data.train.labels.tolist() == [-1, -1, -1]
    (tmp_path / "only").mkdir()
    smooth(9, 9).save(tmp_path / "only" / "flat.png")
    with pytest.raises(UserError, match=r"only: .*path,label"):
        open_data(tmp_path / "only")


def test_nothing_there(tmp_path: Path):
    (tmp_path / "empty" / "empty class").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("x")
    for place in (tmp_path / "empty" / "empty class", tmp_path / "empty", tmp_path / "none", tmp_path / "a.txt"):
        for labelled in (True, False):
            with pytest.raises(UserError, match=f"{place}: "):
                open_data(place, labelled=labelled)


def test_one_class(tmp_path: Path):
    make_tree(tmp_path, {"cat": 3})
    with pytest.raises(UserError, match="'cat'"):
        open_data(tmp_path)


def test_links_are_followed_but_not_for_ever(tmp_path: Path):
    make_tree(tmp_path / "data", {"a": 2, "b": 1})
    make_tree(tmp_path / "elsewhere", {"c": 1})
    (tmp_path / "data" / "c").symlink_to(tmp_path / "elsewhere" / "c")  # a class that lies elsewhere
    (tmp_path / "data" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "a" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "a" / "here").symlink_to(tmp_path / "data" / "a")
    (tmp_path / "data" / "self").symlink_to(tmp_path / "data" / "self")
    (tmp_path / "data" / "b" / "self.png").symlink_to(tmp_path / "data" / "b" / "self.png")
    data = open_data(tmp_path / "data")
    assert data.classes == ("a", "b", "c")
    # the file that is a broken link is kept, to be reported when it is read
    assert keys(data.train) == ["a/000.png", "a/001.png", "b/000.png", "b/self.png", "c/000.png"]
    assert any("up" in note for note in data.notes)
    assert len(open_data(tmp_path / "data", labelled=False).train) == 5


def test_names_in_unicode(tmp_path: Path):
    make_tree(tmp_path, {"猫": 1, "chien à poil": 1, "🐈": 1})
    (tmp_path / "猫" / "žluťoučký kůň.png").write_bytes((tmp_path / "猫" / "000.png").read_bytes())
    data = open_data(tmp_path)
    assert data.classes == ("chien à poil", "猫", "🐈")
    assert all(data.train.read(i).size == (20, 24) for i in range(4))
    odd = os.fsdecode(b"not-utf8-\xff.png")  # Linux allows it
    names = Names(["a", "日本", odd])
    assert [names[i] for i in range(3)] == ["a", "日本", odd]


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_tree(tmp_path, {"a": 1, "b": 1})
    real = os.scandir

    def refuse(path: object) -> object:
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read all folders, so the refusal is played
    with pytest.raises(UserError, match=f"{tmp_path / 'b'}: "):
        open_data(tmp_path)


def test_csv_and_jsonl(tmp_path: Path):
    make_tree(tmp_path / "images", {"x": 4})
    rows = [("000", "cat", "train"), ("001", "dog", ""), ("002", "cat", "valid"), ("003", "dog", "test")]
    lines = ["label,path,split"] + [f'"{label}",images/x/{name}.png,{split}' for name, label, split in rows]
    (tmp_path / "list.csv").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    objects = [{"path": f"images/x/{name}.png", "label": label, "split": split} for name, label, split in rows]
    (tmp_path / "list.jsonl").write_text("\n".join(json.dumps(row) for row in objects) + "\n")
    for name in ("list.csv", "list.jsonl"):
        data = open_data(tmp_path / name)
        assert data.classes == ("cat", "dog")
        assert {split: source.labels.tolist() for split, source in data.splits.items()} == {
            "train": [0, 1],
            "val": [0],
            "test": [1],
        }
        assert data.splits["test"].name(0) == str(tmp_path / "images" / "x" / "003.png")
        assert data.splits["val"].read(0).size == (20, 24)


def test_lists_with_mistakes(tmp_path: Path, subtests):
    for name, text, named in (
        ("l.csv", "file,label\na.png,cat\n", ": .*path,label.*file, label"),
        ("l.csv", "", ""),
        ("l.csv", "path,label\n", ""),
        ("l.csv", "path,label\nmissing.png,cat\n", r"missing\.png"),
        ("l.csv", "path,label,split\na.png,cat,hold\n", "line 2: .*'hold'"),
        ("l.csv", "path,label\na.png\n", r"line 2: path .*\blabel\b"),
        ("l.csv", "path,label\na.png,cat\na.png,cat\n", "'cat'"),
        ("l.csv", "path,label\na.png,cat\na.png,cat, and dog\n", r"line 3: .*' and dog'.*quote"),
        ("l.csv", "path,label,label\na.png,cat,dog\n", r"'label'.*twice"),
        ("l.csv", "path,label\na.png, \n", r"line 2: path .*\blabel\b"),
        ("l.jsonl", '{"path": "a.png", "label": 1}\n{oops\n', "line 2: "),
        ("l.jsonl", "[1]\n", "line 1: "),
        ("l.jsonl", '{"path": "a.png"}\n', r"line 1: path .*\blabel\b"),
    ):
        with subtests.test(text):
            folder = Path(mkdtemp(dir=tmp_path))
            smooth(9, 9).save(folder / "a.png")
            (folder / name).write_text(text)
            with pytest.raises(UserError, match=rf"^{folder / name}\b.*{named}"):
                open_data(folder / name)


def test_one_label_is_not_two_classes(tmp_path: Path):
    """Blanks around it do not make another class of it, nor does the point that a JSON writer gave a whole number."""
    make_tree(tmp_path, {"x": 4})
    (tmp_path / "l.csv").write_text("path,label\nx/000.png,cat\nx/001.png,cat \nx/002.png, dog\nx/003.png,dog\n")
    assert open_data(tmp_path / "l.csv").classes == ("cat", "dog")
    labels = (1, 1.0, 2.5, "1 ")
    rows = [json.dumps({"path": f"x/00{n}.png", "label": label}) for n, label in enumerate(labels)]
    (tmp_path / "l.jsonl").write_text("\n".join(rows))
    data = open_data(tmp_path / "l.jsonl")
    assert data.classes == ("1", "2.5")
    assert data.train.labels.tolist() == [0, 0, 1, 0]


def test_splits_inside_the_class_folders_are_refused(tmp_path: Path):
    """MVTec's shape: read as classes, test images would be trained on."""
    for name in ("bottle", "cable"):
        make_tree(tmp_path / "data" / name / "train", {"good": 2})
        make_tree(tmp_path / "data" / name / "test", {"good": 1, "broken": 1})
    with pytest.raises(UserError, match=r"data/bottle: .*train.*test.*train/bottle.*path,label,split"):
        open_data(tmp_path / "data")
    assert len(open_data(tmp_path / "data", labelled=False).train) == 8
    make_tree(tmp_path / "railways", {"tracks/train": 1, "tracks/tram": 1, "stations": 1})
    assert open_data(tmp_path / "railways").classes == ("stations", "tracks"), "one such name is no split"


def test_lists_that_are_not_text(tmp_path: Path):
    for name, start in (("l.csv", b"path,label\n"), ("l.jsonl", b"\n")):
        (tmp_path / name).write_bytes(start + b"\xff\xfe\x00,\n")
        with pytest.raises(UserError, match=f"{name}, line 2: "):
            open_data(tmp_path / name)


def test_a_large_tree_is_indexed_in_little_memory(tmp_path: Path):
    count = 5000
    open_data(make_tree(tmp_path / "small", {"a": 1, "b": 1}))  # imports what it needs, which is not to be counted
    tmp_path /= "large"
    for label in range(10):
        (tmp_path / f"class {label}").mkdir(parents=True)
        for i in range(count // 10):
            (tmp_path / f"class {label}" / f"image_{i:08d}.jpg").touch()
    tracemalloc.start()
    data = open_data(tmp_path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(data.train) == count
    assert kept / count < 80  # bytes an image, of which its name takes 30
    assert peak / count < 400


def test_subsets_keep_names_and_labels(tmp_path: Path):
    source = open_data(make_tree(tmp_path, {"a": 3, "b": 3})).train
    part = source.subset([5, 0]).subset(np.array([1, 0]))
    assert keys(part) == ["a/000.png", "b/002.png"]
    assert part.labels.tolist() == [0, 1]


def test_real_pets(shared_data: Path):
    data = open_data(shared_data / "pets")
    assert {split: len(source) for split, source in data.splits.items()} == {"train": 1480, "test": 1110}
    assert len(data.classes) == 37
    assert min(data.train.read(0).size) == 240


def test_a_class_whose_name_is_not_text_is_written_one_way(tmp_path: Path):
    odd, same = os.fsdecode(b"caf\xe9"), os.fsdecode(b"caf\\xe9")
    make_tree(tmp_path, {odd: 1, "naïve": 2})
    data = open_data(tmp_path)
    assert data.classes == (r"caf\xe9", "naïve")
    assert data.train.read(0).size == (20, 24), "the file is still found"
    make_tree(tmp_path / "other", {odd: 1, same: 1})
    with pytest.raises(UserError, match=r"other/.*caf.*xe9"):
        open_data(tmp_path / "other")


def test_names_in_a_list_are_text_too(tmp_path: Path):
    make_tree(tmp_path, {"x": 1})
    odd = os.fsdecode(b"x/\xe9.png")
    (tmp_path / "x" / "000.png").rename(tmp_path / odd)
    rows = [{"path": odd, "label": "\ud800"}, {"path": odd, "label": 2}]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = open_data(tmp_path / "l.jsonl")
    assert data.classes == ("2", r"\ud800")
    assert data.train.read(0).size == (20, 24)


def test_what_is_passed_over_is_counted_by_kind(tmp_path: Path):
    make_tree(tmp_path, {"a": 1, "b": 1})
    for name in ("1.jxl", "2.JXL", "3.psd", "notes.txt"):
        (tmp_path / "a" / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "b" / "pipe.png")
    (tmp_path / "b" / "gone").symlink_to(tmp_path / "nowhere")
    (note,) = open_data(tmp_path).notes
    assert re.match(rf"{tmp_path}: .*2 \.jxl, 1 \.psd, 1 link[^,]*, 1 pipe", note)
