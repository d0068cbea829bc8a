"""The objectives by kind: the configuration of each, and its class. A new one is one more row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from vitreous.config.fields import from_fields
from vitreous.config.objective import Dino, Distill, Mae, MaskedPatch, ObjectiveConfig, Supervised, TokenLabel
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.objectives.dino import SelfDistillation
from vitreous.objectives.distill import Distillation
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.objectives.masked_patch import MaskedPatchPrediction
from vitreous.objectives.objective import Objective, Setting
from vitreous.objectives.supervised import Classification
from vitreous.objectives.token_label import TokenLabelling


class Kind(NamedTuple):
    """A kind of objective."""

    config: type[ObjectiveConfig]
    objective: Callable[[Any, Any, Setting], Objective]
    """The class: called with the network to train, the configuration, and the setting."""


OBJECTIVES: dict[str, Kind] = {
    "supervised": Kind(Supervised, Classification),
    "distill": Kind(Distill, Distillation),
    "token-label": Kind(TokenLabel, TokenLabelling),
    "mae": Kind(Mae, MaskedAutoencoder),
    "dino": Kind(Dino, SelfDistillation),
    "masked-patch": Kind(MaskedPatch, MaskedPatchPrediction),
}


def build_objective(network: Network, config: ObjectiveConfig, setting: Setting) -> Objective:
    return OBJECTIVES[config.kind].objective(network, config, setting)


def objective_to_json(config: ObjectiveConfig) -> dict[str, Any]:
    """Every field, and which kind it is, for `json.dumps`."""
    return {"kind": config.kind, **asdict(config)}


def objective_from_json(fields: Mapping[str, Any], where: object = "objective") -> ObjectiveConfig:
    """The same objective again; `where` is the file that it comes from."""
    rest = dict(fields)
    kind = rest.pop("kind")
    if kind not in OBJECTIVES:
        raise UserError(f"objective {kind!r}: unknown to this vitreous; it knows {', '.join(OBJECTIVES)}.")
    return from_fields(OBJECTIVES[kind].config, rest, where)
