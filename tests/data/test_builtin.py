import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.make_builtin import SOURCE, TARGET, select
from vitreous.data.builtin import builtin_data


def test_counts_classes_and_licence():
    data = builtin_data()
    assert {split: len(source) for split, source in data.splits.items()} == {"train": 2500, "test": 600}
    assert np.bincount(data.train.labels).tolist() == [250] * 10
    assert np.bincount(data.splits["test"].labels).tolist() == [60] * 10
    assert len(data.classes) == 10
    assert data.classes[9] == "Ankle boot"
    assert data.train.header(0)[:3] == (28, 28, "L")
    folder: Path = TARGET
    assert sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) < 2e6
    assert "Zalando" in (folder / "LICENSE").read_text()
    assert "Permission is hereby granted" in (folder / "LICENSE").read_text()


@pytest.mark.skipif(not SOURCE.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_they_are_the_first_of_each_class_of_the_original():
    for part, split in (("train", "train"), ("t10k", "test")):
        images, labels = select(SOURCE, part)
        source = builtin_data().splits[split]
        np.testing.assert_array_equal(source.labels, labels)
        np.testing.assert_array_equal(source.images[:, 0].numpy(), images)


def test_the_commands_of_the_makefile_name_what_there_is(tmp_path, monkeypatch):
    """`make demo` writes images by a line of Python: it must run."""
    monkeypatch.chdir(tmp_path)
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (line,) = re.findall(r'python -c "(from vitreous[^"]*)"', makefile)
    exec(line)
    files = {path.name for path in tmp_path.glob("runs/*/*.png")}
    assert len(files) == 10
    assert "Sneaker-1.png" in files
    source = builtin_data().splits["test"]
    first = int(np.flatnonzero(source.labels == source.classes.index("Bag"))[0])
    assert np.array_equal(
        np.asarray(Image.open(tmp_path / "runs/demo-images/Bag-1.png")), np.asarray(source.read(first, channels=1))
    )
