"""`vitreous reconstruct`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.verbs.images import ImageResults, ModelAndImages, name_outputs, print_each

if TYPE_CHECKING:
    from PIL import Image

    from vitreous.objectives.mae import MaskedAutoencoder
    from vitreous.weights.bundle import Bundle


class Reconstruction(NamedTuple):
    """What a masked autoencoder makes of an image: three panels, and the file they were written to, if any."""

    path: Path
    image: Image.Image
    file: Path | None


@dataclass(frozen=True)
class Reconstruct(ModelAndImages, Verb["ImageResults[Reconstruction]"]):
    """Show how a masked autoencoder (MAE) fills in the hidden patches of images.

    Each result has three panels: the image, the patches that the model sees, and its reconstruction. Which patches it
    sees follows from the run's seed and the position of the image among those given.

    The exit status is 1 if an image could not be read.
    """

    model: str | Path
    """RUN: The run folder of `vitreous pretrain --method mae`."""
    _: KW_ONLY
    out: str | Path | None = "reconstructed"
    """FOLDER: Folder for the results, NAME-reconstructed.png."""
    streams: ClassVar[bool] = True
    json_help: ClassVar[str] = ""

    def run(self) -> ImageResults[Reconstruction]:
        """Reconstructions of the images, each computed and written when the iterator comes to it."""
        from vitreous.data.opening import list_images
        from vitreous.model.network import require
        from vitreous.model.vit import ViT
        from vitreous.objectives.mae import load_autoencoder
        from vitreous.weights.bundle import load_bundle

        folder = Path(self.model) / "decoder"
        if not folder.is_dir():
            raise UserError(
                f"{self.model}: has no decoder, so it cannot reconstruct images; give the run folder of `vitreous "
                "pretrain DATA --method mae`."
            )
        paths = list_images(self.images)
        files = name_outputs(self.out, self.images, paths, "-reconstructed.png")
        bundle = load_bundle(self.model)
        autoencoder = load_autoencoder(folder, require(bundle.model, ViT, str(self.model)))
        numbered = enumerate(zip(paths, files, strict=True))
        return ImageResults(
            partial(_reconstruct, autoencoder, bundle, number, path, *named) for number, (path, named) in numbered
        )

    def show(self, result: ImageResults[Reconstruction]) -> None:
        """One line per image: its path and the file."""
        print_each(result, lambda one: f"{one.path}: {one.file}")

    def status(self, result: ImageResults[Reconstruction]) -> int:
        """1 if an image could not be read."""
        return int(result.unreadable > 0)


def _reconstruct(
    autoencoder: MaskedAutoencoder, bundle: Bundle, number: int, path: Path, file: Path | None = None
) -> Reconstruction:
    import torch

    from vitreous.data.augment import normalise
    from vitreous.data.batch import Batch
    from vitreous.data.view import make_view
    from vitreous.explain.draw import draw_reconstructions, encode
    from vitreous.storage.files import write_output

    views = normalise(make_view(path, bundle.preprocess)[None], bundle.preprocess)
    batch = Batch.of(views, index=torch.tensor([number]), seed=autoencoder.seed)
    image = draw_reconstructions(autoencoder, batch, bundle.preprocess)
    return Reconstruction(path, image, None if file is None else write_output(file, encode(image)))


reconstruct = verb(Reconstruct)
