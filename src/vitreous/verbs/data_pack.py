"""`vitreous data pack`."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import say_left_out
from vitreous.cli.verb import Verb, verb
from vitreous.inputs import parse_size, size_text

if TYPE_CHECKING:
    from vitreous.data.shards.packing import Packed
    from vitreous.data.source import Data

log = logging.getLogger("vitreous")

MIN_SHARD_BYTES = 10_000


@dataclass(frozen=True)
class DataPack(Verb["Packed"]):
    """Pack data into WebDataset shards: few large files, read from start to end, here or from afar.

    Images keep their bytes, and packed arrays become PNG files. The train split is shuffled once, so that each shard
    is a random sample. OUT is then data for every command. If it is interrupted, repeat the same command:
    it resumes with the shard that it was writing.
    """

    data: str | Path | Data
    """DATA: Whatever fit takes: a folder with one subfolder per class, a list, packed data, data:NAME or builtin."""
    out: str | Path
    """OUT: The folder to write, which must be new or empty."""
    _: KW_ONLY
    shard_size: str | int = "256MB"
    """SIZE: Size of a shard, such as 256MB or 1GB."""
    resumes: ClassVar[bool] = True
    json_help: ClassVar[str] = ""

    def run(self) -> Packed:
        """Write the shards and their index."""
        from vitreous.data.opening import open_images
        from vitreous.data.shards.packing import pack
        from vitreous.data.source import Data
        from vitreous.storage.overwrite import check_apart, output_folder

        size = parse_size(self.shard_size, "shard_size", least=MIN_SHARD_BYTES)
        folder = output_folder(self.out)
        if not isinstance(self.data, Data) and Path(self.data).exists():
            check_apart(folder, Path(self.data))
        opened = open_images(self.data)
        for note in opened.notes:
            log.info(note)
        return pack(opened, folder, size, partial(self.told.progress, "packing"))

    def show(self, result: Packed) -> None:
        """How many images, shards and bytes; unreadable images on standard error."""
        say_left_out(result.left_out)
        counts = Counter[str]()
        for shard in result.shards:
            counts[shard.split] += shard.images
        images = " and ".join(f"{count:,} {split}" for split, count in counts.items())
        shards = "1 shard" if len(result.shards) == 1 else f"{len(result.shards):,} shards"
        size = size_text(sum(shard.bytes for shard in result.shards))
        print(f"{result.folder}: {images} images in {shards}, {size}")


pack_data = verb(DataPack, "pack_data")
