"""`vitreous explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.cli.terminal import Flag, console, print_json, printable, progress, table
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.jobs.explain import Explanation
    from vitreous.jobs.explain_score import ExplanationScores
    from vitreous.jobs.explain_weights import WeightsView

MethodName = Literal["attention", "rollout", "relevance", "gradcam", "occlusion"]


def explain(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    pictures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PICTURE|FOLDER ...")],
    method: Annotated[MethodName | None, tyro.conf.arg(metavar="attention|rollout|relevance|gradcam|occlusion")] = None,
    layer: Annotated[str | None, tyro.conf.arg(metavar="N|all")] = None,
    head: Annotated[str, tyro.conf.arg(metavar="N|mean|all")] = "mean",
    target: Annotated[str | None, tyro.conf.arg(name="class", metavar="NAME")] = None,
    query: Annotated[str | None, tyro.conf.arg(metavar="X,Y")] = None,
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = "explained",
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
        out: Folder for what is written.
        save_arrays: Write the numbers too, as NAME.npz.
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
    if weights + score + steps + reconstruct > 1:
        raise UserError("--steps, --reconstruct, --weights and --score: choose one of them.")
    if reconstruct:
        return _reconstruct(model, pictures, Path(out))
    if weights:
        return _weights(model, pictures, data, count, out, preprocess, json)
    if data is not None:
        raise UserError(f"--data {data}: belongs to --weights; for --score, give the data after the model.")
    if score:
        return _score(model, pictures, method, masks, count, preprocess, json)
    for name, value in (("--masks", masks), ("--count", count)):
        if value is not None:
            raise UserError(f"{name} {value}: belongs to --score; add it, or leave this away.")
    asked = {
        "method": method,
        "layer": _number(layer, "--layer", ("all",)),
        "head": _number(head, "--head", ("mean", "all")),
        "target": target,
        "query": _point(query),
        "preprocess": preprocess,
    }
    if steps:
        return _steps(model, pictures, asked, Path(out), save_arrays or json)
    return _pictures(model, pictures, asked, Path(out), save_arrays, json)


def _steps(model: str, pictures: tuple[str, ...], asked: dict[str, Any], out: Path, wants_numbers: bool) -> int:
    """A page for each picture."""
    from vitreous.data.decode import PictureError
    from vitreous.jobs.predict import list_pictures
    from vitreous.jobs.steps import write_steps
    from vitreous.weights.source import open_weights

    if wants_numbers or asked["method"] or asked["target"]:
        raise UserError("--steps: takes --layer, --head, --query and --out; the other options belong to overlays.")
    layer = -1 if asked["layer"] is None else asked["layer"]
    head = 0 if asked["head"] == "mean" else asked["head"]
    if "all" in (layer, head):
        raise UserError("--steps: opens one block and one head; give a number to --layer and --head.")
    paths, bundle, failed = list_pictures(pictures), open_weights(model, asked["preprocess"]), False
    for path in paths:
        try:
            place = out / f"{path.stem}-steps.html"
            made = write_steps(bundle, path, out=place, layer=layer, head=head, query=asked["query"])
            print(f"{printable(str(path))}: {printable(str(made))}: open it in a browser.", flush=True)
        except PictureError as error:
            failed = True
            print(f"vitreous: {printable(error.name)}: {error.reason}", file=sys.stderr)
    return int(failed)


def _reconstruct(run: str, pictures: tuple[str, ...], out: Path) -> int:
    """A picture of three panels for each."""
    from PIL import Image

    from vitreous.jobs.reconstruct import reconstruct

    failed, taken = False, set[str]()
    for path, made in reconstruct(run, pictures):
        if not isinstance(made, Image.Image):
            failed = True
            print(f"vitreous: {printable(made.name)}: {made.reason}", file=sys.stderr)
            continue
        file = out / f"{_free_name(path.stem, taken)}-rebuilt.png"
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

    failed = False
    taken: set[str] = set()
    for found in explain_each(model, pictures, **asked):
        if not isinstance(found, Explanation):
            failed = True
            if json:
                print_json({"path": found.name, "error": found.reason}, indent=None)
            else:
                print(f"vitreous: {printable(found.name)}: {found.reason}", file=sys.stderr)
            continue
        files = _write(found, out, taken, save_arrays)
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


def _write(found: Explanation, out: Path, taken: set[str], save_arrays: bool) -> list[Path]:
    """The overlay, a grid if there are several maps, and the numbers if wanted; pictures of one name do not collide."""
    import numpy as np

    name = _free_name(Path(found.path).stem, taken)
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = [out / f"{name}.png"]
        found.overlay().save(files[0], compress_level=1)
        if found.maps.shape[0] * found.maps.shape[1] > 1:
            files.append(out / f"{name}-grid.png")
            found.grid().save(files[-1], compress_level=1)
        if save_arrays:
            files.append(out / f"{name}.npz")
            np.savez_compressed(files[-1], **found.arrays())  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written to ({error.strerror}); give another folder.") from None
    return files


def _free_name(stem: str, taken: set[str]) -> str:
    """The name, with a number if another picture has it already; it is taken from now on."""
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name)
    return name


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
    _show_weights(found)
    print(f"\nwritten: {', '.join(printable(str(file)) for file in files)}")
    return 0


def _show_weights(found: WeightsView) -> None:
    said, page = found.to_json(), console()
    shares = said["filter_variance"]
    page.print(f"patch filters   the first {len(shares)} components have {sum(shares):.0%} of the variance")
    if said["position_similarity"] is None:
        page.print("positions       none are added to the tokens, so there is no such figure")
    else:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in said["position_similarity"].items())
        page.print(f"positions       cosine similarity of patches: {parts}")
    if said["attention_distance"] is None:
        page.print("distance        say --data DATA to see how far each head looks")
        return
    page.print(f"distance        {said['even_distance']:.0f} pixels would be looking everywhere alike\n")
    heads = table("layer", "mean#", *(f"head {i}#" for i in range(len(said["attention_distance"][0]))))
    for number, layer in enumerate(said["attention_distance"]):
        heads.add_row(str(number), f"{sum(layer) / len(layer):.0f}", *(f"{head:.0f}" for head in layer))
    page.print(heads)


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
        raise UserError("--score: give one place with data after the model: a folder with a folder for each class.")
    methods = METHODS if method is None else (method,)
    with progress("scoring") as bar:
        found = score_explanations(
            model, pictures[0], methods=methods, masks=masks, count=count, preprocess=preprocess, progress=bar
        )
    if json:
        print_json(found.to_json())
        return 0
    _show_scores(found)
    for path, reason in found.left_out.items():
        print(f"vitreous: left out: {printable(path)}: {reason}", file=sys.stderr)
    return 0


def _show_scores(found: ExplanationScores) -> None:
    page = console()
    page.print(f"{found.pictures:,} pictures, each explained for the class that the model sees in it")
    page.print()
    masked = found.scores[0].energy is not None
    names = ("energy#", "pointing#", "IoU#") if masked else ()
    rows = table("map", "deletion#", "insertion#", *names, "ms a picture#")
    for one in found.scores:
        figures = [f"{one.deletion:.3f}", f"{one.insertion:.3f}"]
        if one.energy is not None and one.pointing is not None and one.iou is not None:
            figures += [f"{one.energy:.1%}", f"{one.pointing:.1%}", f"{one.iou:.3f}"]
        rows.add_row(one.name, *figures, "" if one.seconds is None else f"{1e3 * one.seconds:.0f}")
    page.print(rows)
    page.print()
    page.print(
        "The first three look at nothing: a map must beat them to mean anything. Deletion: the class's probability"
    )
    page.print(
        "while its most important patches are taken away, lower is better; insertion: while only they are shown,"
    )
    page.print("higher is better." + (" Energy, pointing and IoU: agreement with the masks." if masked else ""))


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
