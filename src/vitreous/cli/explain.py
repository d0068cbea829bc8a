"""`vitreous explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.cli.images import name_outputs, parse_point, say_unreadable
from vitreous.cli.terminal import Flag, option, print_json, printable
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.explain.explanation import Explanation

ENDINGS = (".png", "-grid.png", ".npz")
"""Of the overlay, the grid and the numbers."""


def explain(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    images: Annotated[tuple[str, ...], tyro.conf.Positional, option("IMAGE|FOLDER ...")],
    method: Annotated[
        Literal["attention", "rollout", "relevance", "gradcam", "occlusion"] | None,
        option("attention|rollout|relevance|gradcam|occlusion"),
    ] = None,
    layer: Annotated[str | None, option("N|all")] = None,
    head: Annotated[str, option("N|mean|all")] = "mean",
    target: Annotated[str | None, option("NAME", name="class")] = None,
    query: Annotated[str | None, option("X,Y")] = None,
    out: Annotated[str, option("DIR")] = "explained",
    save_arrays: Flag = False,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    json: Flag = False,
) -> int:
    """Show what a model looked at, as an overlay on each image.

    The exit status is 1 if an image could not be read.

    Args:
        model: A bundle, a run folder, or anything that `vitreous import` reads.
        images: Image files, and folders of images.
        method: How to explain. Default: relevance; attention if the model has no classifier or --query is given; of a
            network without attention gradcam, or occlusion where its last feature map is a single place.
        layer: A layer, counted from 0, or from the end if negative; all draws one map per layer. Which layer's
            attention (attention), up to which layer (rollout), from which layer on (relevance), at which layer's input
            (gradcam). Default: what suits the method.
        head: The attention head, counted from 0; mean averages them, all draws one map per head.
        target: The class to explain. Default: the one with the highest score.
        query: A point in the image, in pixels: show what the patch there attends to.
        out: Folder for the overlays, NAME-METHOD.png.
        save_arrays: Also write the numbers, as NAME-METHOD.npz.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print one JSON object per image.
    """
    from vitreous.explain.explanation import Explanation
    from vitreous.explain.methods import default_method
    from vitreous.inference.opening import list_images, open_model
    from vitreous.jobs.explain import explain_each

    layer_asked, head_asked = _number(layer, "--layer", ("all",)), _number(head, "--head", ("mean", "all"))
    point, failed, paths = parse_point(query), False, list_images(images)
    bundle = open_model(model, preprocess)
    method = method or default_method(bundle.model, query=point is not None, size=bundle.preprocess.size)
    files = name_outputs(out, paths, *(f"-{method}{ending}" for ending in ENDINGS))
    asked = {"method": method, "layer": layer_asked, "head": head_asked, "target": target, "query": point}
    for found, named in zip(explain_each(bundle, paths, **asked), files, strict=True):
        if not isinstance(found, Explanation):
            failed = True
            if json:
                print_json({"path": found.name, "error": found.reason}, indent=None)
            else:
                say_unreadable(found)
            continue
        written = _write(found, named, save_arrays)
        if json:
            said = {"path": found.path, "method": found.method, "label": found.label, "score": found.score}
            print_json({**said, "files": [str(file) for file in written]}, indent=None)
        else:
            label = "" if found.label is None else f"  {printable(found.label)} {found.score:.1%}"
            names = ", ".join(printable(str(file)) for file in written)
            print(f"{printable(found.path)}{label}  {found.method}: {names}", flush=True)
    return int(failed)


def _write(found: Explanation, named: list[Path], save_arrays: bool) -> list[Path]:
    """The overlay, a grid if there are several maps, and the numbers if wanted; the files that were written."""
    from vitreous.explain.draw import encode
    from vitreous.storage.files import write_output

    overlay, grid, arrays = named
    found.save(overlay)
    written = [overlay]
    if found.maps.shape[0] * found.maps.shape[1] > 1:
        written.append(write_output(grid, encode(found.grid())))
    if save_arrays:
        found.save_arrays(arrays)
        written.append(arrays)
    return written


def _number(text: str | None, name: str, words: tuple[str, ...]) -> Any:
    """A whole number, or one of the words, or None."""
    if text is None or text in words:
        return text
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name} {text}: give a number from 0, or {' or '.join(words)}.") from None
