"""`vitreous export`."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from vitreous.cli.terminal import option, printable

_OPEN = {
    "huggingface": 'transformers.{auto}.from_pretrained("{out}")',
    "timm": 'timm.create_model("local-dir:{out}", pretrained=True)',
    "google": 'numpy.load("{out}")',
}


def export(
    bundle: Annotated[str, tyro.conf.Positional, option("BUNDLE")],
    out: Annotated[str, tyro.conf.Positional, option("OUT")],
    to: Annotated[Literal["huggingface", "timm", "google"], option("huggingface|timm|google")],
) -> None:
    """Write a model in a format that other programs read: Hugging Face, timm or Google.

    Args:
        bundle: A bundle, a run folder, or anything that `vitreous import` reads.
        out: What to write: a folder that is new, empty or an earlier export; for google, a file that ends in .npz.
        to: huggingface: a folder for from_pretrained, with its image processor. timm: a folder for local-dir. google:
            an .npz with the tensor names of the paper's code.
    """
    from vitreous.jobs.export import export_weights
    from vitreous.run.opening import open_model

    opened = open_model(bundle)
    place = printable(str(export_weights(opened, out, to)))
    auto = "AutoModelForImageClassification" if opened.labels else "AutoModel"
    print(f"written: {place}")
    print(f"open it: {_OPEN[to].format(out=place, auto=auto)}")
