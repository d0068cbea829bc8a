"""The table of datasets against itself, and every reader on a miniature in the true format."""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from PIL import Image

from support.miniatures import (
    CLEVR,
    MINIATURES,
    SPLITS,
    dmlab_records,
    dsprites,
    flowers102,
    make_image,
    pets,
    smallnorb,
    svhn,
)
from vitreous.data.datasets.arrays import read_norb
from vitreous.data.datasets.dataset import Dataset, File
from vitreous.data.datasets.store import CARD, Card, find_dataset, open_named
from vitreous.data.datasets.table import DATASETS
from vitreous.data.datasets.tfrecord import prepare_dmlab
from vitreous.data.datasets.vtab import hash_order, vtab_1k
from vitreous.data.folder import FolderSource, open_folder
from vitreous.data.opening import open_data
from vitreous.errors import UserError

ALL = list(DATASETS.values())
READABLE = [name for name, dataset in DATASETS.items() if dataset.read is not None]

# The table against itself


def test_a_row_is_complete(subtests):
    for dataset in ALL:
        with subtests.test(dataset.name):
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", dataset.name)
            assert dataset.title
            assert dataset.licence
            assert re.search(r"(19|20)\d\d", dataset.citation)
            assert dataset.homepage.startswith(("https://", "http://"))
            assert dataset.files
            assert len({file.name for file in dataset.files}) == len(dataset.files)
            assert set(dataset.splits) <= set(SPLITS)
            assert all(count > 0 for count in dataset.splits.values())
            assert dataset.classes > 1


def test_files_have_an_address_or_a_way_to_get_them(subtests):
    for dataset in ALL:
        with subtests.test(dataset.name):
            for file in dataset.files:
                assert bool(file.urls) != bool(file.by_hand)
                assert all(re.match(r"https?://[\w.-]+/", url) for url in file.urls)
                assert "/" not in file.name
                assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)
                assert file.md5 is None or re.fullmatch(r"[0-9a-f]{32}", file.md5)
                assert file.size is None or file.size > 0
                if any(url.startswith("http://") for url in file.urls):  # anybody on the way could change it
                    assert file.sha256 is not None


def test_no_checksum_twice_but_of_shared_files():
    stores = {dataset.folder: dataset for dataset in ALL}.values()
    sums = Counter(one for dataset in stores for file in dataset.files for one in (file.sha256, file.md5) if one)
    assert [one for one, count in sums.items() if count > 1] == []


PUBLISHED = {
    # dataset: classes, train, val, test of VTAB, from the tests of its authors' code
    "caltech101": (102, 2754, 306, 6084),
    "cifar100": (100, 45000, 5000, 10000),
    "dtd": (47, 1880, 1880, 1880),
    "flowers102": (102, 1020, 1020, 6149),
    "pets": (37, 2944, 736, 3669),
    "svhn": (10, 65931, 7326, 26032),
    "sun397": (397, 76128, 10875, 21750),
    "camelyon": (2, 262144, 32768, 32768),
    "eurosat": (10, 16200, 5400, 5400),
    "resisc45": (45, 18900, 6300, 6300),
    "retinopathy": (5, 35126, 10906, 42670),
    "clevr-count": (8, 63000, 7000, 15000),
    "clevr-distance": (6, 63000, 7000, 15000),
    "dsprites-location": (16, 589824, 73728, 73728),
    "dsprites-orientation": (16, 589824, 73728, 73728),
    "smallnorb-azimuth": (18, 24300, 12150, 12150),
    "smallnorb-elevation": (9, 24300, 12150, 12150),
    "dmlab": (6, 65550, 22628, 22735),
    "kitti-distance": (4, 6347, 423, 711),
}


def test_the_19_tasks_of_vtab():
    tasks = [dataset for dataset in ALL if dataset.vtab is not None]
    assert Counter(task.vtab.group for task in tasks) == {"natural": 7, "specialized": 4, "structured": 8}
    assert {task.name for task in tasks} == set(PUBLISHED)
    for task in tasks:
        train, percent = task.splits["train"], task.vtab.train_percent
        cut = train if percent is None else train * percent // 100
        val = task.splits["val"] if percent is None else train - cut
        assert (task.classes, cut, val, task.splits["test"]) == PUBLISHED[task.name]
        assert (percent is None) == ("val" in task.splits)


