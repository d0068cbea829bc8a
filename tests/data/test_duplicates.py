"""What a training says of copies before it begins."""

import re
import shutil

import numpy as np
import torch
from PIL import Image

from support.images import make_tree
from vitreous.data.duplicates import note_duplicates, without_duplicates
from vitreous.data.opening import open_data
from vitreous.data.packed import ArraySource
from vitreous.data.source import Data


def test_copies_in_two_splits_and_in_two_classes_are_each_one_line(tmp_path):
    for split in ("train", "test"):
        make_tree(tmp_path / split, {"a": 2, "b": 2}, size=(24, 20 + (split == "test")))
    assert note_duplicates(open_data(tmp_path), seconds=60).notes == ()
    shutil.copy(tmp_path / "train/a/000.png", tmp_path / "test/a/copy.png")
    shutil.copy(tmp_path / "train/a/001.png", tmp_path / "test/a/more.png")
    shutil.copy(tmp_path / "train/b/001.png", tmp_path / "train/a/wrong.png")
    leak, torn = note_duplicates(open_data(tmp_path), seconds=60).notes
    assert re.match(r"2 [^(]*\btrain\b[^(]*\btest\b", leak)
    assert f"{tmp_path / 'train/a/000.png'} = {tmp_path / 'test/a/copy.png'}" in leak
    assert torn.startswith("1 ")
    assert f"{tmp_path / 'train/a/wrong.png'} = {tmp_path / 'train/b/001.png'}" in torn


def test_packed_images(tmp_path):
    images = torch.arange(4 * 3 * 4).to(torch.uint8).view(4, 3, 2, 2)
    images[3] = images[0]
    source = ArraySource("x.npz", images, np.array([0, 1, 0, 1]), ("a", "b"))
    (note,) = note_duplicates(Data({"train": source}, ("a", "b")), seconds=60).notes
    assert "x.npz#0 = x.npz#3" in note


def test_no_more_time_than_allowed(tmp_path):
    data = open_data(make_tree(tmp_path, {"a": 2, "b": 2}))
    (note,) = note_duplicates(data, seconds=0).notes
    assert "`vitreous inspect`" in note


def test_copies_of_other_sources_are_left_out(tmp_path):
    for folder, names in {"known": "abc", "new": "bcde"}.items():
        (tmp_path / folder / "deep").mkdir(parents=True)
        for name in names:
            pixels = np.full((6, 6, 3), ord(name), np.uint8)
            where = tmp_path / folder / ("deep" if folder == "new" else "")
            Image.fromarray(pixels).save(where / f"{folder}-{name}.png")
    known, new = (open_data(tmp_path / name, labelled=False).train for name in ("known", "new"))
    left = without_duplicates(new, [known])
    assert [left.key(i) for i in range(len(left))] == ["deep/new-d.png", "deep/new-e.png"]
    assert len(without_duplicates(known, [known])) == 0
