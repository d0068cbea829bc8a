"""One file per verb: its options, what it does, how its result is shown. This table is the order of `vitreous --help`.

A verb is a class of its name (`DataGet` of "data get", in data_get.py); a first word that verbs share groups them. A
verb from outside the package is its class: `GROUPS["mine"] = (CountImages,)` adds `vitreous count-images`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.cli.verb import Verb

GROUPS: dict[str, tuple[str | type[Verb[Any]], ...]] = {
    "train and use": (
        "data get",
        "data list",
        "data pack",
        "inspect",
        "fit",
        "predict",
        "evaluate",
        "serve",
        "bench",
        "compare",
        "transfer",
        "report",
    ),
    "look inside": ("explain", "walkthrough", "plot-weights", "score-explanations", "analyze"),
    "learn without labels": ("pretrain", "self-train", "probe", "reconstruct"),
    "models and weights": ("models", "import", "export"),
}
