"""`vitreous plot-weights`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.arguments import Count
from vitreous.cli.terminal import Flag, console, option, print_json, printable, progress, table

if TYPE_CHECKING:
    from vitreous.jobs.plot_weights import WeightsView


def plot_weights(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    data: Annotated[str | None, option("DATA")] = None,
    count: Annotated[Count | None, option("COUNT")] = None,
    out: Annotated[str, option("DIR")] = "plots",
    preprocess: Annotated[str | None, option("TEXT")] = None,
    json: Flag = False,
) -> None:
    """Plot patch filters, position similarity and attention distance, as in the paper's figure 7.

    Args:
        model: A bundle, a run folder, or anything that `vitreous import` reads.
        data: Images to measure attention distance on: how far each head looks. Left out, there is no such plot.
        count: How many of these images to use, spread evenly over the data. Default: 64.
        out: Folder for the plots, as SVG and PNG: filters, positions, distance.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print one JSON object.
    """
    from vitreous.jobs.plot_weights import check_plots
    from vitreous.jobs.plot_weights import plot_weights as plot

    check_plots(out)
    with progress("measuring attention distance") as bar:
        found = plot(model, data, count=count, preprocess=preprocess, progress=bar)
    files = found.save(out)
    if json:
        print_json({**found.to_json(), "files": [str(file) for file in files]})
        return
    _show(found)
    if files:
        print(f"\nwritten: {', '.join(printable(str(file)) for file in files)}")


def _show(found: WeightsView) -> None:
    """How strong the first filters are, how alike positions are, and how far each head looks."""
    said, page = found.to_json(), console()
    shares = said["filter_variance"]
    if shares is None:
        page.print("filters             no convolution looks at the pixels, so there is no such plot")
    else:
        page.print(f"filters             the first {len(shares)} components explain {sum(shares):.0%} of the variance")
    if said["even_distance"] is None:
        page.print("                    only a Vision Transformer has positions and attention distance")
        return
    if said["position_similarity"] is None:
        page.print("positions           this model adds none to its tokens, so there is no such plot")
    else:
        means = ", ".join(f"{name} {value:.2f}" for name, value in said["position_similarity"].items())
        page.print(f"positions           mean cosine similarity: {means}")
    if said["attention_distance"] is None:
        page.print("attention distance  add --data DATA to see how far each head looks")
        return
    page.print(
        f"attention distance  in pixels; attending to all patches equally would give {said['even_distance']:.0f}"
    )
    page.print()
    heads = table("layer", "mean#", *(f"head {i}#" for i in range(len(said["attention_distance"][0]))))
    for number, layer in enumerate(said["attention_distance"]):
        heads.add_row(str(number), f"{sum(layer) / len(layer):.0f}", *(f"{head:.0f}" for head in layer))
    page.print(heads)
