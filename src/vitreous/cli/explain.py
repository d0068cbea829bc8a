"""`vitreous explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.cli.pictures import OutputFiles, parse_point, say_unreadable
from vitreous.cli.terminal import Flag, option, print_json, printable
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.jobs.explain import Explanation


def explain(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    pictures: Annotated[tuple[str, ...], tyro.conf.Positional, option("PICTURE|FOLDER ...")],
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
    """Show what a model looked at, as an overlay on each picture.

    The exit status is 1 if a picture could not be read.

    Args:
        model: A bundle, a run folder, or anything that `vitreous import` reads.
        pictures: Picture files, and folders of pictures.
        method: How to explain. Default: relevance; attention if the model has no classifier or --query is given.
        layer: A layer, counted from 0, or from the end if negative; all draws one map per layer. Which layer's
            attention (attention), up to which layer (rollout), from which layer on (relevance), at which layer's input
            (gradcam). Default: what suits the method.
        head: The attention head, counted from 0; mean averages them, all draws one map per head.
        target: The class to explain. Default: the one with the highest score.
        query: A point in the picture, in pixels: show what the patch there attends to.
        out: Folder for the overlays, NAME-METHOD.png.
        save_arrays: Also write the numbers, as NAME-METHOD.npz.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print one JSON object per picture.
    """
    from vitreous.jobs.explain import Explanation, explain_each
    from vitreous.run.opening import list_pictures

    layer_asked, head_asked = _number(layer, "--layer", ("all",)), _number(head, "--head", ("mean", "all"))
    point, failed, paths = parse_point(query), False, list_pictures(pictures)
    places = OutputFiles(out, paths)
    asked = {"method": method, "layer": layer_asked, "head": head_asked, "target": target, "query": point}
    for found in explain_each(model, paths, **asked, preprocess=preprocess):
        if not isinstance(found, Explanation):
            failed = True
            if json:
                print_json({"path": found.name, "error": found.reason}, indent=None)
            else:
                say_unreadable(found)
            continue
        files = _write(found, places, save_arrays)
        if json:
            said = {"path": found.path, "method": found.method, "label": found.label, "score": found.score}
            print_json({**said, "files": [str(file) for file in files]}, indent=None)
        else:
            label = "" if found.label is None else f"  {printable(found.label)} {found.score:.1%}"
            names = ", ".join(printable(str(file)) for file in files)
            print(f"{printable(found.path)}{label}  {found.method}: {names}", flush=True)
    return int(failed)


def _write(found: Explanation, places: OutputFiles, save_arrays: bool) -> list[Path]:
    """The overlay, a grid if there are several maps, and the numbers if wanted."""
    import numpy as np

    kinds = {".png": True, "-grid.png": found.maps.shape[0] * found.maps.shape[1] > 1, ".npz": save_arrays}
    files = places.name(found.path, *(f"-{found.method}{kind}" for kind, wanted in kinds.items() if wanted))
    with places.writing():
        for file in files:
            if file.suffix == ".npz":
                np.savez_compressed(file, **found.arrays())  # type: ignore[arg-type]
            else:
                made = found.grid() if file.stem.endswith("-grid") else found.overlay()
                made.save(file, compress_level=1)
    return files


def _number(text: str | None, name: str, words: tuple[str, ...]) -> Any:
    """A whole number, or one of the words, or None."""
    if text is None or text in words:
        return text
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name} {text}: give a number from 0, or {' or '.join(words)}.") from None
