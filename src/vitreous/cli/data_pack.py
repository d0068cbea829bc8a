"""`vitreous data pack`."""

from __future__ import annotations

from typing import Annotated

import tyro

from vitreous.cli.terminal import option, progress, say_left_out


def data_pack(
    data: Annotated[str, tyro.conf.Positional, option("DATA")],
    out: Annotated[str, tyro.conf.Positional, option("OUT")],
    shard_size: Annotated[str, option("SIZE")] = "256MB",
) -> None:
    """Pack data into WebDataset shards: few large files, read from start to end, here or from afar.

    Images keep their bytes, and packed arrays become PNG files. OUT is then data for every command. A command that
    was interrupted is taken up at the shard where it was.

    Args:
        data: Whatever fit takes: a folder with one subfolder per class, a list, packed data, data:NAME or builtin.
        out: The folder to write, which must be new or empty.
        shard_size: Size of a shard, such as 256MB or 1GB.
    """
    from vitreous.inputs import size_text
    from vitreous.jobs.data_pack import pack_data

    with progress("packing") as bar:
        packed = pack_data(data, out, shard_size=shard_size, progress=bar)
    say_left_out(packed.left_out)
    counts = dict.fromkeys((shard.split for shard in packed.shards), 0)
    for shard in packed.shards:
        counts[shard.split] += shard.images
    images = " and ".join(f"{count:,} {split}" for split, count in counts.items())
    size = size_text(sum(shard.bytes for shard in packed.shards))
    shards = "1 shard" if len(packed.shards) == 1 else f"{len(packed.shards):,} shards"
    print(f"{packed.folder}: {images} images in {shards}, {size}")