def test_what_is_shared_is_the_same():
    for folder in {dataset.store for dataset in ALL} - {""}:
        sharing = [dataset for dataset in ALL if dataset.store == folder]
        assert len(sharing) > 1
        assert all(dataset.files == sharing[0].files for dataset in sharing)
        assert folder not in DATASETS


# Readers


def test_every_reader_reads_a_miniature(tmp_path, subtests):
    for name in READABLE:
        with subtests.test(name):
            folder = tmp_path / name
            folder.mkdir()
            expected = MINIATURES[name](folder)
            row = DATASETS[name]
            data = row.read(folder)
            assert set(data.splits) == set(row.splits)
            if isinstance(expected, dict):
                assert {split: source.labels.tolist() for split, source in data.splits.items()} == expected
            for source in data.splits.values():
                assert source.classes == data.classes
                assert source.read(len(source) - 1).mode == "RGB"
                if isinstance(source, FolderSource):
                    assert all(source.path(index).is_file() for index in range(len(source)))
            counts = [len(source) for source in data.splits.values()]
            keys = {source.key(i) for source in data.splits.values() for i in range(len(source))}
            assert len(keys) == sum(counts) or len(keys) == max(counts)  # of arrays in two files, each counts from 0
            if name in ("camelyon", "retinopathy") or (row.vtab is not None and row.vtab.group == "structured"):
                assert len(data.classes) == row.classes  # the reader knows them, whatever the files hold


def test_pets_are_named_after_their_files(tmp_path):
    pets(tmp_path)
    data = DATASETS["pets"].read(tmp_path)
    assert data.classes == ("Abyssinian", "american_bulldog")
    assert data.train.key(4) == "images/american_bulldog_2.jpg"
    for line in ("Abyssinian_1", "x 1 1 1", "a_1 -1"):
        (tmp_path / "annotations" / "trainval.txt").write_text(line)
        with pytest.raises(UserError, match=r"trainval\.txt"):
            DATASETS["pets"].read(tmp_path)


def test_flowers_that_are_not_there(tmp_path):
    import scipy.io

    flowers102(tmp_path)
    scipy.io.savemat(tmp_path / "imagelabels.mat", {"labels": np.array([[1, 2]])})
    with pytest.raises(UserError, match=r"imagelabels\.mat"):
        DATASETS["flowers102"].read(tmp_path)


def test_matlab_files_that_cannot_be_read_are_refused_in_a_sentence(tmp_path, monkeypatch):
    svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"train_32x32\.mat"):
        DATASETS["svhn"].read(tmp_path)
    path.write_bytes(whole)
    monkeypatch.setitem(sys.modules, "scipy.io", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"train_32x32\.mat.*vitreous\[mat\]"):
        DATASETS["svhn"].read(tmp_path)


def test_pixels_of_svhn(tmp_path):
    import scipy.io

    svhn(tmp_path)
    pixels = scipy.io.loadmat(tmp_path / "train_32x32.mat")["X"]
    source = DATASETS["svhn"].read(tmp_path).train
    np.testing.assert_array_equal(np.asarray(source.read(2)), pixels[:, :, :, 2])


def test_pixels_and_bins_of_dsprites(tmp_path):
    count = dsprites(tmp_path)
    images, factors = np.load(tmp_path / "imgs.npy"), np.load(tmp_path / "latents_classes.npy")
    location, orientation = (DATASETS[f"dsprites-{what}"].read(tmp_path) for what in ("location", "orientation"))
    assert {split: len(source) for split, source in location.splits.items()} == {
        "train": count * 80 // 100,
        "val": count // 10,
        "test": count - count * 80 // 100 - count // 10,
    }
    rows = [int(source.key(i)) for source in location.splits.values() for i in range(len(source))]
    assert sorted(rows) == list(range(count))
    for split in SPLITS:
        rows = [int(location.splits[split].key(i)) for i in range(len(location.splits[split]))]
        # VTAB: floor division of the value by (number of values) / 16
        np.testing.assert_array_equal(location.splits[split].labels, np.floor_divide(factors[rows, 4], 2.0))
        np.testing.assert_array_equal(orientation.splits[split].labels, np.floor_divide(factors[rows, 3], 2.5))
    source = location.splits["test"].subset([3, 1])
    row = int(source.key(1))
    np.testing.assert_array_equal(np.asarray(source.read(1, channels=1)), images[row] * 255)
    np.testing.assert_array_equal(source.gather(np.array([1]))[0, 0].numpy(), images[row] * 255)
    assert source.content(1) == (images[row] * 255).tobytes()


