import codecs
import gzip
import pickle
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from PIL import Image

from support.make_builtin import write_idx
from vitreous.data.opening import open_data
from vitreous.data.packed import ArraySource
from vitreous.errors import UserError

CODE_RAN: list[str] = []


def cifar_rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def check_pixels(source: ArraySource, index: int, row: np.ndarray) -> None:
    """A row is 1024 red, 1024 green, 1024 blue values, each row by row."""
    image = np.asarray(source.read(index))
    np.testing.assert_array_equal(image[5, 7], [row[c * 1024 + 5 * 32 + 7] for c in range(3)])
    np.testing.assert_array_equal(source.gather(np.array([index]))[0].numpy().ravel(), row)


def test_cifar10_binary(tmp_path: Path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = {name: cifar_rows(3, seed) for seed, name in enumerate(("data_batch_1", "data_batch_2", "test_batch"))}
    for name, pixels in rows.items():
        np.concatenate([[[0], [9], [1]], pixels], axis=1).astype(np.uint8).tofile(folder / f"{name}.bin")
    (folder / "batches.meta.txt").write_text("\n".join(f"kind {i}" for i in range(10)) + "\n\n")
    for path in (tmp_path, folder):
        data = open_data(path)
        assert data.classes == tuple(f"kind {i}" for i in range(10))
        assert data.train.labels.tolist() == [0, 9, 1, 0, 9, 1]
        assert len(data.splits["test"]) == 3
        check_pixels(data.train, 4, rows["data_batch_2"][1])
    assert data.train.name(4) == f"{folder}/train#4"
    with (folder / "data_batch_2.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=r"data_batch_2\.bin: 9220 .* 3073"):
        open_data(folder)


def test_cifar100_binary_takes_the_fine_labels(tmp_path: Path):
    rows = cifar_rows(2, 0)
    for name in ("train", "test"):
        np.concatenate([[[19, 0], [3, 2]], rows], axis=1).astype(np.uint8).tofile(tmp_path / f"{name}.bin")
    (tmp_path / "fine_label_names.txt").write_text("apple\nbear\ncan\n")
    data = open_data(tmp_path)
    assert data.classes == ("apple", "bear", "can")
    assert data.splits["test"].labels.tolist() == [0, 2]
    check_pixels(data.train, 1, rows[1])


def test_cifar_python_versions(tmp_path: Path, subtests):
    for protocol in (2, 4):
        with subtests.test(protocol=protocol):
            folder = Path(mkdtemp(dir=tmp_path))
            rows = cifar_rows(3, 0)
            for name in ("data_batch_1", "test_batch"):
                content = {b"data": rows, b"labels": [1, 0, 1], b"batch_label": b"one"}
                (folder / name).write_bytes(pickle.dumps(content, protocol))
            (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"cat", b"dog"]}, protocol))
            data = open_data(folder)
            assert data.classes == ("cat", "dog")
            assert data.train.labels.tolist() == [1, 0, 1]
            check_pixels(data.train, 2, rows[2])

            hundred = folder / "cifar-100-python"
            hundred.mkdir()
            for name in ("train", "test"):
                content = {"data": rows, "fine_labels": [2, 0, 1], "coarse_labels": [0, 0, 0]}
                (hundred / name).write_bytes(pickle.dumps(content, protocol))
            (hundred / "meta").write_bytes(pickle.dumps({"fine_label_names": ["x", "y", "z"]}, protocol))
            assert open_data(hundred).classes == ("x", "y", "z")
            assert open_data(hundred).train.labels.tolist() == [2, 0, 1]


