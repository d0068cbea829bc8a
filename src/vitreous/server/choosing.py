"""Which of several models a request is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Query

from vitreous.server.refusal import RefusedError
from vitreous.server.served import Served
from vitreous.wording import shown

ModelName = Annotated[str | None, Query(description="Which model; default: the first.")]


def choose_model(models: Mapping[str, Served], name: str | None) -> Served:
    """The model of this name; the first where none is named."""
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        raise RefusedError(404, f"model {shown(name)}: there is none of this name; there are {', '.join(models)}.")
    return models[name]
