"""A Vision Transformer you can see through.

    import vitreous
    run = vitreous.fit("photos/", budget="5m")
    vitreous.load(run.bundle).predict("cat.jpg")
    model = vitreous.ViT("B/16", classes=10)

The public names are listed in `__all__`; each is imported when it is first used, so `import vitreous` is instant.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.config.model import ViTConfig as ViTConfig
    from vitreous.config.model import preset as preset
    from vitreous.errors import UserError as UserError
    from vitreous.model.trace import Trace as Trace
    from vitreous.model.vit import ViT as ViT
    from vitreous.verbs.analyze import analyze as analyze
    from vitreous.verbs.analyze import plot_weights as plot_weights
    from vitreous.verbs.analyze import score_explanations as score_explanations
    from vitreous.verbs.data import get_data as get_data
    from vitreous.verbs.data import inspect as inspect
    from vitreous.verbs.data import list_data as list_data
    from vitreous.verbs.data import pack_data as pack_data
    from vitreous.verbs.evaluate import evaluate as evaluate
    from vitreous.verbs.evaluate import write_report as write_report
    from vitreous.verbs.explain import reconstruct as reconstruct
    from vitreous.verbs.explain import write_walkthrough as write_walkthrough
    from vitreous.verbs.fit import fit as fit
    from vitreous.verbs.fit import pretrain as pretrain
    from vitreous.verbs.load import Model as Model
    from vitreous.verbs.load import load as load
    from vitreous.verbs.measure import bench as bench
    from vitreous.verbs.measure import probe as probe
    from vitreous.verbs.models import models as models
    from vitreous.verbs.predict import predict as predict
    from vitreous.verbs.predict import predict_many as predict_many
    from vitreous.verbs.serve import serve as serve
    from vitreous.verbs.studies import compare as compare
    from vitreous.verbs.studies import self_train as self_train
    from vitreous.verbs.studies import transfer as transfer
    from vitreous.verbs.weights import export_weights as export_weights
    from vitreous.verbs.weights import import_weights as import_weights

__version__ = "0.1.0"

_HOMES = {name: home for home, name in re.findall(r"^    from (\S+) import (\w+) as", Path(__file__).read_text(), re.M)}
"""The public names by their home: what is imported above for type checkers alone."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
