"""Any bytes whatever: a data reader gives an answer or a `UserError`, and nothing else; nothing in a pickle is run."""

import gzip
import io
import os
import pickle
import warnings
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from support.commands import MB, _restart_peak
from support.hostile_data import DATA, IMAGE_FILES, IMAGES, LABELS, arrays, idx, make_image, npy, npz
from support.zygote import memory
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.data.opening import open_data
from vitreous.data.view import make_view


@pytest.fixture(params=[60, pytest.param(int(os.environ.get("VITREOUS_FUZZ", "500")), marks=pytest.mark.exhaustive)])
def fuzz(request):
    return settings(max_examples=request.param)


def damaged(*seeds: bytes):
    """One of these files with pieces of it changed, lost or doubled, or random bytes: each by a number."""
    return st.integers(0, 2**64 - 1).map(lambda number: damage(seeds, Random(number)))


def damage(seeds: tuple[bytes, ...], chance: Random) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(200))
    content = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(content) + 1)
        end = at + chance.randrange(8)
        match chance.choice(["set", "flip", "cut", "lose", "double", "number"]):
            case "set":
                content[at:end] = chance.randbytes(end - at)
            case "flip" if at < len(content):
                content[at] ^= 1 << chance.randrange(8)
            case "cut" if chance.random() < 0.3:
                del content[at:]
            case "lose":
                del content[at:end]
            case "double":
                content[at:at] = content[at : at + 64]
            case "number":
                content[at:end] = chance.choice([b"\xff" * 4, b"\x7f" + b"\xff" * 3, bytes(4), b"\x80" * 8])
    return bytes(content)


