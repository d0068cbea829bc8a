"""`vitreous analyze`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.arguments import Count, Seed, Workers
from vitreous.cli.terminal import Flag, console, option, print_json, printable, progress, table

if TYPE_CHECKING:
    from vitreous.jobs.analyze import Analysis, BiasAnalysis


def analyze(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, option("MODEL ...")],
    data: Annotated[str, option("DATA")],
    out: Annotated[str, option("DIR")],
    what: Literal["depths", "bias"] = "depths",
    images: Annotated[Count | None, option("COUNT")] = None,
    seed: Annotated[Seed, option("NUMBER")] = 0,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    json: Flag = False,
) -> None:
    """Compare what models learned, depth by depth, or which inductive bias they have.

    Writes DIR/analysis.html, a page with plots, and DIR/analysis.json, the numbers behind them; with --what bias,
    DIR/bias.html and DIR/bias.json.

    Args:
        models: Bundles, run folders, or anything that `vitreous import` reads, with or without a classifier.
        data: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin.
            Images without labels will do; what needs labels is then left out.
        out: The folder to write to.
        what: depths: attention, tokens and linear probes by depth, of Vision Transformers. bias: what moving, shuffling
            and filtering images does to the predictions of models of any family, and how far they look.
        images: How many images of the test split (or else of what there is) to measure, and how many of the train
            split the linear probes learn from. Default: 500; for bias, which looks at each some 30 times, 200.
        seed: Seed for choosing the images, and for the noise, moves and shuffles.
        workers: Processes that decode images. Default: one per core, at most 4; none for a few images.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print the contents of the JSON file.
    """
    from vitreous.jobs import analyze as jobs

    measure = jobs.analyze_bias if what == "bias" else jobs.analyze
    count = {} if images is None else {"images": images}
    with progress("analyzing") as bar:
        found = measure(models, data, out, **count, seed=seed, workers=workers, preprocess=preprocess, progress=bar)
    if json:
        print_json(found.numbers.to_json())
    elif isinstance(found, jobs.BiasAnalysis):
        _show_bias(found)
    else:
        _show(found)


def _show(found: Analysis) -> None:
    page, numbers = console(), found.numbers
    measured = f"{numbers.data.images:,} images ({numbers.data.split})"
    page.print(f"{measured}; each number is the mean over the last third of the layers")
    page.print()
    names = [printable(model.name) for model in numbers.models]
    rows = table("", *(f"{name}#" for name in names))
    for row in numbers.summary:
        rows.add_row(row.measure, *(f"{value:.1%}" if row.share else f"{value:.3f}" for value in row.values))
    page.print(rows)
    _show_files(found)


def _show_bias(found: BiasAnalysis) -> None:
    from vitreous.explain.analysis.bias_summary import summarise_bias, tell_margin
    from vitreous.report.bias import shown_value

    page, numbers = console(), found.numbers
    page.print(f"{numbers.data.images:,} images ({numbers.data.split}); how to read each number is on the page")
    page.print(tell_margin([bias for _, bias in numbers.models]))
    page.print()
    rows = table("", *(f"{printable(name)}#" for name, _ in numbers.models))
    for row in summarise_bias([bias for _, bias in numbers.models]):
        rows.add_row(row.measure, *(shown_value(value, row.share) for value in row.values))
    page.print(rows)
    _show_files(found)


def _show_files(found: Analysis | BiasAnalysis) -> None:
    page = console()
    page.print()
    for remark in found.numbers.remarks:
        page.print(f"note: {printable(remark)}")
    page.print(f"page     {found.page}")
    page.print(f"numbers  {found.json}")
