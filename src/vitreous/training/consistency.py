"""The data of a training that several processes open, found to be the same in all of them."""

from __future__ import annotations

from collections.abc import Callable

from vitreous.data.shards.opening import is_shards
from vitreous.data.source import Data
from vitreous.distributed.launcher import local_rank
from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.training.folder import digest_splits


def open_consistent(open_data: Callable[[], Data], place: str, world: World) -> Data:
    """What `open_data` gives, refused where another process sees other images or labels at that place.

    Of shards one process per machine makes or fetches the index, which is then there for the others.
    """
    if world.size == 1:
        return open_data()
    waits = is_shards(place) and local_rank() > 0
    data = None if waits else open_data()
    world.any_rank(False)  # until all have come so far
    opened = open_data() if data is None else data
    found = world.all_gather_object((opened.classes, digest_splits(opened)))
    for rank, other in enumerate(found):
        if other != found[0]:
            raise UserError(
                f"{place}: process {rank} sees other images, classes or labels there than process 0; give all "
                "machines the same data."
            )
    return opened
