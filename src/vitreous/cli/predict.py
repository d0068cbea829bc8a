"""`vitreous predict`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypedDict

import tyro

from vitreous.arguments import Count, Merge, Part
from vitreous.cli.engines import EngineOption, PrecisionOption
from vitreous.cli.terminal import Flag, option, print_json, printable, progress
from vitreous.config.engine import EngineChoice, Precision
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.inference.prediction.answers import Prediction


def predict(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    images: Annotated[tuple[str, ...], tyro.conf.Positional, option("IMAGE|FOLDER ...")],
    top: Annotated[Count, option("COUNT")] = 5,
    out: Annotated[str | None, option("DIR")] = None,
    embed: Flag = False,
    part: Annotated[Part | None, option("I/N")] = None,
    ray: Annotated[tuple[str, ...] | None, option("[ADDRESS]")] = None,
    batch_size: Annotated[Count | None, option("COUNT")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    engine: EngineOption = "auto",
    precision: PrecisionOption = None,
    merge: Annotated[Merge | None, option("COUNT")] = None,
    json: Flag = False,
) -> int:
    """Label images, one line per image.

    Without --out, answers are printed; the exit status is 1 if an image could not be read.

    With --out, they are written to files of a folder, part by part, and a command that was interrupted goes on where it
    was when it is repeated. An image that cannot be read gets a row that says why; more than 1 % of them are refused.

    Args:
        model: A bundle, a run folder, an exported model, or anything that `vitreous import` reads.
        images: Image files, and folders, whose images are taken in the order of their paths. With --out, any
            other data too.
        top: How many labels to give per image.
        out: The folder for files of answers: Parquet where pyarrow is installed, else JSON lines.
        embed: With --out, add each image's representation.
        part: With --out, do the Ith of N shares only: N processes, on one or several machines, may do theirs at once.
        ray: With --out, do it with all workers of a Ray cluster: the one at this address, or that Ray finds, or else
            this machine.
        batch_size: How many images to pass through the model at once. Default: what is fastest.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        engine: What computes. auto takes the fastest that was verified for this model here, and says which.
        precision: fp32 or int8. Default: of engine auto, whatever is fastest; else fp32.
        merge: How many tokens to merge per block: faster, and a little less accurate. Default: as the model says.
        json: Print one JSON object per line: path, label, score and top, or path and error; of files, what was written.
    """
    ask = Asked(top=top, batch_size=batch_size, preprocess=preprocess, engine=engine, precision=precision, merge=merge)
    if out is not None:
        return _write(ask, model, images, out, embed=embed, part=part, ray=ray, json=json)
    for name, given in {"embed": embed, "part": part is not None, "ray": ray is not None}.items():
        if given:
            raise UserError(f"--{name}: this is for answers in files; say where with --out DIR, or leave it out.")
    return _print(ask, model, images, json=json)


class Asked(TypedDict):
    """How a model is asked, in both cases."""

    top: int
    batch_size: int | None
    preprocess: str | None
    engine: EngineChoice
    precision: Precision | None
    merge: int | None


def _print(asked: Asked, model: str, images: tuple[str, ...], *, json: bool) -> int:
    from vitreous.jobs.predict import predict_each

    failed = False
    with progress("predicting", beside_output=True) as bar:
        for found in predict_each(model, images, progress=bar, **asked):
            failed |= found.error is not None
            if json:
                print_json(found.to_json(), indent=None)
            elif found.error is not None:
                print(f"vitreous: {printable(found.path)}: {found.error}", file=sys.stderr)
            else:
                print(_line(found), flush=True)
    return int(failed)


def _write(
    asked: Asked,
    model: str,
    images: tuple[str, ...],
    out: str,
    *,
    embed: bool,
    part: str | None,
    ray: tuple[str, ...] | None,
    json: bool,
) -> int:
    from vitreous.jobs.predict_many import predict_many

    if ray is not None and len(ray) > 1:
        raise UserError(f"--ray {' '.join(ray)}: give at most one address, and MODEL and images before the options.")
    cluster = False if ray is None else (ray[0] if ray else True)
    with progress("predicting") as bar:
        done = predict_many(model, images, out, embed=embed, part=part, ray=cluster, progress=bar, **asked)
    if json:
        print_json({**asdict(done), "out": str(done.out)})
        return 0
    unreadable = f", of which {len(done.unreadable):,} could not be read" if done.unreadable else ""
    kept = f" ({done.kept:,} were there already)" if done.kept else ""
    print(f"{done.out}: {done.images:,} images{unreadable}, in {done.parts:,} {done.format} files{kept}.")
    return 0


def _line(found: Prediction) -> str:
    """The path, the label with its score, and the runners-up."""
    first, *others = (f"{printable(one.label)} {one.score:.1%}" for one in found.top)
    return f"{printable(found.path)}  {first}" + (f"  ({', '.join(others)})" if others else "")
