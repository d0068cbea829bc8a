"""`vitreous plot-weights`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.arguments import Count
from vitreous.cli.terminal import console, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.verbs.options import PreprocessOption

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.explain.weight_plots import WeightPlots
    from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class PlotWeights(PreprocessOption, Verb["WeightPlots"]):
    """Plot patch filters, position similarity and attention distance, as in the paper's figure 7."""

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, or anything that `vitreous import` reads."""
    _: KW_ONLY
    data: str | Path | Data | None = None
    """DATA: Images to measure attention distance on: how far each head looks. Left out, there is no such plot."""
    count: Count | None = None
    """COUNT: How many of these images to use, spread evenly over the data. Default: 64."""
    out: str | Path | None = "plots"
    """FOLDER: Folder for the plots, as SVG and PNG: filters, positions, distance."""

    def run(self) -> WeightPlots:
        """The plots, and the numbers behind them; of a model without attention, the filters of its first layer."""
        from vitreous.data.opening import choose_split, open_images
        from vitreous.explain.weight_plots import MAX_IMAGES, check_plots, plot_weights
        from vitreous.inference.memory_needs import check_explanation_memory
        from vitreous.inference.opening import open_model
        from vitreous.model.vit import ViT

        if self.count is not None and self.data is None:
            raise UserError(f"count={self.count}: counts the images of data; give data too, or leave count out.")
        if self.out is not None:
            check_plots(self.out)
        bundle = open_model(self.model, self.preprocess)
        images = None
        if self.data is not None and isinstance(bundle.model, ViT):
            check_explanation_memory(bundle, "attention")
            _, images = choose_split(open_images(self.data), None)

        def progress(done: int, total: int) -> None:
            self.told.progress("measuring attention distance", done, total)

        found = plot_weights(bundle, images, self.count or MAX_IMAGES, progress)
        return found if self.out is None else replace(found, files=found.save(self.out))

    def show(self, result: WeightPlots) -> None:
        """The variance of the first filters, the similarity of positions, and how far each head looks."""
        numbers, page = result.to_json(), console()
        variance = numbers["filter_variance"]
        if variance is None:
            page.print("filters             no convolution looks at the pixels, so there is no such plot")
        else:
            page.print(
                f"filters             the first {len(variance)} components explain {sum(variance):.0%} of the variance"
            )
        if numbers["even_distance"] is None:
            page.print("                    only a Vision Transformer has positions and attention distance")
        elif numbers["position_similarity"] is None:
            page.print("positions           this model adds none to its tokens, so there is no such plot")
        else:
            means = ", ".join(f"{name} {value:.2f}" for name, value in numbers["position_similarity"].items())
            page.print(f"positions           mean cosine similarity: {means}")
        if (distances := numbers["attention_distance"]) is not None:
            even = f"{numbers['even_distance']:.0f}"
            page.print(f"attention distance  in pixels; attending to all patches equally would give {even}")
            page.print()
            heads = table("layer", "mean#", *(f"head {i}#" for i in range(len(distances[0]))))
            for number, layer in enumerate(distances):
                heads.add_row(str(number), f"{sum(layer) / len(layer):.0f}", *(f"{head:.0f}" for head in layer))
            page.print(heads)
        elif numbers["even_distance"] is not None:
            page.print("attention distance  add --data DATA to see how far each head looks")
        if result.files:
            print(f"\nwritten: {', '.join(printable(str(file)) for file in result.files)}")


plot_weights = verb(PlotWeights)
