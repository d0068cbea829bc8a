"""`vitreous walkthrough`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.explain.request import Point
from vitreous.verbs.images import ModelAndImages, name_outputs, print_each
from vitreous.verbs.options import PreprocessOption

if TYPE_CHECKING:
    from vitreous.data.decode import ImageError
    from vitreous.model.vit import ViT
    from vitreous.weights.bundle import Bundle


class WrittenPage(NamedTuple):
    """The page of an image."""

    image: Path
    page: Path


@dataclass(frozen=True)
class Walkthrough(PreprocessOption, ModelAndImages, Verb["list[WrittenPage | ImageError]"]):
    """Follow an image through the paper's equations, step by step, on a web page.

    The page shows the image's own numbers: patches, tokens, queries and keys of one head, attention, classes.

    The exit status is 1 if an image could not be read.
    """

    _: KW_ONLY
    layer: int = -1
    """N: The block to open, counted from 0, or from the end if negative."""
    head: int = 0
    """N: The attention head to open, counted from 0."""
    query: Point | None = None
    """X,Y: A point in the image, in pixels: follow the patch there, and show its query. Default: the patch in the
    middle, and the query of the class token if the prediction is read from it."""
    out: str | Path = "walkthroughs"
    """FOLDER: Folder for the pages, NAME-walkthrough.html."""
    json_help: ClassVar[str] = ""

    def run(self) -> list[WrittenPage | ImageError]:
        """Write a page for each image; of one that cannot be read, the error."""
        from vitreous.data.decode import ImageError
        from vitreous.data.opening import list_images
        from vitreous.inference.memory_needs import check_explanation_memory
        from vitreous.inference.opening import open_model
        from vitreous.model.network import has_stem, require
        from vitreous.model.vit import ViT
        from vitreous.storage.files import write_output

        paths = list_images(self.images)
        files = name_outputs(self.out, self.images, paths, "-walkthrough.html")
        bundle = open_model(self.model, self.preprocess)
        vit = require(bundle.model, ViT, "walkthrough")
        if has_stem(vit):
            raise UserError(
                "walkthrough: it follows pixels through equation 1, and a hybrid's stem comes before that; use "
                "vitreous explain and plot-weights."
            )
        check_explanation_memory(bundle, "attention")
        found: list[WrittenPage | ImageError] = []
        for path, (file,) in zip(paths, files, strict=True):
            try:
                found.append(WrittenPage(path, write_output(file, self._page(bundle, vit, path))))
            except ImageError as error:
                found.append(error)
            self.told.progress("writing pages", len(found), len(paths))
        return found

    def _page(self, bundle: Bundle, vit: ViT, path: Path) -> str:
        import torch

        from vitreous.data.augment import normalise, to_image
        from vitreous.data.view import image_and_view
        from vitreous.explain.place import place_patches
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

    def show(self, result: list[WrittenPage | ImageError]) -> None:
        """One line per image: its path and the page."""
        print_each(result, lambda one: f"{one.image}: {one.page}: open it in a browser.")

    def status(self, result: list[WrittenPage | ImageError]) -> int:
        """1 if an image could not be read."""
        return int(not all(isinstance(one, WrittenPage) for one in result))


write_walkthrough = verb(Walkthrough, "write_walkthrough")
