"""Shards beside a folder: how fast are they packed, read and indexed, and how much memory does an index take?

    python benchmarks/shards.py DATA [--images 10000000] [--only packing|reading|index]

DATA: Oxford-IIIT Pets, a folder with train/ and test/. Writes benchmarks/results/shards.json. The index is of shards
that were made for it: headers and labels as packing writes them, with holes for images, so that they take little
room, and a few files under many names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from measure import RESULTS, write_result
from vitreous import pack_data
from vitreous.config.data import Augment, Preprocess
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.data.shards.tar import BLOCK, END, encode_member, padded
from vitreous.data.source import Source
from vitreous.storage.files import fsync_folder

ROUNDS, BATCHES = 8, 12
IMAGE = 110_000
"""Bytes of an image in the synthetic shards, as ImageNet's have on average."""
PER_SHARD = 10_000
IMAGES = 10_000_000
INPUT = Preprocess(size=(224, 224), crop=0.9)


def packing(data: Path) -> dict[str, Any]:
    """Packing beside a plain copy of the files, both to the disk for good, in turns; the best turn of each counts."""
    size = sum(path.stat().st_size for split in ("train", "test") for path in (data / split).rglob("*.jpg"))
    count = sum(len(source) for source in open_data(data).splits.values())

    def copy(out: Path) -> None:
        for split in ("train", "test"):
            shutil.copytree(data / split, out / split)
        fsync_folder(out)

    seconds: dict[str, list[float]] = {"copy": [], "pack": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(ROUNDS):
            for name, job in (("copy", copy), ("pack", lambda out: pack_data(data, out, shard_size="16MB"))):
                start = time.perf_counter()
                job(Path(folder) / f"{name}{turn}")
                seconds[name].append(time.perf_counter() - start)
    return {
        "images": count,
        "megabytes": round(size / 1e6, 1),
        **{f"{name}_megabytes_per_second": round(size / 1e6 / min(found), 1) for name, found in seconds.items()},
        **{f"{name}_images_per_second": round(count / min(found)) for name, found in seconds.items()},
        "ratio": round(min(seconds["copy"]) / min(seconds["pack"]), 3),
    }


def reading(data: Path) -> dict[str, Any]:
    """Images a second from the folder and from shards, in turns; with files in the system's cache, and without."""
    with tempfile.TemporaryDirectory() as folder:
        shards = pack_data(data, Path(folder) / "shards", shard_size="16MB").folder
        places = {"folder": data / "train", "shards": shards}
        sources = {"folder": open_data(data).train, "shards": open_data(shards).train}
        jobs: dict[str, Callable[[Source], object]] = {
            "decoded": _decode,
            "loader": _epoch,
            "two_workers": _epoch_of_two,
        }
        return {
            f"{name}{'_cold' if cold else ''}": _in_turns(job, sources, places if cold else {})
            for name, job in jobs.items()
            for cold in (False, True)
        }


def _in_turns(job: Callable[[Source], object], sources: dict[str, Source], cold: dict[str, Path]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    for turn in range(ROUNDS + 1):  # the first turn only warms up
        for name in sources if turn % 2 else reversed(sources):
            if cold:
                _forget_files(cold[name])
            start = time.perf_counter()
            job(sources[name])
            seconds[name].append(time.perf_counter() - start)
    found = {name: 32 * BATCHES / min(taken[1:]) for name, taken in seconds.items()}
    ratios = [a / b for a, b in zip(seconds["folder"][1:], seconds["shards"][1:], strict=True)]
    rounded = {f"{name}_images_per_second": round(speed, 1) for name, speed in found.items()}
    return {
        **rounded,
        "ratio": round(found["shards"] / found["folder"], 3),
        "median_of_turns": round(median(ratios), 3),
    }


def _decode(source: Source) -> None:
    for index in source.order(0, 0)[: 32 * BATCHES].tolist():
        source.read(index, at_least=256)


def _epoch(source: Source, workers: int = 0) -> None:
    loader = Loader(source, INPUT, Augment(), batch_size=32, workers=workers, cache_bytes=0)
    for _ in islice(loader.batches(0), BATCHES):
        pass
    loader.close()


def _epoch_of_two(source: Source) -> None:
    _epoch(source, workers=2)


def _forget_files(root: Path) -> None:
    """Have the system drop what it keeps of these files in memory."""
    for path in root.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def index(images: int) -> dict[str, Any]:
    """Time and memory to index so many images, to find the index again, and to shuffle an epoch of them."""
    with synthetic_shards(images) as folder:
        found: dict[str, Any] = {"images": images, "shards": len(list(folder.glob("*.tar")))}
        for name in ("scanned", "found_again"):
            answer = subprocess.run(
                [sys.executable, "-c", _CHILD, str(folder)],
                env={**os.environ, "VITREOUS_CACHE": str(folder.parent / "cache")},
                cwd=Path(__file__).parent,
                capture_output=True,
                text=True,
                check=True,
            )
            found[name] = json.loads(answer.stdout)
    for name in ("seconds", "processor_seconds"):
        found["scanned"][f"{name}_per_million"] = round(found["scanned"][f"open_{name}"] / images * 1e6, 1)
    return found


_CHILD = """
import json, sys, time
from measure import peak_megabytes
from vitreous.data.opening import open_data
before, start, processor = peak_megabytes(), time.perf_counter(), time.process_time()
data = open_data(sys.argv[1])
opened, memory, processor = time.perf_counter(), peak_megabytes(), time.process_time() - processor
order = data.train.order(0, 0)
shuffled = time.perf_counter()
print(json.dumps({"rows": len(data.train), "open_seconds": round(opened - start, 1),
    "open_processor_seconds": round(processor, 1),
    "epoch_order_seconds": round(shuffled - opened, 1), "imports_megabytes": round(before),
    "open_peak_megabytes": round(memory), "order_peak_megabytes": round(peak_megabytes())}))
"""


@contextmanager
def synthetic_shards(images: int) -> Iterator[Path]:
    """A folder of shards of 10,000 images each; one of them is real, and has holes in the place of images."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "shards"
        folder.mkdir()
        first = folder / "train-000000.tar"
        with first.open("wb") as file:
            for number in range(PER_SHARD):
                name = f"n{number % 1000:08d}/n{number % 1000:08d}_{number:08d}"
                file.write(_header(f"{name}.jpg", IMAGE))
                file.seek(padded(IMAGE), os.SEEK_CUR)
                file.write(b"".join(encode_member(f"{name}.cls", str(number % 1000).encode())))
            file.write(bytes(END))
        for shard in range(1, images // PER_SHARD):
            os.link(first, folder / f"train-{shard:06d}.tar")
        yield folder


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    header = info.tobuf(tarfile.PAX_FORMAT)
    assert len(header) == BLOCK
    return header


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=IMAGES, help="in the index; another number is kept beside it")
    parser.add_argument("--only", choices=("packing", "reading", "index"))
    args = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "packing": lambda: packing(args.data),
        "reading": lambda: reading(args.data),
        "index": lambda: index(args.images),
    }
    earlier = RESULTS / "shards.json"
    result = json.loads(earlier.read_text()) if args.only and earlier.exists() else {}
    result.pop("machine", None)
    for name, part in parts.items():
        if args.only in (None, name):
            kept = name if name != "index" or args.images == IMAGES else f"index_{args.images}"
            result[kept] = part()
            print(kept, json.dumps(result[kept], indent=1), flush=True)
    print("written:", write_result("shards", result).name)


if __name__ == "__main__":
    main()
