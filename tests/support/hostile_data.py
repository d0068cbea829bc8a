"""Data and images that no reader should trust: each a function that makes one at a place and says what to name."""

import gzip
import io
import json
import os
import pickle
import socket
import struct
import tarfile
import zipfile
import zlib

import numpy as np
from PIL import Image

TB = 10**12


def make_image(kind="PNG", size=(20, 24), seed=0):
    """The bytes of a small image file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def tree(root, classes=("a", "b"), count=3):
    """A folder with class folders of good images."""
    for k, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(count):
            (root / name / f"{i}.png").write_bytes(make_image(seed=10 * k + i))
    return root


def sparse(path, size, start=b""):
    """A file of this size that takes no room on the disk."""
    path.write_bytes(start)
    os.truncate(path, size)
    return path


def special(path, kind):
    """A pipe, a socket, a device or a link, where a file is expected."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        place = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{place}/{path.name}")  # the path itself may be too long for a socket
        os.close(place)
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path, "broken": path.with_name("nowhere")}[kind])
    return path


# images


def png_chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, *chunks, depth=8, colour=2):
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(png_chunk(*chunk) for chunk in chunks) + png_chunk(b"IEND", b"")


def tiff(width, height, **more):
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: 8, **more}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + b"\0" * 4


def webp(width, height):
    body = b"VP8X" + struct.pack("<II", 10, 0) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def bmp(width, height):
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6)


