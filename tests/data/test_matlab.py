"""MATLAB files as SciPy writes them, and as nobody should."""

import struct
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
import scipy.io

from vitreous.data.datasets.matlab import read_mat, read_numbers
from vitreous.errors import UserError

KINDS = ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]


def test_numbers(tmp_path, subtests):
    for packed in (False, True):
        for kind in KINDS:
            with subtests.test(packed=packed, kind=kind):
                rng = np.random.default_rng(0)
                arrays = {
                    "three": rng.integers(0, 100, (3, 4, 5)).astype(kind),
                    "one": np.array([[7]], kind),
                    "row": np.arange(100, dtype=kind)[None],
                    "none": np.zeros((0, 3), kind),
                }
                scipy.io.savemat(tmp_path / "x.mat", arrays, do_compression=packed)
                found = read_mat(tmp_path / "x.mat", *arrays)
                for name, array in arrays.items():
                    assert found[name].dtype == array.dtype
                    np.testing.assert_array_equal(found[name], array)


def test_texts_cells_and_structs(tmp_path, subtests):
    for packed in (False, True):
        with subtests.test(packed=packed):
            cells = np.empty((2, 2), dtype=object)
            cells[:, 0] = "AM General", np.array([[1.5]])
            cells[:, 1] = "Zoë", np.zeros((0, 0))
            rows = np.zeros((2, 1), dtype=[("name", "O"), ("box", "O")])
            rows[0, 0], rows[1, 0] = ("a", np.array([[1, 2]])), ("bb", np.array([[3, 4]]))
            scipy.io.savemat(tmp_path / "x.mat", {"c": cells, "s": rows, "t": "hello"}, do_compression=packed)
            found = read_mat(tmp_path / "x.mat", "c", "s", "t")
            assert found["t"] == "hello"
            assert isinstance(found["c"], tuple)
            first, number, text, nothing = found["c"]
            assert (first, float(number[0, 0]), text, nothing.size) == ("AM General", 1.5, "Zoë", 0)
            assert isinstance(found["s"], list)
            assert [row["name"] for row in found["s"]] == ["a", "bb"]
            assert [row["box"].tolist() for row in found["s"]] == [[[1, 2]], [[3, 4]]]


def test_the_other_order_of_bytes(tmp_path):
    """Written by hand: SciPy writes only its machine's own."""

    def element(kind, body):
        return struct.pack(">II", kind, len(body)) + body + bytes(-len(body) % 8)

    body = element(6, struct.pack(">II", 12, 0)) + element(5, struct.pack(">ii", 1, 2))  # class int32, 1 x 2
    body += element(1, b"x") + element(3, struct.pack(">hh", -5, 300))  # stored as int16
    (tmp_path / "x.mat").write_bytes(b"MATLAB 5.0".ljust(124) + struct.pack(">H", 0x0100) + b"MI" + element(14, body))
    (found,) = read_numbers(tmp_path / "x.mat", "x")
    assert found.dtype == np.int32
    assert found.tolist() == [[-5, 300]]


def test_what_is_not_there_or_not_numbers(tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"t": "text"})
    with pytest.raises(UserError, match=r"x\.mat: .*'labels'"):
        read_numbers(tmp_path / "x.mat", "labels")
    with pytest.raises(UserError, match=r"x\.mat: t "):
        read_numbers(tmp_path / "x.mat", "t")


def test_what_is_not_read(tmp_path, subtests):
    for value in (np.array([[1j]]), scipy.sparse.csc_matrix(np.eye(3))):
        with subtests.test(value=value):
            scipy.io.savemat(tmp_path / "x.mat", {"x": value})
            with pytest.raises(UserError, match=r"x\.mat"):
                read_mat(tmp_path / "x.mat", "x")


def test_no_damage_is_more_than_a_sentence(tmp_path, subtests):
    """Cut anywhere, and with any byte changed: an array, or one error."""
    for packed in (False, True):
        with subtests.test(packed=packed):
            rows = np.zeros((2, 1), dtype=[("name", "O"), ("box", "O")])
            rows[0, 0], rows[1, 0] = ("a", np.array([[1, 2]])), ("b", np.array([[3, 4]]))
            path = tmp_path / "x.mat"
            scipy.io.savemat(path, {"s": rows, "x": np.arange(6.0)}, do_compression=packed)
            whole = path.read_bytes()
            rng = np.random.default_rng(0)
            for _ in range(300):
                content = bytearray(whole[: rng.integers(0, len(whole) + 1)] if rng.random() < 0.3 else whole)
                for place in rng.integers(0, max(1, len(content)), 2):
                    if place < len(content):
                        content[place] = rng.integers(0, 256)
                path.write_bytes(content)
                with suppress(UserError):
                    read_mat(path, "s", "x")


def element(kind, body):
    return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)


FLAGS, NAME, VALUES = element(6, struct.pack("<II", 6, 0)), element(1, b"x"), element(9, struct.pack("<d", 1))
ODD = {
    "no flags": element(6, b"") + element(5, struct.pack("<ii", 1, 1)) + NAME + VALUES,
    "no sides": FLAGS + element(5, b"") + NAME + VALUES,
    "infinite sides": FLAGS + element(9, struct.pack("<dd", float("inf"), 1)) + NAME + VALUES,
    "sides that are no numbers": FLAGS + element(9, struct.pack("<dd", float("nan"), 1)) + NAME + VALUES,
    "no length of names": element(6, struct.pack("<II", 2, 0))
    + element(5, struct.pack("<ii", 1, 1))
    + NAME
    + element(5, b"")
    + element(1, b"a"),
}


def test_odd_heads_of_arrays(tmp_path, subtests):
    head = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    for name, body in ODD.items():
        (tmp_path / "x.mat").write_bytes(head + element(14, body))
        with subtests.test(name), pytest.raises(UserError, match=r"x\.mat"):
            read_mat(tmp_path / "x.mat", "x")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    """A packed array that claims four gigabytes, in a file of a few bytes."""
    packed = zlib.compress(struct.pack("<II", 14, 2**32 - 8) + bytes(1000))
    head = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    (tmp_path / "x.mat").write_bytes(head + struct.pack("<II", 15, len(packed)) + packed)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"x\.mat"):
        read_mat(tmp_path / "x.mat", "x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6


def test_level_7_3_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "x.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM" + bytes(999))
    with pytest.raises(UserError, match=r"x\.mat: .*level 5.*2\.0"):
        read_numbers(tmp_path / "x.mat", "x")
