"""`vitreous reconstruct`."""

from __future__ import annotations

from typing import Annotated

import tyro

from vitreous.cli.images import name_outputs, say_unreadable
from vitreous.cli.terminal import option, printable


def reconstruct(
    run: Annotated[str, tyro.conf.Positional, option("RUN")],
    images: Annotated[tuple[str, ...], tyro.conf.Positional, option("IMAGE|FOLDER ...")],
    out: Annotated[str, option("DIR")] = "reconstructed",
) -> int:
    """Show how a masked autoencoder (MAE) fills in the hidden patches of images.

    Each result has three panels: the image, the patches that the model sees, and its reconstruction.

    The exit status is 1 if an image could not be read.

    Args:
        run: The run folder of `vitreous pretrain --method mae`.
        images: Image files, and folders of images.
        out: Folder for the results, NAME-reconstructed.png.
    """
    from PIL import Image

    from vitreous.explain.draw import encode
    from vitreous.inference.opening import list_images
    from vitreous.jobs.reconstruct import reconstruct as reconstruct_images
    from vitreous.storage.files import write_output

    failed, paths = False, list_images(images)
    files = name_outputs(out, paths, "-reconstructed.png")
    for (path, made), (file,) in zip(reconstruct_images(run, paths), files, strict=True):
        if not isinstance(made, Image.Image):
            failed = True
            say_unreadable(made)
            continue
        write_output(file, encode(made))
        print(f"{printable(str(path))}: {printable(str(file))}", flush=True)
    return int(failed)