class Attack:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> object:
        return self.call


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, subtests):
    for attack, name in (
        (Attack(CODE_RAN.append, "ran"), "getattr"),
        (Attack(eval, "1 + 1"), "eval"),
        (Attack(subprocess.call, ["true"]), "call"),
        (Attack(getattr, "text", "upper"), "getattr"),
        (Attack(np.load, "file"), "load"),
        (Attack(__import__, "os"), "__import__"),
        (Attack(codecs.encode, "text", "rot13"), "rot13"),
    ):
        for protocol in (0, 2, 4):
            with subtests.test(attack=attack.call, protocol=protocol):
                (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": attack, b"labels": [0]}, protocol))
                with pytest.raises(UserError, match=rf"data_batch_1: .*\b{name}\b"):  # so it was not called
                    open_data(tmp_path)
                assert not CODE_RAN


def test_damaged_pickles(tmp_path: Path):
    good = pickle.dumps({b"data": cifar_rows(2, 0), b"labels": [0, 1]}, 2)
    cases = {
        good[:100]: "",
        b"": "",
        pickle.dumps([1]): "",
        pickle.dumps({b"data": cifar_rows(2, 0)}, 2): ".*'labels'",
        pickle.dumps({b"data": np.zeros((2, 5)), b"labels": [0, 1]}, 2): ".*'data'",
        pickle.dumps({b"data": cifar_rows(2, 0), b"labels": [0]}, 2): ".*'labels'",
    }
    for content, field in cases.items():
        (tmp_path / "data_batch_1").write_bytes(content)
        with pytest.raises(UserError, match=f"data_batch_1: {field}"):
            open_data(tmp_path)


def write_mnist(folder: Path, packed: bool) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6), dtype=np.uint8)
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", np.array([2, 0, 1, 2], dtype=np.uint8))):
            path = folder / f"{part}-{kind}-ubyte.gz"
            write_idx(path, array)
            if not packed:
                path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
                path.unlink()
    return images


def test_idx(tmp_path: Path, subtests):
    for packed in (True, False):
        with subtests.test(packed=packed):
            folder = Path(mkdtemp(dir=tmp_path))
            images = write_mnist(folder, packed)
            data = open_data(folder)
            assert data.classes == ("0", "1", "2")
            assert list(data.splits) == ["train", "test"]
            assert data.train.labels.tolist() == [2, 0, 1, 2]
            np.testing.assert_array_equal(np.asarray(data.train.read(3, channels=1)), images[3])
            np.testing.assert_array_equal(np.asarray(data.train.read(3))[:, :, 1], images[3])
            (folder / "classes.txt").write_text("coat\nbag\nshoe\n")
            assert open_data(folder).classes == ("coat", "bag", "shoe")
            (folder / "classes.txt").write_text("coat\nbag\n")
            with pytest.raises(UserError, match=r": .*\b2\b.*\b2\b"):
                open_data(folder)


def test_several_datasets_in_one_folder_are_refused(tmp_path: Path):
    """EMNIST's archive unpacks to six variants side by side."""
    for variant in ("emnist-letters-", "emnist-digits-"):
        (tmp_path / variant).mkdir()
        write_mnist(tmp_path / variant, packed=True)
        for path in (tmp_path / variant).iterdir():
            path.rename(tmp_path / f"{variant}{path.name}")
    with pytest.raises(UserError, match=rf"{tmp_path}: .*emnist-digits.*emnist-letters.*folder of its own"):
        open_data(tmp_path)
    for path in tmp_path.glob("emnist-digits-*.gz"):
        path.unlink()
    assert set(open_data(tmp_path).splits) == {"train", "test"}


