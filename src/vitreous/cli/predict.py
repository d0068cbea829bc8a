"""`vitreous predict`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.arguments import Count, Merge
from vitreous.cli.engines import EngineOption, PrecisionOption
from vitreous.cli.terminal import Flag, option, print_json, printable, progress

if TYPE_CHECKING:
    from vitreous.jobs.predict import Prediction


def predict(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    pictures: Annotated[tuple[str, ...], tyro.conf.Positional, option("PICTURE|FOLDER ...")],
    top: Annotated[Count, option("COUNT")] = 5,
    batch_size: Annotated[Count | None, option("COUNT")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    engine: EngineOption = "auto",
    precision: PrecisionOption = None,
    merge: Annotated[Merge | None, option("COUNT")] = None,
    json: Flag = False,
) -> int:
    """Label pictures, one line per picture.

    The exit status is 1 if a picture could not be read.

    Args:
        model: A bundle, a run folder, an exported model, or anything that `vitreous import` reads.
        pictures: Picture files, and folders, whose pictures are taken in the order of their paths.
        top: How many labels to give per picture.
        batch_size: How many pictures to pass through the model at once. Default: what is fastest.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        engine: What computes. auto takes the fastest that was verified for this model here, and says which.
        precision: float32 or int8. Default: of engine auto, whatever is fastest; else fp32.
        merge: How many tokens to merge per block: faster, and a little less accurate. Default: as the model says.
        json: Print one JSON object per line: path, label, score and top, or path and error.
    """
    from vitreous.jobs.predict import predict_each

    failed = False
    with progress("predicting", beside_output=True) as bar:
        for found in predict_each(
            model,
            pictures,
            top=top,
            batch_size=batch_size,
            preprocess=preprocess,
            engine=engine,
            precision=precision,
            merge=merge,
            progress=bar,
        ):
            failed |= found.error is not None
            if json:
                print_json(found.to_json(), indent=None)
            elif found.error is not None:
                print(f"vitreous: {printable(found.path)}: {found.error}", file=sys.stderr)
            else:
                print(_line(found), flush=True)
    return int(failed)


def _line(found: Prediction) -> str:
    """The path, the label with its score, and the runners-up."""
    first, *others = (f"{printable(one.label)} {one.score:.1%}" for one in found.top)
    return f"{printable(found.path)}  {first}" + (f"  ({', '.join(others)})" if others else "")
