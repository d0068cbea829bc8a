"""`vitreous walkthrough`: one image's way through a model, on one page."""

from __future__ import annotations

from pathlib import Path

import torch

from vitreous.arguments import checked
from vitreous.config.data import Preprocess
from vitreous.data.augment import normalise, to_image
from vitreous.data.view import look_at
from vitreous.errors import UserError
from vitreous.explain.place import place_patches
from vitreous.explain.steps import follow
from vitreous.inference.needs import check_explanation_memory
from vitreous.inference.opening import open_model
from vitreous.model.network import check_numbers, evaluating, has_stem, require
from vitreous.model.vit import ViT
from vitreous.report.steps import Walk, steps_page
from vitreous.storage.files import write_output
from vitreous.storage.overwrite import check_file
from vitreous.weights.bundle import Bundle


@checked
def write_walkthrough(
    model: str | Path | Bundle,
    image: str | Path,
    *,
    out: str | Path | None = None,
    layer: int = -1,
    head: int = 0,
    query: tuple[float, float] | None = None,
    preprocess: Preprocess | str | None = None,
) -> Path:
    """Write a page that goes with an image through the paper's equations, and return its path.

    out: the file; if None, NAME-walkthrough.html here. A page of ours is replaced, any other file is not.
    layer, head: which block is opened, and which of its heads, from 0; negative layers count from the end.
    query: x, y of a place in the image, in its pixels: the patch there is followed and asks; if None, the patch in
        the middle is followed, and the class token asks where the answer is read from it.
    """
    path = Path(image)
    made = check_file(Path(f"{path.stem}-walkthrough.html") if out is None else out)
    bundle = open_model(model, preprocess)
    vit = require(bundle.model, ViT, "walkthrough")
    if has_stem(vit):
        raise UserError(
            "walkthrough: it follows pixels through equation 1, and a hybrid's stem comes before that; use vitreous "
            "explain and plot-weights."
        )
    check_explanation_memory(bundle, "attention")
    p = bundle.preprocess
    seen = look_at(path, p)
    whole = seen.whole
    cell = None
    if query is not None:
        cell = place_patches(whole.height, whole.width, p, vit.config.patch).patch_at(*query)
    with evaluating(vit):
        steps = follow(vit, normalise(seen.view[None], p), cell=cell, layer=layer, head=head)
    answer = steps.representation if steps.logits is None else steps.logits
    check_numbers(torch.from_numpy(answer), "scores", bundle.path)
    page = steps_page(Walk(path.name, whole, to_image(seen.view), p, bundle.labels, steps))
    return write_output(made, page)
