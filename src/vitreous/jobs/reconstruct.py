"""`vitreous reconstruct`: what a masked autoencoder makes of a quarter of an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image

from vitreous.arguments import checked
from vitreous.data.augment import normalise
from vitreous.data.batch import Batch
from vitreous.data.decode import ImageError
from vitreous.data.view import make_view
from vitreous.errors import UserError
from vitreous.explain.reconstruct import draw_reconstructions
from vitreous.inference.opening import list_images
from vitreous.model.network import require
from vitreous.model.vit import ViT
from vitreous.objectives.mae import load_autoencoder
from vitreous.weights.bundle import load_bundle


@checked
def reconstruct(
    run: str | Path, images: str | Path | Sequence[str | Path]
) -> Iterator[tuple[Path, Image.Image | ImageError]]:
    """For each image, and all in folders: itself, the patches seen of it and the rebuilt ones, side by side.

    run: the folder of a training by `pretrain(method="mae")`. Which patches are seen follows from the run's seed and
    the image's place among the images. Of an image that cannot be read, why.
    """
    folder = Path(run) / "decoder"
    if not folder.is_dir():
        raise UserError(
            f"{run}: has no decoder, so it cannot rebuild images; give the run folder of `vitreous pretrain DATA "
            "--method mae`."
        )
    paths = list_images(images)
    bundle = load_bundle(run)
    objective, preprocess = load_autoencoder(folder, require(bundle.model, ViT, str(run))), bundle.preprocess

    def rebuild(number: int, path: Path) -> Image.Image | ImageError:
        try:
            views = normalise(make_view(path, preprocess)[None], preprocess)
        except ImageError as error:
            return error
        batch = Batch.of(views, index=torch.tensor([number]), seed=objective.seed)
        return draw_reconstructions(objective, batch, preprocess)

    return ((path, rebuild(number, path)) for number, path in enumerate(paths))
