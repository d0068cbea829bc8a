"""`vitreous explain`, `vitreous walkthrough` and `vitreous reconstruct`: a model's view of single images."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from vitreous.cli.verb import verb
from vitreous.errors import UserError
from vitreous.explain.request import ExplanationRequest, Point
from vitreous.inputs import counted
from vitreous.verbs.options import DeviceOption, ImageResults, PerImageVerb, PreprocessOption, results_or_errors

if TYPE_CHECKING:
    from PIL import Image

    from vitreous.data.decode import ImageError
    from vitreous.explain.explanation import Explainer, Explanation
    from vitreous.model.vit import ViT
    from vitreous.objectives.mae import MaskedAutoencoder
    from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Explain(
    PreprocessOption, DeviceOption, ExplanationRequest, PerImageVerb["ImageResults[Explanation | ImageError]"]
):
    """Show what a model looked at, as an overlay on each image.

    The exit status is 1 if an image could not be read.
    """

    _: KW_ONLY
    out: str | Path | None = "explained"
    """FOLDER: Folder for the overlays, NAME-METHOD.png."""
    save_arrays: bool = False
    """Also write the numbers, as NAME-METHOD.npz."""
    streams: ClassVar[bool] = True
    json_help: ClassVar[str] = "Print one JSON object per image."

    def run(self) -> ImageResults[Explanation | ImageError]:
        """An iterator; each explanation is computed and written on demand."""
        from vitreous.data.decode import ImageError
        from vitreous.data.opening import list_images
        from vitreous.distributed.world import find_device
        from vitreous.explain.explanation import Explainer
        from vitreous.inference.memory_needs import check_explanation_memory
        from vitreous.inference.opening import open_model

        device, paths = find_device(self.device), list_images(self.images)
        bundle = open_model(self.model, self.preprocess)
        bundle.model.to(device)
        explainer = Explainer(bundle, self)
        check_explanation_memory(bundle, explainer.method)
        endings = (f"-{explainer.method}{ending}" for ending in (".png", "-grid.png", ".npz"))
        files = self.name_outputs(self.out, paths, *endings)
        explained = results_or_errors(partial(self._explain, explainer), zip(paths, files, strict=True))
        return ImageResults(explained, lambda one: isinstance(one, ImageError))

    def _explain(self, explainer: Explainer, path: Path, files: list[Path]) -> Explanation:
        """One image; files: the names of the overlay, the grid and the arrays, or none of them."""
        from vitreous.explain.overlay import encode
        from vitreous.storage.files import write_output

        found = explainer.explain(path)
        if not files:
            return found
        overlay, grid, arrays = files
        found.save(overlay)
        written = [overlay]
        if found.maps.shape[0] * found.maps.shape[1] > 1:
            written.append(write_output(grid, encode(found.grid())))
        if self.save_arrays:
            found.save_arrays(arrays)
            written.append(arrays)
        return replace(found, files=tuple(written))

    def line(self, one: Explanation) -> str:
        label = "" if one.label is None else f"  {one.label} {one.score:.1%}"
        note = f"  ({counted(len(one.sinks), 'attention sink')})" if one.sinks else ""
        return f"{one.path}{label}  {one.method}: {', '.join(map(str, one.files))}{note}"

    def record(self, one: Explanation) -> dict[str, Any]:
        names = ("path", "method", "label", "score", "sinks")
        return {**{name: getattr(one, name) for name in names}, "files": list(map(str, one.files))}


class WrittenPage(NamedTuple):
    """The page of an image."""

    image: Path
    page: Path


@dataclass(frozen=True)
class Walkthrough(PreprocessOption, PerImageVerb["list[WrittenPage | ImageError]"]):
    """Follow an image through the paper's equations, step by step, on a web page.

    The page shows the image's own numbers: patches, tokens, queries and keys of one head, attention, classes.

    The exit status is 1 if an image could not be read.
    """

    _: KW_ONLY
    layer: int = -1
    """N: The block to open, counted from 0, or from the end if negative."""
    head: int = 0
    """N: The attention head to open, counted from 0, or from the end if negative."""
    query: Point | None = None
    """X,Y: A point in the image, in pixels: follow the patch there, and show its query. Default: the patch in the
    middle, and the query of the class token if the prediction is read from it."""
    out: str | Path = "walkthroughs"
    """FOLDER: Folder for the pages, NAME-walkthrough.html."""
    json_help: ClassVar[str] = "Print one JSON list, with one object per image."

    def run(self) -> list[WrittenPage | ImageError]:
        from vitreous.data.opening import list_images
        from vitreous.inference.memory_needs import check_explanation_memory
        from vitreous.inference.opening import open_model
        from vitreous.model.network import has_stem, require
        from vitreous.model.vit import ViT
        from vitreous.storage.files import write_output

        paths = list_images(self.images)
        files = self.name_outputs(self.out, paths, "-walkthrough.html")
        bundle = open_model(self.model, self.preprocess)
        vit = require(bundle.model, ViT, "walkthrough")
        if has_stem(vit):
            raise UserError(
                "walkthrough: it follows pixels through equation 1, and a hybrid's stem comes before that; use "
                "vitreous explain and plot-weights."
            )
        check_explanation_memory(bundle, "attention")

        def write(path: Path, file: Path) -> WrittenPage:
            return WrittenPage(path, write_output(file, self._page(bundle, vit, path)))

        found = []
        for one in results_or_errors(write, ((path, file) for path, (file,) in zip(paths, files, strict=True))):
            found.append(one)
            self.active_callbacks.progress("writing pages", len(found), len(paths))
        return found

    def _page(self, bundle: Bundle, vit: ViT, path: Path) -> str:
        import torch

        from vitreous.data.augment import normalise, to_image
        from vitreous.data.view import image_and_view
        from vitreous.explain.patch_geometry import place_patches
        from vitreous.explain.steps import follow
        from vitreous.model.network import check_numbers, evaluating
        from vitreous.report.steps import WalkthroughContent, steps_page

        preprocess, seen = bundle.preprocess, image_and_view(path, bundle.preprocess)
        whole, patch = seen.image, None
        if self.query is not None:
            patch = place_patches(whole.height, whole.width, preprocess, vit.config.patch).patch_at(*self.query)
        with evaluating(vit):
            steps = follow(vit, normalise(seen.view[None], preprocess), cell=patch, layer=self.layer, head=self.head)
        output = steps.representation if steps.logits is None else steps.logits
        check_numbers(torch.from_numpy(output), "scores", bundle.path)
        return steps_page(WalkthroughContent(path.name, whole, to_image(seen.view), preprocess, bundle.labels, steps))

    def line(self, one: WrittenPage) -> str:
        return f"{one.image}: {one.page}: open it in a browser."

    def record(self, one: WrittenPage) -> dict[str, Any]:
        return {"path": str(one.image), "files": [str(one.page)]}

    def status(self, result: list[WrittenPage | ImageError]) -> int:
        """1 if an image could not be read."""
        return int(not all(isinstance(one, WrittenPage) for one in result))


class Reconstruction(NamedTuple):
    """Three panels for an image, and their file, if any."""

    path: Path
    image: Image.Image
    file: Path | None


@dataclass(frozen=True)
class Reconstruct(PerImageVerb["ImageResults[Reconstruction | ImageError]"]):
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
    json_help: ClassVar[str] = "Print one JSON object per image."

    def run(self) -> ImageResults[Reconstruction | ImageError]:
        """An iterator; each reconstruction is computed and written on demand."""
        from vitreous.data.decode import ImageError
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
        files = self.name_outputs(self.out, paths, "-reconstructed.png")
        bundle = load_bundle(self.model)
        autoencoder = load_autoencoder(folder, require(bundle.model, ViT, str(self.model)))
        numbered = ((number, path, *files[number]) for number, path in enumerate(paths))
        drawn = results_or_errors(partial(_reconstruct, autoencoder, bundle), numbered)
        return ImageResults(drawn, lambda one: isinstance(one, ImageError))

    def record(self, one: Reconstruction) -> dict[str, Any]:
        return {"path": str(one.path), "files": [] if one.file is None else [str(one.file)]}

    def line(self, one: Reconstruction) -> str:
        return f"{one.path}: {one.file}"


def _reconstruct(
    autoencoder: MaskedAutoencoder, bundle: Bundle, number: int, path: Path, file: Path | None = None
) -> Reconstruction:
    import torch

    from vitreous.data.augment import normalise
    from vitreous.data.batch import Batch
    from vitreous.data.view import make_view
    from vitreous.explain.overlay import draw_reconstructions, encode
    from vitreous.storage.files import write_output

    views = normalise(make_view(path, bundle.preprocess)[None], bundle.preprocess)
    batch = Batch.of(views, index=torch.tensor([number]), seed=autoencoder.seed)
    image = draw_reconstructions(autoencoder, batch, bundle.preprocess)
    return Reconstruction(path, image, None if file is None else write_output(file, encode(image)))


explain = verb(Explain)
write_walkthrough = verb(Walkthrough, "write_walkthrough")
reconstruct = verb(Reconstruct)