def test_damaged_idx(tmp_path: Path):
    write_mnist(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    raw = gzip.decompress(whole)
    for content, numbers in (
        (whole[:60], ""),
        (gzip.compress(raw[:-1]), ".*119 .*120"),
        (gzip.compress(raw[:10]), ""),
        (b"nonsense", ""),
        (whole[:30] + b"\xff\xff\xff\xff" + whole[34:], ""),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"train-images-idx3-ubyte\.gz{numbers}"):
            open_data(tmp_path)
    path.write_bytes(whole)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte\.gz"):
        open_data(tmp_path)


def test_npz_in_its_usual_spellings(tmp_path: Path):
    path = tmp_path / "d.npz"
    colour = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    labels = np.array([0, 1, 1, 0])
    np.savez(path, x_train=colour, y_train=labels, x_test=colour, y_test=labels)
    data = open_data(path)
    assert list(data.splits) == ["train", "test"]
    np.testing.assert_array_equal(np.asarray(data.train.read(2)), colour[2])
    np.savez(
        path,
        **{f"{s}_images": colour[..., 0] for s in ("train", "val", "test")},
        **{f"{s}_labels": labels[:, None] for s in ("train", "val", "test")},
    )
    assert list(open_data(path).splits) == ["train", "val", "test"]
    np.savez_compressed(path, images=colour.transpose(0, 3, 1, 2), labels=labels, classes=np.array(["ü", "b"]))
    data = open_data(path)
    assert data.classes == ("ü", "b")
    np.testing.assert_array_equal(np.asarray(data.train.read(2)), colour[2])
    np.savez(path, images=(colour / 255).astype(np.float32), labels=labels)
    np.testing.assert_array_equal(np.asarray(open_data(path).train.read(1)), colour[1])
    np.savez(path, images=colour.astype(np.uint16) * 257, labels=labels)
    np.testing.assert_array_equal(np.asarray(open_data(path).train.read(1)), colour[1])


def test_npz_with_mistakes(tmp_path: Path, subtests):
    path = tmp_path / "d.npz"
    images, labels = np.zeros((2, 4, 4), dtype=np.uint8), np.array([0, 1])
    for arrays, named in (
        ({"a": images}, "x_train.*y_train"),
        ({"images": images, "labels": labels[:1]}, r"\b2 .*\b1 "),
        ({"images": images, "labels": labels * 1.5}, "labels .*float64"),
        ({"images": images, "labels": np.eye(2, dtype=int)}, r"\(2, 2\)"),
        ({"images": images.astype(int), "labels": labels}, "images .*int64.*uint8"),
        ({"images": images[0], "labels": labels}, r"\(4, 4\)"),
        ({"images": images, "labels": -labels}, "-1.*0"),
        ({"images": images, "labels": labels * 0}, "'0'"),
        ({"images": images[:0], "labels": labels[:0]}, ""),
        ({"images": np.array([object()]), "labels": labels}, ""),
    ):
        np.savez(path, **arrays)
        with subtests.test(named), pytest.raises(UserError, match=rf"d\.npz.*{named}"):
            open_data(path)
    np.save(tmp_path / "one.npy", images)
    for content in (path.read_bytes()[:200], (tmp_path / "one.npy").read_bytes(), b"text"):
        path.write_bytes(content)
        with subtests.test(content=content), pytest.raises(UserError, match=r"d\.npz"):
            open_data(path)


def test_subsets_share_the_pixels():
    data = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    source = ArraySource("x", torch.from_numpy(data), np.arange(5), tuple("abcde"))
    part = source.subset([4, 1, 0]).subset([2, 0])
    assert part.images.data_ptr() == source.images.data_ptr()
    assert [part.name(0), part.name(1)] == ["x#0", "x#4"]
    assert part.labels.tolist() == [0, 4]
    np.testing.assert_array_equal(part.gather(np.array([1]))[0].numpy(), data[4])
    assert part.content(1) == data[4].tobytes()
    assert part.header(0) == (4, 4, "RGB", "packed")


def test_real_cifar10(shared_data: Path, tmp_path: Path):
    """A few of the real images, through the official format."""
    sheets = shared_data / "cifar10"
    if not sheets.is_dir():
        pytest.skip("needs CIFAR-10 in ../shared/data")
    script = (shared_data / "unpack_cifar10").read_text()
    assert "cifar-10-batches-bin" in script
    names = tuple((sheets / "classes.txt").read_text().split())
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    labels = np.load(sheets / "labels.npy")[:100]
    with Image.open(sheets / "sheet_1.webp") as image:
        row = np.asarray(image.convert("RGB").crop((0, 0, 3200, 32)))  # the first hundred
    pixels = row.reshape(32, 100, 32, 3).transpose(1, 3, 0, 2).reshape(100, 3072)
    for name in ("data_batch_1", "test_batch"):
        np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8).tofile(folder / f"{name}.bin")
    (folder / "batches.meta.txt").write_text("\n".join(names))
    data = open_data(tmp_path)
    assert data.classes == names
    np.testing.assert_array_equal(np.asarray(data.train.read(7)), row[:, 7 * 32 : 8 * 32])
