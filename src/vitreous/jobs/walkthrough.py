"""`vitreous walkthrough`: one picture's way through a model, on one page."""

from __future__ import annotations

from pathlib import Path

import torch

from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise, to_image
from vitreous.explain.place import place_patches
from vitreous.explain.steps import follow
from vitreous.jobs.explain import read_picture
from vitreous.jobs.opening import open_model
from vitreous.jobs.predict import check_scores
from vitreous.report.steps import Walk, steps_page
from vitreous.weights.bundle import Bundle
from vitreous.weights.files import readable_errors


def write_walkthrough(
    model: str | Path | Bundle,
    picture: str | Path,
    *,
    out: str | Path | None = None,
    layer: int = -1,
    head: int = 0,
    query: tuple[float, float] | None = None,
    preprocess: Preprocess | str | None = None,
) -> Path:
    """Write a page that goes with a picture through the paper's equations, and return its path.

    out: the file; if None, NAME-walkthrough.html here.
    layer, head: which block is opened, and which of its heads, from 0; negative layers count from the end.
    query: x, y of a place in the picture, in its pixels: the patch there is followed and asks; if None, the patch in
        the middle is followed, and the class token asks where the answer is read from it.
    """
    bundle = open_model(model, preprocess)
    p, path = bundle.preprocess, Path(picture)
    whole, looked_at = read_picture(path, p)
    seen = eval_view(looked_at, p)
    cell = None
    if query is not None:
        cell = place_patches(whole.height, whole.width, p, bundle.model.config.patch).patch_at(*query)
    steps = follow(bundle.model, normalise(seen[None], p), cell=cell, layer=layer, head=head)
    answer = steps.representation if steps.logits is None else steps.logits
    check_scores(torch.from_numpy(answer), bundle)
    page = steps_page(Walk(path.name, whole, to_image(seen), p, bundle.labels, steps))
    made = Path(out) if out is not None else Path(f"{path.stem}-walkthrough.html")
    with readable_errors(made):
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(page, encoding="utf-8")
    return made
