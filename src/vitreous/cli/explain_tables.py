"""What `vitreous explain` prints of weights and of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.cli.terminal import console, table

if TYPE_CHECKING:
    from vitreous.jobs.explain_score import ExplanationScores
    from vitreous.jobs.explain_weights import WeightsView


def show_weights(found: WeightsView) -> None:
    """How strong the first filters are, how alike positions, and how far each head looks."""
    said, page = found.to_json(), console()
    shares = said["filter_variance"]
    if shares is None:
        page.print("filters         no convolution looks at the pixels, so there is no such figure")
    else:
        page.print(f"filters         the first {len(shares)} components have {sum(shares):.0%} of the variance")
    if said["even_distance"] is None:
        page.print("                positions and attention distance are those of a Vision Transformer")
        return
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


def show_scores(found: ExplanationScores) -> None:
    """A row a map, baselines first, and how to read them."""
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