def test_pixels_and_angles_of_smallnorb(tmp_path):
    info, pixels = smallnorb(tmp_path)
    azimuth, elevation = (DATASETS[f"smallnorb-{what}"].read(tmp_path) for what in ("azimuth", "elevation"))
    assert azimuth.classes[:3] == ("0", "20", "40")
    assert elevation.classes == tuple(str(30 + 5 * step) for step in range(9))
    np.testing.assert_array_equal(azimuth.train.labels, info[:, 2] // 2)
    np.testing.assert_array_equal(elevation.train.labels, info[:, 1])
    val, test = azimuth.splits["val"], azimuth.splits["test"]
    assert len(val) == len(test) == len(info) // 2
    assert {val.key(i) for i in range(len(val))}.isdisjoint(test.key(i) for i in range(len(test)))
    row = int(test.key(5))
    np.testing.assert_array_equal(np.asarray(test.read(5, channels=1)), pixels[row, 0])  # the left camera
    assert test.labels[5] == info[row, 2] // 2


def test_what_is_not_norb(tmp_path, subtests):
    for content in (b"", b"\x55\x4c\x3d\x1e", b"\0" * 50, b"\x55\x4c\x3d\x1e" + b"\x7f" * 40):
        with subtests.test(content=content):
            (tmp_path / "x.mat").write_bytes(content)
            with pytest.raises(UserError, match=r"x\.mat"):
                read_norb(tmp_path / "x.mat")


def test_a_pickle_in_place_of_an_array_is_not_run(tmp_path):
    dsprites(tmp_path)
    np.save(tmp_path / "latents_classes.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"latents_classes\.npy"):
        DATASETS["dsprites-location"].read(tmp_path)


def test_thirty_of_each_class_of_caltech_whatever_lies_beside(tmp_path):
    MINIATURES["caltech101"](tmp_path)
    first = DATASETS["caltech101"].read(tmp_path)
    other = tmp_path / "caltech-101" / "101_ObjectCategories" / "101_ObjectCategories" / "zebra"
    for number in range(31):
        make_image(other / f"image_{number:04d}.jpg", side=2)
    again = DATASETS["caltech101"].read(tmp_path)
    keys = [[data.splits["test"].key(i) for i in range(4)] for data in (first, again)]
    assert keys[0] == keys[1]


def test_scenes_that_are_none(tmp_path):
    MINIATURES["clevr-count"](tmp_path)
    path = tmp_path / "CLEVR_v1.0" / "scenes" / "CLEVR_train_scenes.json"
    whole = path.read_text()
    for content in (
        whole[: len(whole) // 2],
        "{}",
        '{"scenes": [3]}',
        '{"scenes": [{"image_filename": "../x", "objects": []}]}',
        "[" * 100_000,
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=r"CLEVR_train_scenes\.json"):
            DATASETS["clevr-distance"].read(tmp_path)
    assert len(CLEVR) == 8


def test_records_that_are_damaged(tmp_path, subtests):
    for damage in (b"", b"x" * 11, b"\xff" * 40, b"\x05" + b"\0" * 11 + b"\xff" * 9):
        with subtests.test(damage=damage):
            dmlab_records(tmp_path)
            path = tmp_path / "dmlab-train.tfrecord"
            path.write_bytes(damage or path.read_bytes()[:-3])
            with pytest.raises(UserError, match=rf"dmlab-train\.tfrecord: \w+ {1 if damage else 6}\b"):
                prepare_dmlab(tmp_path)


def test_hdf5_is_turned_into_arrays(tmp_path, monkeypatch):
    """h5py is not among what tests install; what stands for it here has the one call that is used."""
    import sys
    import types

    from vitreous.data.datasets.arrays import prepare_camelyon

    class Held(dict):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    rng = np.random.default_rng(0)
    held = {}
    for split in ("train", "valid", "test"):
        held[f"{split}_x"] = {"x": rng.integers(0, 256, (5, 96, 96, 3), dtype=np.uint8)}
        held[f"{split}_y"] = {"y": np.array([0, 1, 0, 1, 1], np.uint8).reshape(5, 1, 1, 1)}
        for key in ("x", "y"):
            (tmp_path / f"camelyonpatch_level_2_split_{split}_{key}.h5").touch()
    module = types.ModuleType("h5py")
    module.File = lambda path, mode: Held(held[path.stem.removeprefix("camelyonpatch_level_2_split_")])
    monkeypatch.setitem(sys.modules, "h5py", module)
    prepare_camelyon(tmp_path)
    assert not list(tmp_path.glob("*.h5"))
    data = DATASETS["camelyon"].read(tmp_path)
    assert data.splits["val"].labels.tolist() == [0, 1, 0, 1, 1]
    np.testing.assert_array_equal(np.asarray(data.splits["val"].read(3)), held["valid_x"]["x"][3])


# Where they lie


def place_pets(root):
    folder = root / "pets"
    folder.mkdir(parents=True)
    pets(folder)
    (folder / CARD).write_text(Card("pets", ".").to_json())
    return folder


def test_data_are_opened_by_name_and_by_path(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"data:pets.*`vitreous data get pets`"):
        open_data("data:pets")
    folder = place_pets(tmp_path)
    for path in ("data:pets", folder, str(folder)):
        assert open_data(path).train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(open_data(folder, labelled=False).train) == 6
    with pytest.raises(UserError, match=r"'petz'.*pets"):
        open_data("data:petz")
    with pytest.raises(UserError, match="imagenet-v2"):  # one of those that there are
        open_data("data:")


def test_what_several_share_is_opened_by_either_name(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    (tmp_path / "clevr").mkdir()
    MINIATURES["clevr-count"](tmp_path / "clevr")
    (tmp_path / "clevr" / CARD).write_text(Card("files", ".").to_json())
    for name in ("clevr-count", "clevr-distance"):
        (tmp_path / name).mkdir()
        (tmp_path / name / CARD).write_text(Card(name, "../clevr").to_json())
    assert open_data("data:clevr-count").classes[0] == "3"
    assert open_data(tmp_path / "clevr-distance").classes[0] == "at most 8"
    with pytest.raises(UserError, match=r"clevr-count.*clevr-distance"):
        open_data(tmp_path / "clevr")


def test_a_card_that_is_none(tmp_path, subtests):
    folder = place_pets(tmp_path)
    for nonsense in ("", "[]", "{}", '{"dataset": 1, "folder": "."}', '{"dataset": "x", "folder": "."}'):
        with subtests.test(nonsense):
            (folder / CARD).write_text(nonsense)
            with pytest.raises(UserError):
                open_data(folder)


def test_labels_are_not_images(tmp_path, monkeypatch):
    (tmp_path / "imagenet-real").mkdir()
    (tmp_path / "imagenet-real" / CARD).write_text(Card("imagenet-real", ".").to_json())
    with pytest.raises(UserError, match="imagenet-real"):
        open_named("data:imagenet-real", tmp_path)


# VTAB-1k


def test_the_order_of_a_hash_by_hand():
    from hashlib import blake2b

    keys = [f"{number}.jpg" for number in range(50)]
    expected = sorted(range(50), key=lambda one: blake2b(b"salt\0" + keys[one].encode(), digest_size=8).digest())
    assert hash_order(keys, "salt").tolist() == expected


def test_vtab_1k(tmp_path, subtests):
    for percent, own_val in ((90, False), (None, True), (None, False)):
        with subtests.test(percent=percent, own_val=own_val):
            folder = Path(mkdtemp(dir=tmp_path))
            for split, count in {"train": 1000 if own_val else 2000, "val": 300, "test": 30}.items():
                if split == "val" and not own_val:
                    continue
                for label in "ab":
                    (folder / split / label).mkdir(parents=True)
                    for number in range(count // 2):
                        (folder / split / label / f"{number}.png").touch()
            data = open_folder(folder)
            found = vtab_1k(data, "x", percent)
            assert [len(source) for source in (found.train, found.val, found.test)] == [800, 200, 30]
            train, val = ({source.name(i) for i in range(len(source))} for source in (found.train, found.val))
            assert not train & val
            assert len(train) == 800
            assert vtab_1k(data, "x", percent).digest == found.digest
            order = hash_order([data.train.key(i) for i in range(len(data.train))], "vtab-1k")
            assert found.train.key(799) == data.train.key(order[799])
            if not own_val:
                assert found.val.key(0) == data.train.key(order[1800 if percent else 800])
            with pytest.raises(UserError, match=r"800 .* 200"):
                vtab_1k(type(data)({**data.splits, "train": data.train.subset(range(700))}, data.classes), "x", percent)


def test_vtab_1k_does_not_cut_what_its_own_lists_have_divided(tmp_path):
    for split, count in {"train": 800, "val": 200, "test": 30}.items():
        for label in "ab":
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(count // 2):
                (tmp_path / split / label / f"{number}.png").touch()
    data = open_folder(tmp_path)
    found = vtab_1k(data, "pets", 80)
    for chosen, split in ((found.train, "train"), (found.val, "val")):
        whole = data.splits[split]
        assert sorted(map(chosen.key, range(len(chosen)))) == sorted(map(whole.key, range(len(whole))))


def test_where_a_crop_or_a_mirror_image_would_change_the_answer():
    kept = {row.name for row in ALL if not row.varied}
    structured = {row.name for row in ALL if row.vtab is not None and row.vtab.group == "structured"}
    assert kept == structured | {"svhn", "mnist"}


def test_lists_of_vtab_1k_as_others_wrote_them(tmp_path):
    for name, labels in {"train800.txt": [0, 4], "val200.txt": [4], "test.txt": [2, 0, 4]}.items():
        lines = [f"images/{name[:-4]}/{i:06d}.jpg {label}" for i, label in enumerate(labels)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        for line in lines:
            make_image(tmp_path / line.split()[0])
    data = open_data(tmp_path)
    assert [source.labels.tolist() for source in data.splits.values()] == [[0, 4], [4], [2, 0, 4]]
    assert data.classes == ("0", "1", "2", "3", "4")
    assert isinstance(data.train.read(1), Image.Image)


# One more, without touching the package


def read_colours(root):
    """colours.json: {"train": {"red": ["1.png"]}}."""
    from vitreous.data.datasets.images import listed_data

    found = json.loads((root / "colours.json").read_text())
    classes = sorted({label for part in found.values() for label in part})
    images = {
        split: [(name, classes.index(label)) for label, names in part.items() for name in names]
        for split, part in found.items()
    }
    return listed_data(root, images, classes)


COLOURS = Dataset(
    name="colours",
    title="Two colours",
    homepage="https://example.org/colours/",
    licence="CC0",
    citation="Nobody, Two Colours, 2026",
    files=(File("colours.zip", ("https://example.org/colours.zip",)),),
    classes=2,
    splits={"train": 2, "test": 2},
    read=read_colours,
)


def test_a_dataset_is_added_by_one_row_and_one_reader(tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS, "colours", COLOURS)
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path))
    folder = tmp_path / "colours"
    for name in ("1.png", "2.png", "3.png", "4.png"):
        make_image(folder / name)
    content = {"train": {"blue": ["1.png"], "red": ["2.png"]}, "test": {"blue": ["3.png"], "red": ["4.png"]}}
    (folder / "colours.json").write_text(json.dumps(content))
    (folder / CARD).write_text(Card("colours", ".").to_json())
    assert find_dataset("colours") is COLOURS
    assert open_data("data:colours").splits["test"].labels.tolist() == [0, 1]
