"""The report on data, by its verb's function."""

from support.colours import make_images
from vitreous.callbacks import Callbacks
from vitreous.verbs.data import inspect


def test_a_folder_with_trouble(tmp_path):
    make_images(tmp_path / "p" / "train", count=3)
    make_images(tmp_path / "p" / "test", count=2, seed=50)
    copy = tmp_path / "p" / "test" / "red" / "copy.png"
    copy.write_bytes((tmp_path / "p" / "train" / "red" / "0.png").read_bytes())
    (tmp_path / "p" / "train" / "blue" / "0.png").write_bytes(b"no")
    done = []
    found = inspect(tmp_path / "p", callbacks=Callbacks(progress=lambda _, *counts: done.append(counts)))
    assert found.images == 16
    assert {name: part.images for name, part in found.splits.items()} == {"train": 9, "test": 7}
    assert list(found.unreadable) == [str(tmp_path / "p" / "train" / "blue" / "0.png")]
    assert [group.splits for group in found.leaks] == [["test", "train"]]
    assert done[-1] == (16, 16)


def test_the_builtin_data():
    assert inspect("builtin").images == 3100
