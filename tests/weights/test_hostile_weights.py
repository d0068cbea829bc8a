"""Files that call themselves weights, descriptions beside them, and what may be asked of `vitreous import`."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from support.commands import check_refused, run_command

WIDTH, PATCH, SIDE = 64, 4, 16


def state(**changes):
    """A small ViT in timm's names."""
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, generator=draw) * 0.1

    found = {
        "cls_token": numbers(1, 1, WIDTH),
        "pos_embed": numbers(1, 17, WIDTH),
        "patch_embed.proj.weight": numbers(WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": numbers(WIDTH),
        "blocks.0.attn.qkv.weight": numbers(3 * WIDTH, WIDTH),
        "blocks.0.attn.qkv.bias": numbers(3 * WIDTH),
        "blocks.0.attn.proj.weight": numbers(WIDTH, WIDTH),
        "blocks.0.attn.proj.bias": numbers(WIDTH),
        "blocks.0.mlp.fc1.weight": numbers(128, WIDTH),
        "blocks.0.mlp.fc1.bias": numbers(128),
        "blocks.0.mlp.fc2.weight": numbers(WIDTH, 128),
        "blocks.0.mlp.fc2.bias": numbers(WIDTH),
        "head.weight": numbers(5, WIDTH),
        "head.bias": numbers(5),
    }
    for norm in ("blocks.0.norm1", "blocks.0.norm2", "norm"):
        found |= {f"{norm}.weight": numbers(WIDTH), f"{norm}.bias": numbers(WIDTH)}
    return found | changes


def torch_file(content, path, old=False):
    torch.save(content, path, _use_new_zipfile_serialization=not old)


class Bomb:
    """A pickle that, if it were obeyed, would make a folder."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def repeated(*shape):
    """A few stored numbers that claim any shape."""
    return torch.zeros(1).expand(*shape)


def itself():
    loop = []
    loop.append(loop)
    return loop


def doubled(times=60):
    """Two of two of two: sixty lists that are 2^60 when counted one by one."""
    value = [torch.zeros(1)]
    for _ in range(times):
        value = [value, value]
    return value


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


NORM = "norm.weight"
PTH = {
    "NaN": lambda path: torch_file(state(**{NORM: torch.full((WIDTH,), torch.nan)}), path),
    "infinity": lambda path: torch_file(state(**{NORM: torch.full((WIDTH,), torch.inf)}), path),
    "int8": lambda path: torch_file(state(**{NORM: torch.ones(WIDTH, dtype=torch.int8)}), path),
    "int64": lambda path: torch_file(state(**{NORM: torch.ones(WIDTH, dtype=torch.int64)}), path),
    "bool": lambda path: torch_file(state(**{NORM: torch.ones(WIDTH, dtype=torch.bool)}), path),
    "complex": lambda path: torch_file(state(**{NORM: torch.ones(WIDTH, dtype=torch.complex64)}), path),
    "sparse": lambda path: torch_file(state(**{NORM: torch.ones(WIDTH).to_sparse()}), path),
    "on no device": lambda path: torch_file(state(**{NORM: torch.ones(WIDTH, device="meta")}), path),
    "terabytes of one number": lambda path: torch_file(state(**{"head.weight": repeated(10**10, WIDTH)}), path),
    "gigabytes of one number": lambda path: torch_file(state(**{"head.weight": repeated(10**7, WIDTH)}), path),
    "a block number of 19 digits": lambda path: torch_file(
        state(**{"blocks.999999999999999999.norm1.weight": torch.ones(WIDTH)}), path
    ),
    "a block number of 5,000 digits": lambda path: torch_file(
        state(**{f"blocks.{'9' * 5000}.norm1.weight": torch.ones(WIDTH)}), path
    ),
    "a block number in other digits": lambda path: torch_file(state(**{"blocks.².x": torch.ones(3)}), path),
    "code": lambda path: torch_file({"model": state(), "args": Bomb(str(path.parent / "trap"))}, path),
    "code, old": lambda path: torch_file({"model": state(), "args": Bomb(str(path.parent / "trap"))}, path, old=True),
    "code alone": lambda path: path.write_bytes(pickle.dumps(Bomb(str(path.parent / "trap")))),
    "a list that holds itself": lambda path: torch_file({"a": itself()}, path),
    "lists doubled sixty times": lambda path: torch_file({"a": doubled()}, path),
    "a name of a million letters": lambda path: torch_file(state(**{"a" * 10**6: torch.ones(3)}), path),
    "a name with line ends": lambda path: torch_file(state(**{"a\nvitreous: all is well.": torch.ones(3)}), path),
    "numbers for names": lambda path: torch_file({1: torch.ones(3), 2: torch.ones(3)}, path),
    "a tensor": lambda path: torch_file(torch.ones(3), path),
    "a number": lambda path: torch_file(3, path),
    "nothing": lambda path: torch_file({}, path),
    "no positions": lambda path: torch_file({k: v for k, v in state().items() if k != "pos_embed"}, path),
    "a position table of no axis": lambda path: torch_file(state(pos_embed=torch.tensor(1.0)), path),
    "an empty table": lambda path: torch_file(state(pos_embed=torch.zeros(1, 0, WIDTH)), path),
    "a width that is none": lambda path: torch_file(
        state(**{"patch_embed.proj.weight": torch.zeros(0, 3, 4, 4)}), path
    ),
    "two models": lambda path: torch_file({"a": state(), "b": state()}, path),
    "a page": lambda path: path.write_text("<!DOCTYPE html><title>404</title>"),
    "a pickle that ends": lambda path: path.write_bytes(b"\x80\x02}q\x00"),
    "a pickle of nothing": lambda path: path.write_bytes(b"\x80\x04N."),
    "a pickle that claims terabytes": lambda path: path.write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 2**42) + b"x"),
    "a storage that claims terabytes": lambda path: huge_storage(path),
    "a pipe": lambda path: os.mkfifo(path),
    "zeros from a device": lambda path: path.symlink_to("/dev/zero"),
    "the terminal's device": lambda path: path.symlink_to("/dev/null"),
    "a loop": lambda path: path.symlink_to(path.name),
    "8 TB of nothing": lambda path: sparse_file(path, b"", 2**43),
    "1 TB of a pickle": lambda path: sparse_file(path, b"\x80\x02}", 2**40),
}


def sparse_file(path, start, size):
    with path.open("wb") as file:
        file.write(start)
        try:
            file.truncate(size)
        except OSError:
            pytest.skip("this file system has no sparse files of that size")


def huge_storage(path):
    """Torch's older format, in which the header says how long each storage is."""
    file = io.BytesIO()
    torch.save(OrderedDict(a=torch.zeros(3)), file, _use_new_zipfile_serialization=False)
    content = file.getvalue()
    at = content.index(b"cpu") + 3
    place = content.index(b"K\x03", at)  # the number of elements
    path.write_bytes(content[:place] + b"\x8a\x06" + (2**40).to_bytes(6, "little") + content[place + 2 :])


@pytest.mark.slow
def test_hostile_files_of_torch(subtests, tmp_path):
    for number, (name, write) in enumerate(PTH.items()):
        with subtests.test(name):
            folder = tmp_path / str(number)
            folder.mkdir()
            write(folder / "w.pth")
            check_refused(run_command("import", folder / "w.pth", folder / "out"), "w.pth")
            assert [path.name for path in folder.iterdir()] == ["w.pth"]


def test_a_name_that_is_too_long(tmp_path):
    check_refused(run_command("import", tmp_path / ("x" * 300), tmp_path / "out"), "x" * 13)
    assert not (tmp_path / "out").exists()


def zipped(members, compression=zipfile.ZIP_STORED):
    def write(path):
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    return write


def array_header(shape, dtype="<f4"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def array_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


DEFLATED = zipfile.ZIP_DEFLATED
NPZ = {
    "no entries": zipped({}),
    "a letter": zipped({"letter.txt": "hello"}),
    "an empty array file": zipped({"a.npy": b""}),
    "a shape of terabytes": zipped({"a.npy": array_header((2**40,))}),
    "a shape of exabytes": zipped({"a.npy": array_header((2**31, 2**31))}),
    "a shape that overflows": zipped({"a.npy": array_header((2**62, 2**62))}),
    "a negative shape": zipped({"a.npy": array_header((-1,))}),
    "objects": zipped({"a.npy": array_header((1,), "|O") + b"x"}),
    "texts": zipped({"a.npy": array_bytes(np.array(["a", "b"]))}),
    "dates": zipped({"a.npy": array_bytes(np.array([1], "datetime64[s]"))}),
    "records": zipped({"a.npy": array_bytes(np.zeros(2, [("a", "<f4"), ("b", "<i4")]))}),
    "complex": zipped({"a.npy": array_bytes(np.zeros(2, complex))}),
    "a header that runs": zipped({"a.npy": b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').mkdir('trap')  "}),
    "a header without end": zipped({"a.npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"}),
    "a bomb of 300 MB": zipped({"a.npy": array_bytes(np.zeros(75 * 10**6, np.float32))}, DEFLATED),
    "a bomb of a pickle": zipped({"x/data.pkl": bytes(10**8), "x/version": b"3"}, DEFLATED),
    "a path upwards": zipped({"../../a.npy": array_bytes(np.zeros(3))}),
    "a thousand names": zipped({f"{k}.npy": array_bytes(np.zeros(1)) for k in range(1000)}),
    "the same name twice": zipped({"a.npy": array_bytes(np.zeros(3)), "./a.npy": array_bytes(np.zeros(3))}),
    "a list that is cut": lambda path: (zipped({"a.npy": array_bytes(np.zeros(3))})(path), cut(path, 30)),
    "a torch file without its pickle": zipped({"x/data/0": b"1234", "x/version": b"3"}),
    "an empty pickle": zipped({"x/data.pkl": b"", "x/version": b"3"}),
    "an encrypted entry": lambda path: encrypted(path),
}


def cut(path, count):
    path.write_bytes(path.read_bytes()[:-count])


def encrypted(path):
    zipped({"a.npy": array_bytes(np.zeros(3))})(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    content[6] |= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_hostile_archives(subtests, tmp_path):
    for number, (name, write) in enumerate(NPZ.items()):
        with subtests.test(name):
            folder = tmp_path / str(number)
            folder.mkdir()
            write(folder / "w.npz")
            check_refused(run_command("import", "w.npz", "out", cwd=folder), "w.npz")
            assert [path.name for path in folder.iterdir()] == ["w.npz"]


ARGUMENTS = {
    "num_heads": ("4", -1, 0.5, [], 10**30, 63),
    "img_size": ("16", [16], [16, 16, 16], -16, {}, 32, [None, 3]),
    "embed_dim": (32, "64"),
    "depth": (7, "1", 10**12),
    "patch_size": (8,),
    "in_chans": (1,),
    "act_layer": ("mish", 3, []),
    "reg_tokens": (4,),
    "qk_norm": (True,),
    "init_values": ("x", []),
    "norm_layer": ("rmsnorm",),
    "strange": (1,),
}
TIMM = {f"model_args.{n}={v!r:.20}": {"model_args": {n: v}} for n, values in ARGUMENTS.items() for v in values}
PREPROCESS = {"mean": [0.5] * 3, "std": [0.5] * 3}
TIMM |= {
    f"pretrained_cfg.{n}={v!r:.20}": {"pretrained_cfg": PREPROCESS | {n: v}}
    for n, values in {
        "mean": ("x", [], [1e300] * 3, [None] * 3, {}, [0.5]),
        "std": (None, [0, 0, 0], [-1] * 3, "x"),
        "crop_pct": ("0.9", -1, 1e-300, 5, []),
        "interpolation": ("hamming", 3, []),
        "crop_mode": ("border", 3, []),
        "input_size": ([3], [3, 0, 0], "x", [3, "a", "b"], [3, 10**9, 10**9], 3),
        "label_names": ("abcde", {"a": 1}, [1, 2, 3, 4, 5], 3, [["a"]] * 5),
    }.items()
    for v in values
}
TIMM |= {
    f"{n}={v!r:.20}": {n: v}
    for n, values in {
        "pretrained_cfg": ("abc", [1], 3),
        "model_args": ([1], "x", 3),
        "label_names": ("abcde", [1] * 5, ["a"] * 5, 3, {"a": "b"}),
        "num_classes": (7, "5"),
        "num_features": (3,),
        "architecture": ("vit_base_patch16_clip_224", "beit_base_patch16_224", "vit_small_patch16_dinov3"),
    }.items()
    for v in values
}


@pytest.mark.slow
def test_hostile_descriptions_of_timm(subtests, tmp_path):
    save_file(state(), tmp_path / "model.safetensors")
    for name, config in TIMM.items():
        with subtests.test(name):
            (tmp_path / "config.json").write_text(json.dumps(config))
            check_refused(run_command("import", tmp_path, tmp_path / "out"), str(tmp_path))
            assert not (tmp_path / "out").exists()


ASKED = {
    "--channels": (100_000_000, 10**15, 0, -1),
    "--image-size": (10**6, 10**9, 10**15, 0, -1, 17),
    "--patch": (10**5, 10**9, 0, -4, 3),
    "--classes": (10**10, 10**15, -1),
    "--heads": (0, -1, 3, 10**15),
    "--epsilon": ("inf", "nan", 0, -1, 1e300, 2),
    "--preprocess": ("size=0", "crop=1e-300", "std=0", "mean=nan", "mean=inf", "size=axb", "x=1"),
    "--entry": ("teacher",),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "w.safetensors"
    save_file(state(), path)
    return path


def test_what_may_be_asked(subtests, tmp_path, good):
    for option, values in ASKED.items():
        for value in values:
            with subtests.test(f"{option}={value}"):
                check_refused_after_notes(run_command("import", good, tmp_path / "out", f"{option}={value}"))
                assert not (tmp_path / "out").exists()


def check_refused_after_notes(outcome):
    """Notes about the source may come first."""
    check_refused(replace(outcome, stderr=outcome.stderr.strip().splitlines()[-1]))


# What is at the path of the labels' file: its bytes, or what makes it.
LABELS = {
    "all equal": b"a\n" * 5,
    "too few": b"a\nb",
    "an empty one": b"a\n\nb\nc\nd",
    "deep": b"[" * 100_000,
    "no names": b'{"a": 1}',
    "numbers": b"[1, 2, 3, 4, 5]",
    "pairs of one": b'[["a"], ["b"], ["c"], ["d"], ["e"]]',
    "no text": b"\xff\xfe",
    "a null": b"null",
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a large file": lambda path: sparse_file(path, b"[", 2**40),
}


def test_hostile_labels(subtests, tmp_path, good):
    for number, (name, content) in enumerate(LABELS.items()):
        with subtests.test(name):
            lines = isinstance(content, bytes) and b"\n" in content
            path = tmp_path / f"{number}.{'txt' if lines else 'json'}"
            path.write_bytes(content) if isinstance(content, bytes) else content(path)
            check_refused_after_notes(run_command("import", good, tmp_path / "out", "--labels", path))
            assert not (tmp_path / "out").exists()
