"""A Vision Transformer you can see through.

    import vitreous
    run = vitreous.fit("photos/", budget="5m")
    vitreous.load(run.bundle).predict("cat.jpg")
    model = vitreous.ViT("B/16", classes=10)

The public names are listed in `__all__`; each is imported when it is first used, so `import vitreous` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.config.model import ViTConfig, preset
    from vitreous.errors import UserError
    from vitreous.model.trace import Trace
    from vitreous.model.vit import ViT
    from vitreous.verbs.analyze import analyze
    from vitreous.verbs.bench import bench
    from vitreous.verbs.compare import compare
    from vitreous.verbs.data_get import get_data
    from vitreous.verbs.data_list import list_data
    from vitreous.verbs.data_pack import pack_data
    from vitreous.verbs.evaluate import evaluate
    from vitreous.verbs.export import export_weights
    from vitreous.verbs.fit import fit
    from vitreous.verbs.import_ import import_weights
    from vitreous.verbs.inspect import inspect
    from vitreous.verbs.load import Model, load
    from vitreous.verbs.models import models
    from vitreous.verbs.plot_weights import plot_weights
    from vitreous.verbs.predict import predict, predict_many
    from vitreous.verbs.pretrain import pretrain
    from vitreous.verbs.probe import probe
    from vitreous.verbs.reconstruct import reconstruct
    from vitreous.verbs.report import write_report
    from vitreous.verbs.score_explanations import score_explanations
    from vitreous.verbs.self_train import self_train
    from vitreous.verbs.serve import serve
    from vitreous.verbs.transfer import transfer
    from vitreous.verbs.walkthrough import write_walkthrough

__version__ = "0.1.0"

_HOMES = {
    "Model": "vitreous.verbs.load",
    "Trace": "vitreous.model.trace",
    "UserError": "vitreous.errors",
    "ViT": "vitreous.model.vit",
    "ViTConfig": "vitreous.config.model",
    "analyze": "vitreous.verbs.analyze",
    "bench": "vitreous.verbs.bench",
    "compare": "vitreous.verbs.compare",
    "evaluate": "vitreous.verbs.evaluate",
    "export_weights": "vitreous.verbs.export",
    "fit": "vitreous.verbs.fit",
    "get_data": "vitreous.verbs.data_get",
    "import_weights": "vitreous.verbs.import_",
    "inspect": "vitreous.verbs.inspect",
    "list_data": "vitreous.verbs.data_list",
    "load": "vitreous.verbs.load",
    "models": "vitreous.verbs.models",
    "pack_data": "vitreous.verbs.data_pack",
    "plot_weights": "vitreous.verbs.plot_weights",
    "predict": "vitreous.verbs.predict",
    "predict_many": "vitreous.verbs.predict",
    "preset": "vitreous.config.model",
    "pretrain": "vitreous.verbs.pretrain",
    "probe": "vitreous.verbs.probe",
    "reconstruct": "vitreous.verbs.reconstruct",
    "score_explanations": "vitreous.verbs.score_explanations",
    "self_train": "vitreous.verbs.self_train",
    "serve": "vitreous.verbs.serve",
    "transfer": "vitreous.verbs.transfer",
    "write_report": "vitreous.verbs.report",
    "write_walkthrough": "vitreous.verbs.walkthrough",
}

__all__ = [
    "Model",
    "Trace",
    "UserError",
    "ViT",
    "ViTConfig",
    "analyze",
    "bench",
    "compare",
    "evaluate",
    "export_weights",
    "fit",
    "get_data",
    "import_weights",
    "inspect",
    "list_data",
    "load",
    "models",
    "pack_data",
    "plot_weights",
    "predict",
    "predict_many",
    "preset",
    "pretrain",
    "probe",
    "reconstruct",
    "score_explanations",
    "self_train",
    "serve",
    "transfer",
    "write_report",
    "write_walkthrough",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
