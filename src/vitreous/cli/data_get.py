"""`vitreous data get`."""

from __future__ import annotations

from typing import Annotated

import tyro

from vitreous.cli.terminal import byte_progress, option


def data_get(
    name: Annotated[str, tyro.conf.Positional, option("NAME")],
    root: Annotated[str | None, option("DIR")] = None,
) -> None:
    """Download a public dataset, check it, and unpack it; the commands then open it as data:NAME.

    A download that broke off goes on where it was. What only a person may get (ImageNet, say) is named, with the place
    to put it. `vitreous data list` shows the names.

    Args:
        name: Which dataset, such as pets or cifar100.
        root: The folder of all datasets. Default: $VITREOUS_DATA, else ~/.cache/vitreous/data.
    """
    from vitreous.jobs.data_get import get_data

    with byte_progress() as bar:
        print(get_data(name, root=root, progress=bar))
