"""The verbs: options, implementation and output of each command.

This table is the order of `vitreous --help`. A command is named after its class: `vitreous data get` is `DataGet` in
data.py. A verb of another package is added as a class: `GROUPS["mine"] = (CountImages,)` for `vitreous count-images`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.cli.verb import Verb

GROUPS: dict[str, tuple[str | type[Verb[Any]], ...]] = {
    "train and use": (
        "data.Inspect",
        "fit.Fit",
        "predict.Predict",
        "evaluate.Evaluate",
        "evaluate.Report",
        "serve.Serve",
    ),
    "look inside": (
        "explain.Explain",
        "explain.Walkthrough",
        "analyze.PlotWeights",
        "analyze.ScoreExplanations",
        "analyze.Analyze",
    ),
    "compare": ("measure.Bench", "studies.Compare", "studies.Transfer"),
    "learn without labels": ("fit.Pretrain", "studies.SelfTrain", "measure.Probe", "explain.Reconstruct"),
    "models and weights": ("models.Models", "weights.Import", "weights.Export"),
    "public data": ("data.DataGet", "data.DataList", "data.DataPack"),
    "words": ("glossary.Glossary",),
}
