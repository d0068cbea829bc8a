"""`vitreous data pack`: data as WebDataset shards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from vitreous.arguments import checked
from vitreous.data.shards.packing import Packed, pack
from vitreous.data.source import Data
from vitreous.inference.opening import open_images
from vitreous.inputs import parse_size
from vitreous.storage.overwrite import check_apart, output_folder

log = logging.getLogger("vitreous")

SMALLEST = 10_000


@checked
def pack_data(
    data: str | Path | Data,
    out: str | Path,
    *,
    shard_size: str | int = "256MB",
    progress: Callable[[int, int], None] | None = None,
) -> Packed:
    """Write the data as tar shards with an index into the folder `out`, which is then data too.

    Images keep their bytes; of arrays, PNG files are made. The train split is shuffled once, so that each shard has
    a bit of everything. A call that was interrupted is taken up at the shard where it was.

    shard_size: bytes of a shard, as a number or a text such as "256MB". progress: called with images done and in all.
    """
    size = parse_size(shard_size, "shard_size", least=SMALLEST)
    folder = output_folder(out)
    if not isinstance(data, Data) and Path(data).exists():
        check_apart(folder, Path(data))
    opened = open_images(data)
    for note in opened.notes:
        log.info(note)
    return pack(opened, folder, size, progress or (lambda done, total: None))
