"""The objectives by kind: what configures each, and what builds it. A new one is one more entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vitreous.config.fields import from_fields
from vitreous.config.objective import Dino, Distill, Mae, MaskedPatch, ObjectiveConfig, Supervised, TokenLabel
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.objectives.dino import build_dino
from vitreous.objectives.distill import build_distill
from vitreous.objectives.mae import build_mae
from vitreous.objectives.masked_patch import build_masked_patch
from vitreous.objectives.objective import Objective
from vitreous.objectives.setting import Setting
from vitreous.objectives.supervised import build_supervised
from vitreous.objectives.token_label import build_token_label


@dataclass(frozen=True)
class Kind:
    """A kind of objective."""

    config: type[ObjectiveConfig]
    build: Callable[[Network, Any, Setting], Objective]
    """From the network to train, the configuration, and the setting."""


OBJECTIVES: dict[str, Kind] = {
    "supervised": Kind(Supervised, build_supervised),
    "distill": Kind(Distill, build_distill),
    "token-label": Kind(TokenLabel, build_token_label),
    "mae": Kind(Mae, build_mae),
    "dino": Kind(Dino, build_dino),
    "masked-patch": Kind(MaskedPatch, build_masked_patch),
}


def build_objective(network: Network, config: ObjectiveConfig, setting: Setting) -> Objective:
    """The network with what it learns by."""
    return OBJECTIVES[config.kind].build(network, config, setting)


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