def check(read, *arguments):
    """An answer or a `UserError`; no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return read(*arguments)
        except UserError:
            return None


@pytest.fixture(autouse=True)
def little_memory():
    """What claims gigabytes must not get them."""
    before = _restart_peak()
    yield
    assert memory("VmHWM") - before < 300 * MB


def of_kind(kind, **more):
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)).convert(more.pop("mode", "RGB")).save(
        file, kind, **more
    )
    return file.getvalue()


EXIF = Image.Exif()
EXIF[0x0112] = 6
KINDS = {
    "JPEG": [
        of_kind("JPEG"),
        of_kind("JPEG", progressive=True),
        of_kind("JPEG", exif=EXIF),
        of_kind("JPEG", mode="CMYK"),
    ],
    "PNG": [of_kind("PNG"), of_kind("PNG", mode="P"), of_kind("PNG", mode="RGBA"), of_kind("PNG", mode="I;16")],
    "WEBP": [of_kind("WEBP"), of_kind("WEBP", lossless=True), of_kind("WEBP", exif=EXIF)],
    "GIF": [of_kind("GIF"), of_kind("GIF", save_all=True, append_images=[Image.new("RGB", (9, 9))])],
    "BMP": [of_kind("BMP"), of_kind("BMP", mode="P"), of_kind("BMP", mode="1")],
    "TIFF": [
        of_kind("TIFF"),
        of_kind("TIFF", compression="tiff_lzw"),
        of_kind("TIFF", mode="F"),
        of_kind("TIFF", mode="I"),
    ],
    "PPM": [of_kind("PPM"), b"P3 2 1 9 1 2 3 4 5 6", b"P1 3 1 1 0 1", b"P5 2 1 65535 abcd"],
}


def test_images(fuzz, subtests):
    preprocess = Preprocess(size=(8, 8))
    for kind, files in KINDS.items():

        @fuzz
        @given(damaged(*files, *IMAGE_FILES.values()))
        def look(content):
            view = check(make_view, content, preprocess)
            assert view is None or view.shape == (3, 8, 8)

        with subtests.test(kind):
            look()


def fuzz_file(fuzz, path, *seeds):
    """Open data of which one file is damaged."""

    @fuzz
    @given(damaged(*seeds))
    def look(content):
        path.write_bytes(content)
        data = check(open_data, path if path.suffix in (".csv", ".jsonl", ".npz") else path.parent)
        for source in () if data is None else data.splits.values():
            assert len(source)
            assert 0 <= source.labels.min() <= source.labels.max() < len(data.classes)
            "\n".join(data.classes).encode()

    look()


def test_csv(fuzz, tmp_path):
    (tmp_path / "x.png").write_bytes(make_image())
    rows = "path,label,split\nx.png,cat,train\nx.png,dog,test\n"
    seeds = rows.encode(), ("\ufeff" + rows).encode(), b'path,label\n"x.png","a\n"\nx.png,b\n'
    fuzz_file(fuzz, tmp_path / "x.csv", *seeds)


def test_jsonl(fuzz, tmp_path):
    (tmp_path / "x.png").write_bytes(make_image())
    seed = b'{"path": "x.png", "label": "a\\ud83d"}\n{"path": "x.png", "label": 1.5, "split": "val"}\n'
    fuzz_file(fuzz, tmp_path / "x.jsonl", seed, seed + b"\n[]", seed.replace(b"1.5", b"[[[]]]"))


def test_npz(fuzz, tmp_path):
    classes = np.array(["a", "b"])
    seeds = [
        npz(tmp_path / "a", arrays()).read_bytes(),
        npz(tmp_path / "b", arrays(images=IMAGES / 255, classes=classes)).read_bytes(),
        npz(tmp_path / "c", {**arrays(), "images": npy(IMAGES, (10**6, 10**6))}).read_bytes(),
    ]
    plain = io.BytesIO()
    np.savez(plain, x_train=IMAGES, y_train=LABELS, classes=classes)
    fuzz_file(fuzz, tmp_path / "x.npz", *seeds, plain.getvalue())


def test_idx(fuzz, tmp_path, subtests):
    files = {"images-idx3": idx(IMAGES), "labels-idx1": idx(LABELS.astype(np.uint8))}
    for suffix, pack in (("", bytes), (".gz", gzip.compress)):
        folder = tmp_path / f"idx{suffix}"
        folder.mkdir()
        for name in files:
            with subtests.test(name, suffix=suffix):
                for each, content in files.items():
                    (folder / f"train-{each}-ubyte{suffix}").write_bytes(pack(content))
                claims = pack(idx(IMAGES, (2**31, 2**16, 9)))
                fuzz_file(fuzz, folder / f"train-{name}-ubyte{suffix}", pack(files[name]), claims)


ROWS = np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072)


def test_cifar_binary(fuzz, tmp_path):
    seed = np.concatenate([[[0], [1]], ROWS], axis=1).astype(np.uint8).tobytes()
    (tmp_path / "batches.meta.txt").write_text("\n".join(f"kind {k}" for k in range(200)))
    fuzz_file(fuzz, tmp_path / "data_batch_1.bin", seed)


def test_cifar_python(fuzz, tmp_path, monkeypatch, subtests):
    """Whatever a pickle asks for, no program is started and no file opened for writing."""

    def forbidden(*_, **__):
        raise AssertionError("a pickle was run")

    files = {
        "data_batch_1": {b"data": ROWS, b"labels": [0, 1], b"batch_label": b"one"},
        "batches.meta": {b"label_names": [b"cat", b"dog"]},
    }
    made = []
    for k, case in enumerate(name for name in DATA if name.startswith("pickle")):
        (tmp_path / str(k)).mkdir()
        made.append((DATA[case](tmp_path / str(k)) / "data_batch_1").read_bytes())
    for name in ("system", "popen", "execv", "_exit"):
        monkeypatch.setattr(os, name, forbidden)
    small = [content for content in made if len(content) < 10**4]
    for file in files:
        with subtests.test(file):
            for name, content in files.items():
                (tmp_path / name).write_bytes(pickle.dumps(content, 2))
            fuzz_file(fuzz, tmp_path / file, *(pickle.dumps(files[file], protocol) for protocol in (0, 2, 4)), *small)
