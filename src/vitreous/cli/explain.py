"""`vitreous explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.cli.explain_tables import show_scores, show_weights
from vitreous.cli.terminal import Flag, print_json, printable, progress, say_left_out
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.jobs.explain import Explanation

OUT = "explained"
TAKES = {
    "overlays": {"method", "layer", "head", "class", "query", "out", "save-arrays", "preprocess", "json"},
    "--steps": {"layer", "head", "query", "out", "preprocess"},
    "--reconstruct": {"out"},
    "--weights": {"data", "count", "out", "preprocess", "json"},
    "--score": {"method", "masks", "count", "preprocess", "json"},
}
"""Which options each thing to do has."""
MethodName = Literal["attention", "rollout", "relevance", "gradcam", "occlusion"]


def explain(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    pictures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PICTURE|FOLDER ...")],
    method: Annotated[MethodName | None, tyro.conf.arg(metavar="attention|rollout|relevance|gradcam|occlusion")] = None,
    layer: Annotated[str | None, tyro.conf.arg(metavar="N|all")] = None,
    head: Annotated[str, tyro.conf.arg(metavar="N|mean|all")] = "mean",
    target: Annotated[str | None, tyro.conf.arg(name="class", metavar="NAME")] = None,
    query: Annotated[str | None, tyro.conf.arg(metavar="X,Y")] = None,
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = OUT,
    save_arrays: Flag = False,
    steps: Flag = False,
    reconstruct: Flag = False,
    weights: Flag = False,
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    score: Flag = False,
    masks: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None,
    count: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    preprocess: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
    json: Flag = False,
) -> int:
    """Show what a model saw in pictures, as an overlay for each. The exit status is 1 if one could not be read.

    With --weights, show what its weights look like; with --score, measure how good its explanations are.

    Args:
        model: A bundle folder, a run folder, or anything that `vitreous import` takes.
        pictures: Pictures, and folders of pictures; with --score, one place with data.
        method: How to explain. If not given, relevance; attention, if the model has no classifier or --query is given.
        layer: Whose attention (attention), up to which layer (rollout), from which on (relevance), at whose
            entrance (gradcam); from 0, or from the end if negative; all for a picture of each. If not given, the one
            that suits the method.
        head: Which head's attention: a number from 0, their mean, or all for a picture of each.
        target: The class to explain; if not given, the likeliest.
        query: A place in the picture, in its pixels: show what that place attends to.
        out: Folder for what is written: NAME-METHOD.png, or what the option below says.
        save_arrays: Write the numbers too, as NAME-METHOD.npz.
        steps: Write a page that goes through the paper's equations with each picture's own numbers: patches, tokens,
            queries and keys of --layer and --head, scores, heads, classes; --query chooses the patch to follow.
        reconstruct: Draw each picture, the patches that a masked autoencoder sees of it, and how it rebuilds the
            others; for a run of pretrain --method mae.
        weights: Draw the patch filters, the similarity of positions and, with --data, how far each head looks.
        data: Pictures to measure attention distance on, for --weights.
        score: Measure explanations on data: deletion, insertion and, with --masks, energy, pointing and IoU.
        masks: Folder with a mask for each picture under the same name, as .png: a trimap (1 and 3 count, 2 does
            not), or any other mask, of which all but 0 counts.
        count: How many pictures of the data, spread evenly; if not given, 64 for --weights and all for --score.
        preprocess: What differs from the model's own, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print JSON, for programs: an object a picture, or one object for --weights and --score.
    """
    flags = {"--steps": steps, "--reconstruct": reconstruct, "--weights": weights, "--score": score}
    chosen = [name for name, wanted in flags.items() if wanted] or ["overlays"]
    if len(chosen) > 1:
        raise UserError("--steps, --reconstruct, --weights and --score: choose one of them.")
    given: dict[str, Any] = {
        "method": method,
        "layer": layer,
        "class": target,
        "query": query,
        "data": data,
        "masks": masks,
    }
    given |= {"count": count, "preprocess": preprocess, "save-arrays": save_arrays or None, "json": json or None}
    given |= {"head": None if head == "mean" else head, "out": None if out == OUT else out}
    _check_options(chosen[0], given)
    if reconstruct:
        return _reconstruct(model, pictures, Path(out))
    if weights:
        return _weights(model, pictures, data, count, out, preprocess, json)
    if score:
        return _score(model, pictures, method, masks, count, preprocess, json)
    asked = {
        "method": method,
        "layer": _number(layer, "--layer", ("all",)),
        "head": _number(head, "--head", ("mean", "all")),
        "target": target,
        "query": _point(query),
        "preprocess": preprocess,
    }
    if steps:
        return _steps(model, pictures, asked, Path(out))
    return _pictures(model, pictures, asked, Path(out), save_arrays, json)


def _check_options(chosen: str, given: dict[str, Any]) -> None:
    """Refuse an option that what was chosen would pass over in silence; None stands for one that was not given."""
    for name, value in given.items():
        if value is None or name in TAKES[chosen]:
            continue
        said = f"--{name}" if value is True else f"--{name} {value}"
        if chosen == "overlays":
            owners = " and ".join(mode for mode, options in TAKES.items() if name in options)
            raise UserError(f"{said}: belongs to {owners}; say so, or leave this away.")
        takes = ", ".join(f"--{option}" for option in sorted(TAKES[chosen]))
        raise UserError(f"{said}: does not go with {chosen}, which takes {takes}; leave it away.")


class _Files:
    """Names below the folder for what is written: each only once, and never that of a picture which was given."""

    def __init__(self, out: Path, pictures: Sequence[Path]) -> None:
        self.out = out
        self.taken = {path.resolve() for path in pictures}

    def place(self, picture: str | Path, *endings: str) -> list[Path]:
        """A file for each ending, named after the picture, with a number if any such name is taken."""
        stem, number = Path(picture).stem, 1
        while True:
            name = stem if number == 1 else f"{stem}-{number}"
            files = [self.out / f"{name}{ending}" for ending in endings]
            if self.taken.isdisjoint(file.resolve() for file in files):
                self.taken.update(file.resolve() for file in files)
                return files
            number += 1


def _steps(model: str, pictures: tuple[str, ...], asked: dict[str, Any], out: Path) -> int:
    """A page for each picture."""
    from vitreous.data.decode import PictureError
    from vitreous.jobs.predict import list_pictures
    from vitreous.jobs.steps import write_steps
    from vitreous.weights.source import open_weights

    layer = -1 if asked["layer"] is None else asked["layer"]
    head = 0 if asked["head"] == "mean" else asked["head"]
    if "all" in (layer, head):
        raise UserError("--steps: opens one block and one head; give a number to --layer and --head.")
    paths, bundle, failed = list_pictures(pictures), open_weights(model, asked["preprocess"]), False
    files = _Files(out, paths)
    for path in paths:
        try:
            (place,) = files.place(path, "-steps.html")
            made = write_steps(bundle, path, out=place, layer=layer, head=head, query=asked["query"])
            print(f"{printable(str(path))}: {printable(str(made))}: open it in a browser.", flush=True)
        except PictureError as error:
            failed = True
            print(f"vitreous: {printable(error.name)}: {error.reason}", file=sys.stderr)
    return int(failed)


def _reconstruct(run: str, pictures: tuple[str, ...], out: Path) -> int:
    """A picture of three panels for each."""
    from PIL import Image

    from vitreous.jobs.predict import list_pictures
    from vitreous.jobs.reconstruct import reconstruct

    failed, paths = False, list_pictures(pictures)
    files = _Files(out, paths)
    for path, made in reconstruct(run, paths):
        if not isinstance(made, Image.Image):
            failed = True
            print(f"vitreous: {printable(made.name)}: {made.reason}", file=sys.stderr)
            continue
        (file,) = files.place(path, "-rebuilt.png")
        try:
            out.mkdir(parents=True, exist_ok=True)
            made.save(file, compress_level=1)
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written to ({error.strerror}); give another folder.") from None
        print(f"{printable(str(path))}: {printable(str(file))}", flush=True)
    return int(failed)


def _pictures(
    model: str, pictures: tuple[str, ...], asked: dict[str, Any], out: Path, save_arrays: bool, json: bool
) -> int:
    from vitreous.jobs.explain import Explanation, explain_each
    from vitreous.jobs.predict import list_pictures

    failed, paths = False, list_pictures(pictures)
    places = _Files(out, paths)
    for found in explain_each(model, paths, **asked):
        if not isinstance(found, Explanation):
            failed = True
            if json:
                print_json({"path": found.name, "error": found.reason}, indent=None)
            else:
                print(f"vitreous: {printable(found.name)}: {found.reason}", file=sys.stderr)
            continue
        files = _write(found, places, save_arrays)
        if json:
            said = {"path": found.path, "method": found.method, "label": found.label, "score": found.score}
            print_json({**said, "files": [str(file) for file in files]}, indent=None)
        else:
            label = "" if found.label is None else f"  {printable(found.label)} {found.score:.1%}"
            print(
                f"{printable(found.path)}{label}  {found.method}: {', '.join(printable(str(f)) for f in files)}",
                flush=True,
            )
    return int(failed)


def _write(found: Explanation, places: _Files, save_arrays: bool) -> list[Path]:
    """The overlay, a grid if there are several maps, and the numbers if wanted."""
    import numpy as np

    kinds = {".png": True, "-grid.png": found.maps.shape[0] * found.maps.shape[1] > 1, ".npz": save_arrays}
    files = places.place(found.path, *(f"-{found.method}{kind}" for kind, wanted in kinds.items() if wanted))
    try:
        places.out.mkdir(parents=True, exist_ok=True)
        for file in files:
            if file.suffix == ".npz":
                np.savez_compressed(file, **found.arrays())  # type: ignore[arg-type]
            else:
                made = found.grid() if file.stem.endswith("-grid") else found.overlay()
                made.save(file, compress_level=1)
    except OSError as error:
        raise UserError(f"--out {places.out}: cannot be written to ({error.strerror}); give another folder.") from None
    return files


def _weights(
    model: str,
    pictures: tuple[str, ...],
    data: str | None,
    count: int | None,
    out: str,
    preprocess: str | None,
    json: bool,
) -> int:
    from vitreous.jobs.explain_weights import PICTURES, explain_weights

    if pictures:
        raise UserError(
            f"{pictures[0]}: --weights looks at no single picture; for attention distance, say --data DATA."
        )
    with progress("looking") as bar:
        found = explain_weights(
            model, data, count=PICTURES if count is None else count, preprocess=preprocess, progress=bar
        )
    files = found.save(out)
    if json:
        print_json({**found.to_json(), "files": [str(file) for file in files]})
        return 0
    show_weights(found)
    if files:
        print(f"\nwritten: {', '.join(printable(str(file)) for file in files)}")
    return 0


def _score(
    model: str,
    pictures: tuple[str, ...],
    method: MethodName | None,
    masks: str | None,
    count: int | None,
    preprocess: str | None,
    json: bool,
) -> int:
    from vitreous.explain.methods import METHODS
    from vitreous.jobs.explain_score import score_explanations

    if len(pictures) != 1:
        raise UserError("--score: give one place with pictures after the model, such as a folder.")
    methods = METHODS if method is None else (method,)
    with progress("scoring") as bar:
        found = score_explanations(
            model, pictures[0], methods=methods, masks=masks, count=count, preprocess=preprocess, progress=bar
        )
    if json:
        print_json(found.to_json())
        return 0
    show_scores(found)
    say_left_out(found.left_out)
    return 0


def _number(text: str | None, name: str, words: tuple[str, ...]) -> Any:
    """A whole number, or one of the words, or None."""
    if text is None or text in words:
        return text
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name} {text}: give a number from 0, or {' or '.join(words)}.") from None


def _point(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--query {text}: give two numbers, such as 120,80: across and down, in pixels.") from None
    return x, y
