"""timm's way of saying what a model is: what each family fills in, and what is read from it alike for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from vitreous.arguments import Count, check_value
from vitreous.config.data import Interpolation, Preprocess
from vitreous.config.model import ModelConfig
from vitreous.errors import UserError
from vitreous.weights.foreign import Foreign, Raw, check_agreement, other_count, stated
from vitreous.weights.mapping import Rule
from vitreous.weights.timm_architectures import why_not
from vitreous.wording import shown

UNKNOWN_TO_TIMM = "vitreous"
"""The architecture of a model that timm has no word for: timm then refuses it by this name."""


@dataclass(frozen=True)
class TimmModel:
    """A model in timm's words."""

    features: int
    architecture: str = UNKNOWN_TO_TIMM
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """In which it differs from what the architecture's name says."""
    missing: str | None = None
    """What timm has no word for; None if it can be told all."""
    global_pool: str | None = None
    first_conv: str | None = None
    classifier: str | list[str] | None = None
    rules: Sequence[Rule] = ()
    """For tensors that timm keeps in another shape."""


def is_timm(config: dict[str, Any] | None) -> bool:
    """Whether a config.json is of timm's hub."""
    return config is not None and ("architecture" in config or "pretrained_cfg" in config)


def architecture_of(config: dict[str, Any] | None) -> str:
    """The architecture that a config.json of timm's names; else ""."""
    said = config or {}
    pretrained = said.get("pretrained_cfg")
    inside = pretrained.get("architecture") if isinstance(pretrained, dict) else None
    return str(said.get("architecture") or inside or "")


def check_architecture(raw: Raw) -> None:
    """Refuse a type of timm's that cannot be opened, by its name, whatever its tensors look like."""
    name = architecture_of(raw.config)
    if reason := why_not(name):
        raise UserError(f"{raw.where}: a model of timm's type {shown(name)} {reason}; give another model.")


def pretrained_of(raw: Raw) -> dict[str, Any]:
    """What config.json says of the weights; older folders have its fields one level up."""
    said = raw.config or {}
    pretrained: dict[str, Any] = said.get("pretrained_cfg") or said
    return pretrained


def size_of_input(raw: Raw) -> tuple[int, int] | None:
    """Height and width of the images that config.json states, for a network whose tensors do not tell."""
    pretrained = pretrained_of(raw)
    if pretrained.get("input_size") is None:
        return None
    _, height, width = check_value(pretrained["input_size"], tuple[Count, Count, Count], "input_size")
    return height, width


def arguments_of(raw: Raw, understood: Mapping[str, Any]) -> dict[str, Any]:
    """timm's arguments of a model, those that are None left out; what is not known here is refused.

    understood: those that the tensors tell too, that are read, or that matter in training alone; and their types.
    """
    arguments = {}
    for name, value in ((raw.config or {}).get("model_args") or {}).items():
        if name not in understood:
            asked = f"asks for {shown(name)[1:-1]}, which is not known here"
            raise UserError(f"{raw.where}: config.json beside it {asked}; give another model.")
        if value is not None:
            arguments[name] = check_value(value, understood[name], name)
    return arguments


def check_stated(
    raw: Raw, arguments: dict[str, Any], c: ModelConfig, features: int, facts: Mapping[str, Any] | None = None
) -> None:
    """Refuse a config.json that contradicts the tensors. features, facts: what they show, by the names of arguments."""
    facts = {"in_chans": c.channels, "num_classes": c.classes, **(facts or {})}
    pairs = {name: (arguments[name], fact) for name, fact in facts.items() if name in arguments}
    whole = {"num_classes": c.classes, "num_features": features}
    pairs |= {name: (said, fact) for name, fact in whole.items() if (said := (raw.config or {}).get(name)) is not None}
    check_agreement(raw.where, pairs)


def stated_by_timm(raw: Raw, found: Foreign) -> Foreign:
    """What an adapter made of timm's tensors, with the preprocessing and labels that config.json beside them states."""
    said, pretrained = raw.config or {}, pretrained_of(raw)
    preprocess, problem = found.preprocess, None
    if "mean" in pretrained:
        preprocess, problem = stated(
            lambda: timm_preprocess(pretrained, found.config.image_size, raw.where),
            lambda: found.preprocess,
            raw.where,
            "config.json",
        )
    names = said.get("label_names") or pretrained.get("label_names") or ()
    labels: tuple[str, ...] = check_value(names, tuple[str, ...], "label_names")
    classes = found.config.classes
    return Foreign(
        family=found.family,
        config=found.config,
        rules=found.rules,
        preprocess=preprocess,
        assumed="mean" not in pretrained,
        labels=labels if len(labels) == classes else (),
        problem=problem,
        heads_assumed=found.heads_assumed,
        notes=(*found.notes, *other_count(len(labels), classes, "label_names of config.json")),
    )


def timm_preprocess(said: dict[str, Any], size: tuple[int, int], where: str) -> Preprocess:
    """What timm calls the data config. size: of the model, if it says none."""
    how, mode = said.get("interpolation", "bicubic"), said.get("crop_mode", "center")
    modes = {"center": "cover", "squash": "stretch"}
    if how not in get_args(Interpolation) or mode not in modes:
        raise UserError(
            f"{where}: config.json asks for interpolation {how!r} and crop mode {mode!r}, which are not known"
        )
    return Preprocess(
        size=tuple(said["input_size"][1:]) if "input_size" in said else size,
        mean=tuple(said["mean"]),
        std=tuple(said["std"]),
        crop=1.0 if said.get("crop_pct") is None else said["crop_pct"],
        interpolation=how,
        resize=modes[mode],  # type: ignore[arg-type]
    )
