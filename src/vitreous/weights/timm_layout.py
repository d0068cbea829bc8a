"""timm's way of saying what a model is: what each family fills in, and what is read from it alike for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from vitreous.config.data import Interpolation, Preprocess
from vitreous.errors import UserError
from vitreous.weights.foreign import Foreign, Raw, other_count, stated
from vitreous.weights.mapping import Rule

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


def stated_by_timm(raw: Raw, found: Foreign) -> Foreign:
    """What an adapter made of timm's tensors, with the preprocessing and labels that config.json beside them states."""
    said = raw.config or {}
    pretrained = said.get("pretrained_cfg") or said  # older folders have its fields one level up
    preprocess, problem = found.preprocess, None
    if "mean" in pretrained:
        preprocess, problem = stated(
            lambda: timm_preprocess(pretrained, found.config.image_size, raw.where),
            lambda: found.preprocess,
            raw.where,
            "config.json",
        )
    labels = tuple(str(label) for label in said.get("label_names") or pretrained.get("label_names") or ())
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
        crop=said.get("crop_pct") or 1.0,
        interpolation=how,
        resize=modes[mode],  # type: ignore[arg-type]
    )