def jpeg_of(width, height):
    """The frame header of a good JPEG says another size."""
    content = bytearray(make_image("JPEG"))
    at = content.index(b"\xff\xc0")
    content[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(content)


JPEG, PNG = make_image("JPEG", (64, 64)), make_image("PNG", (64, 64))
BOMB = zlib.compress(bytes(2 * 10**7), 9)
IMAGE_FILES = {
    "empty": b"",
    "one byte": b"\xff",
    "text": b"hello",
    "page": b"<!doctype html><html></html>",
    "script": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "avif": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(64),
    "jxl": b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(64),
    "pickle": pickle.dumps({"a": 1}),
    "zip": b"PK\x05\x06" + bytes(18),
    "jpeg, its start": JPEG[:20],
    "jpeg, half": JPEG[: len(JPEG) // 2],
    "jpeg, its last 20 bytes lost": JPEG[:-20],
    "jpeg of 4 gigapixels": jpeg_of(65500, 65500),
    "jpeg of no height": jpeg_of(64, 0),
    "png, its start": PNG[:30],
    "png, half": PNG[: len(PNG) // 2],
    "png of 4 terapixels": png(2**21, 2**21, (b"IDAT", zlib.compress(b""))),
    "png of a line of 2 gigapixels": png(2**31 - 1, 1, (b"IDAT", zlib.compress(b""))),
    "png that unpacks to too much text": png(9, 9, *[(b"zTXt", b"k\0\0" + BOMB)] * 9, (b"IDAT", zlib.compress(b""))),
    "png without pixels": png(9, 9, (b"IDAT", b"")),
    "png of an unknown kind": png(9, 9, (b"IDAT", zlib.compress(bytes(99))), depth=7),
    "gif of 4 gigapixels": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b"\x2c" + bytes(20),
    "gif, its start": b"GIF89a\x01",
    "webp of 268 terapixels": webp(2**24, 2**24),
    "webp, its start": make_image("WEBP")[:40],
    "bmp of 4 gigapixels": bmp(65535, 65535),
    "bmp of a negative width": bmp(-5, 5),
    "tiff of 4 gigapixels": tiff(65535, 65535),
    "tiff without pixels": tiff(64, 64),
    "tiff with many channels": tiff(64, 64)[:8] + b"\xff\xff",
    "ppm of terapixels": b"P6 9999999 9999999 255\n" + bytes(9),
    "ppm of a long number": b"P6 " + b"9" * 5000,
    "ppm, cut short": b"P6 64 64 255\n" + bytes(9),
}
"""Bytes that are no image anyone should take."""

PLACES = ("pipe", "socket", "device", "loop", "broken")


# data


def write_csv(path, text):
    (path.parent / "x.png").write_bytes(make_image())
    path.write_text(text) if isinstance(text, str) else path.write_bytes(text)
    return path


def npy(array, shape=None, descr=None):
    """An .npy file whose header may claim another shape or type."""
    header = {"descr": descr or array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    text = repr(header).encode() + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + array.tobytes()


def npz(path, members, claims=0):
    """An .npz of these members; claims: bytes that the first says to hold."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    if claims:
        raw = bytearray(path.read_bytes())
        for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            at = raw.index(signature) + offset
            raw[at : at + 4] = struct.pack("<I", claims)
        path.write_bytes(raw)
    return path


IMAGES, LABELS = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])


def arrays(images=IMAGES, labels=LABELS, **more):
    return {"images": npy(images), "labels": npy(labels), **{name: npy(array) for name, array in more.items()}}


def idx(array, shape=None):
    shape = shape or array.shape
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()


def mnist(folder, images, labels=None, suffix=""):
    folder.mkdir()
    (folder / f"train-images-idx3-ubyte{suffix}").write_bytes(images)
    (folder / f"train-labels-idx1-ubyte{suffix}").write_bytes(labels or idx(LABELS.astype(np.uint8)))
    return folder


def cifar(folder, content, name="data_batch_1"):
    folder.mkdir()
    (folder / name).write_bytes(content)
    return folder


class Attack:
    """What a pickle would call."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


ROWS = np.zeros((2, 3072), np.uint8)


def only(folder, **files):
    """Class folders that hold none but these."""
    for k, (name, content) in enumerate(files.items()):
        (folder / f"class{k}").mkdir(parents=True)
        (folder / f"class{k}" / name.replace("_", ".")).write_bytes(content)
    return folder


def twins(folder):
    tree(folder)
    for name in (b"caf\xe9", b"caf\\xe9"):
        place = folder / os.fsdecode(name)
        place.mkdir()
        (place / "0.png").write_bytes(make_image())
    return folder


def pipes(folder):
    (folder / "a").mkdir(parents=True)
    special(folder / "a" / "0.png", "pipe")
    return folder


def among_batches(folder, kind):
    cifar(folder, bytes(3073), "data_batch_1.bin")
    special(folder / "data_batch_2.bin", kind)
    return folder


def tarred(name, size=0, kind=tarfile.REGTYPE):
    """The header of a member."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, "/etc/passwd" if kind != tarfile.REGTYPE else ""
    return info


def tar(path, *members):
    """A tar of (name or header, content)."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members:
            info = tarred(name, len(content)) if isinstance(name, str) else name
            file.addfile(info, io.BytesIO(content))
    return path


def shards_page(folder, content):
    """A folder with a shards.json, and a shard."""
    tar(folder / "x.tar", ("0.jpg", JPEG))
    (folder / "shards.json").write_bytes(content)
    return folder


TARS = {
    "empty": (),
    "a way up": (("0.jpg", JPEG), ("../1.jpg", JPEG)),
    "an absolute name": (("/1.jpg", JPEG),),
    "a device": ((tarred("1.jpg", 0, tarfile.CHRTYPE), b""),),
    "a long label": (("0.jpg", JPEG), ("0.cls", b"1" * 10**6)),
    "a label that is a list": (("0.jpg", JPEG), ("0.json", b"[" * 90000)),
    "no images": (("0.txt", b"x"), ("1.cls", b"1")),
}
SKIPPED = {  # beside an image: it is read, and they are not
    "a link": (tarred("1.jpg", 0, tarfile.SYMTYPE), b""),
    "a hard link": (tarred("1.jpg", 0, tarfile.LNKTYPE), b""),
    "a pickle": ("0.pyd", pickle.dumps(1)),
}
SHARDS = json.dumps(
    {
        "generator": "vitreous 0",
        "format": 1,
        "classes": ["a", "b"],
        "rows": {"file": "shards.safetensors", "bytes": 9, "sha256": "0" * 64},
        "shards": [{"file": "x.tar", "split": "train", "bytes": 9, "images": 1}],
    }
).encode()

DATA = {
    **{
        f"{kind} for a {suffix}": (lambda p, k=kind, s=suffix: special(p / f"x.{s}", k))
        for kind in PLACES
        for suffix in ("csv", "npz", "tar")
    },
    **{f"tar, {case}": (lambda p, c=case: tar(p / "x.tar", *TARS[c])) for case in TARS},
    "tar, text": lambda p: write_csv(p / "x.tar", "hello"),
    "tar, cut short": lambda p: write_csv(p / "x.tar", tar(p / "y", ("0.jpg", JPEG)).read_bytes()[:700]),
    "tar, packed": lambda p: write_csv(p / "x.tar", gzip.compress(tar(p / "y", ("0.jpg", JPEG)).read_bytes())),
    "tar, terabytes of nothing": lambda p: sparse(p / "x.tar", 10 * TB, b""),
    "tar, claims terabytes": lambda p: write_csv(p / "x.tar", tarred("0.jpg", 10 * TB).tobuf(tarfile.GNU_FORMAT)),
    "shards.json, not JSON": lambda p: shards_page(p / "f", b"{oops"),
    "shards.json, another's": lambda p: shards_page(p / "f", b'{"format": 7, "shards": {}}'),
    "shards.json, nested deeply": lambda p: shards_page(p / "f", b"[" * 90000),
    "shards.json without its rows": lambda p: shards_page(p / "f", SHARDS),
    "a pattern of far too many": lambda p: p / "x-{0..9999999999}.tar",
    "nothing": lambda p: p / "nothing",
    "below a file": lambda p: write_csv(p / "x.csv", "path,label\n") / "more",
    "a long name": lambda p: p / ("x" * 5000),
    "a line end in its name": lambda p: p / "x\ny",
    "another kind of file": lambda p: write_csv(p / "x.txt", "path,label\n"),
    "empty folder": lambda p: (p / "f").mkdir() or p / "f",
    "only jxl": lambda p: only(p / "f", x_jxl=IMAGE_FILES["jxl"], y_jxl=b"x"),
    "only text": lambda p: only(p / "f", x_txt=b"x", y_txt=b"x"),
    "only pipes": lambda p: pipes(p / "f"),
    "names that become one": lambda p: twins(p / "f"),
    "csv, empty": lambda p: write_csv(p / "x.csv", ""),
    "csv, a header only": lambda p: write_csv(p / "x.csv", "path,label\n"),
    "csv, other columns": lambda p: write_csv(p / "x.csv", "file,class\nx.png,a\n"),
    "csv, no label": lambda p: write_csv(p / "x.csv", "path,label\nx.png,\n"),
    "csv, missing file": lambda p: write_csv(p / "x.csv", "path,label\ny.png,a\n"),
    "csv, unknown split": lambda p: write_csv(p / "x.csv", "path,label,split\nx.png,a,later\n"),
    "csv, not UTF-8": lambda p: write_csv(p / "x.csv", b"path,label\nx.png,caf\xe9\n"),
    "csv, UTF-16": lambda p: write_csv(p / "x.csv", "path,label\nx.png,a\n".encode("utf-16")),
    "csv, a null byte": lambda p: write_csv(p / "x.csv", "path,label\nx\0.png,a\n"),
    "csv, a line without end": lambda p: sparse(p / "x.csv", 10**10, b"path,label\n"),
    "csv, an open quote": lambda p: write_csv(p / "x.csv", 'path,label\n"' + "x\n" * 10**5),
    "csv, a gigantic field": lambda p: write_csv(p / "x.csv", "path,label\nx.png," + "y" * 10**6),
    "csv of terabytes": lambda p: sparse(p / "x.csv", 10 * TB, b"path,label\n"),
    "jsonl, not JSON": lambda p: write_csv(p / "x.jsonl", "{oops\n"),
    "jsonl, a list": lambda p: write_csv(p / "x.jsonl", "[1]\n"),
    "jsonl, nested deeply": lambda p: write_csv(p / "x.jsonl", "[" * 60000),
    "jsonl, NaN": lambda p: write_csv(p / "x.jsonl", '{"path": "x.png", "label": NaN}\n'),
    "jsonl, a label that is a list": lambda p: write_csv(p / "x.jsonl", '{"path": "x.png", "label": []}\n'),
    "jsonl, a path that is a number": lambda p: write_csv(p / "x.jsonl", '{"path": 5, "label": "a"}\n'),
    "jsonl, a path of no bytes": lambda p: write_csv(p / "x.jsonl", '{"path": "\\ud800", "label": "a"}\n'),
    "jsonl, a split that is a list": lambda p: write_csv(
        p / "x.jsonl", '{"path": "x.png", "label": 1, "split": [1]}\n'
    ),
    "npz, text": lambda p: write_csv(p / "x.npz", "hello"),
    "npz, empty": lambda p: write_csv(p / "x.npz", ""),
    "npz, cut short": lambda p: write_csv(p / "x.npz", npz(p / "y", arrays()).read_bytes()[:300]),
    "npz, a bare array": lambda p: write_csv(p / "x.npz", npy(IMAGES)),
    "npz, other names": lambda p: npz(p / "x.npz", {"a": npy(IMAGES)}),
    "npz, not arrays": lambda p: npz(p / "x.npz", {"images": b"x", "labels": b"y"}),
    "npz, Python objects": lambda p: npz(p / "x.npz", {**arrays(), "images": npy(IMAGES, descr="|O")}),
    "npz, a structure": lambda p: npz(p / "x.npz", {**arrays(), "images": npy(IMAGES, descr=[("a", "<f8", (10**9,))])}),
    "npz, claims terabytes": lambda p: npz(p / "x.npz", {**arrays(), "images": npy(IMAGES, (10**6, 10**6))}),
    "npz, a negative side": lambda p: npz(p / "x.npz", {**arrays(), "images": npy(IMAGES, (-4, 8, 8))}),
    "npz, a bomb": lambda p: npz(
        p / "x.npz", {"images": npy(IMAGES[:0], (10**9, 2, 2)), "labels": b""}, 4 * 10**9 + 200
    ),
    "npz, labels below 0": lambda p: npz(p / "x.npz", arrays(labels=LABELS - 5)),
    "npz, labels as fractions": lambda p: npz(p / "x.npz", arrays(labels=LABELS / 2)),
    "npz, labels beyond names": lambda p: npz(p / "x.npz", arrays(labels=10**9 * LABELS, classes=np.array(["a", "b"]))),
    "npz, fewer labels": lambda p: npz(p / "x.npz", arrays(labels=LABELS[:2])),
    "npz, one name twice": lambda p: npz(p / "x.npz", arrays(classes=np.array(["a", "a"]))),
    "npz, names that are numbers": lambda p: npz(p / "x.npz", arrays(classes=np.zeros((2, 2)))),
    "npz, a header nested deeply": lambda p: npz(
        p / "x.npz", {**arrays(), "images": b"\x93NUMPY\x01\0" + struct.pack("<H", 9000) + b"(" * 9000}
    ),
    "idx, text": lambda p: mnist(p / "f", b"hello"),
    "idx, claims terabytes": lambda p: mnist(p / "f", idx(IMAGES, (2**31, 2**16, 2**16))),
    "idx, cut short": lambda p: mnist(p / "f", idx(IMAGES)[:-1]),
    "idx, other numbers": lambda p: mnist(p / "f", bytes((0, 0, 13, 3)) + idx(IMAGES)[4:]),
    "idx, fewer labels": lambda p: mnist(p / "f", idx(IMAGES), idx(np.zeros(3, np.uint8))),
    "idx.gz, claims terabytes": lambda p: mnist(
        p / "f", gzip.compress(idx(IMAGES, (2**31, 2**16, 2**16))), suffix=".gz"
    ),
    "idx.gz, cut short": lambda p: mnist(p / "f", gzip.compress(idx(IMAGES))[:-20], suffix=".gz"),
    "idx.gz, damaged": lambda p: mnist(p / "f", gzip.compress(idx(IMAGES))[:12] + b"\xff" * 50, suffix=".gz"),
    "idx.gz, a name without end": lambda p: mnist(p / "f", b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * 10**7, suffix=".gz"),
    "cifar, a byte too many": lambda p: cifar(p / "f", bytes(3074), "data_batch_1.bin"),
    "cifar, empty": lambda p: cifar(p / "f", b"", "data_batch_1.bin"),
    "cifar, petabytes": lambda p: sparse(cifar(p / "f", b"x", "train.bin") / "train.bin", 3074 * 10**9).parent,
    **{
        f"cifar, a {kind} among its files": (lambda p, k=kind: among_batches(p / "f", k))
        for kind in ("pipe", "socket", "device", "loop")
    },
    "pickle, system": lambda p: cifar(p / "f", pickle.dumps({b"data": Attack(os.system, "touch ran"), b"labels": [0]})),
    "pickle, eval": lambda p: cifar(p / "f", pickle.dumps({b"data": Attack(eval, "open('ran', 'w')")}, 0)),
    "pickle, an import": lambda p: cifar(p / "f", b"cantigravity\nx\n."),
    "pickle, a table of 2 billion": lambda p: cifar(p / "f", b"\x80\x02}r\xff\xff\xff\x7f."),
    "pickle, a text of terabytes": lambda p: cifar(p / "f", b"\x80\x04\x8d" + struct.pack("<Q", TB) + b"."),
    "pickle, nested deeply": lambda p: cifar(p / "f", b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"."),
    "pickle, an array of terabytes": lambda p: cifar(
        p / "f",
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n\x8a\x06"
        + TB.to_bytes(6, "little")
        + b"\x85U\x01btRs.",
    ),
    "pickle, no dictionary": lambda p: cifar(p / "f", pickle.dumps([1, 2])),
    "pickle, other pixels": lambda p: cifar(p / "f", pickle.dumps({b"data": ROWS[:, :9], b"labels": [0, 1]}, 2)),
    "pickle, labels of text": lambda p: cifar(p / "f", pickle.dumps({b"data": ROWS, b"labels": ["a", "b"]}, 2)),
    "pickle, cut short": lambda p: cifar(p / "f", pickle.dumps({b"data": ROWS, b"labels": [0, 1]}, 2)[:100]),
    "pickle, nothing": lambda p: cifar(p / "f", b""),
}
"""Places that are no data anyone can learn from: a function that makes one in an empty folder, and gives its path."""

WITHOUT_LABELS = {
    **{f"tar, {case}": (lambda p, c=case: tar(p / "x.tar", ("0.jpg", JPEG), SKIPPED[c])) for case in SKIPPED},
    "tars, one is a pipe": lambda p: special(tar(p / "f/a.tar", ("0.jpg", JPEG)).with_name("b.tar"), "pipe").parent,
    "flat": lambda p: tree(p / "f", ("",)),
    "one class": lambda p: tree(p / "f", ("a",)),
    "csv, one class": lambda p: write_csv(p / "x.csv", "path,label\nx.png,a\n"),
}
"""What only a verb that needs labels refuses."""
