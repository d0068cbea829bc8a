"""`vitreous reconstruct`: what a masked autoencoder makes of a quarter of a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image

from vitreous.data.augment import eval_view, normalise
from vitreous.data.decode import PictureError, open_picture
from vitreous.data.loader import Batch
from vitreous.errors import UserError
from vitreous.explain.reconstruct import draw_reconstructions
from vitreous.jobs.predict import list_pictures
from vitreous.objectives.mae import load_autoencoder
from vitreous.weights.bundle import load_bundle


def reconstruct(
    run: str | Path, pictures: str | Path | Sequence[str | Path]
) -> Iterator[tuple[Path, Image.Image | PictureError]]:
    """For each picture, and all in folders: itself, the patches seen of it and the rebuilt ones, side by side.

    run: the folder of a training by `pretrain(method="mae")`. Which patches are seen follows from the run's seed and
    the picture's place among the pictures. Of a picture that cannot be read, why.
    """
    folder = Path(run) / "decoder"
    if not folder.is_dir():
        raise UserError(
            f"{run}: has no decoder, so it cannot rebuild pictures; give the run folder of `vitreous pretrain DATA "
            "--method mae`."
        )
    paths = list_pictures([pictures] if isinstance(pictures, str | Path) else pictures)
    bundle = load_bundle(run)
    objective, preprocess = load_autoencoder(folder, bundle.model), bundle.preprocess

    def rebuild(number: int, path: Path) -> Image.Image | PictureError:
        try:
            picture = open_picture(path, channels=preprocess.channels, at_least=2 * max(preprocess.resized))
        except PictureError as error:
            return error
        images = normalise(eval_view(picture, preprocess)[None], preprocess)
        return draw_reconstructions(objective, Batch(images, torch.tensor([-1]), torch.tensor([number])), preprocess)

    return ((path, rebuild(number, path)) for number, path in enumerate(paths))
