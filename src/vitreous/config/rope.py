"""Rotary positions: how far the queries and keys of a patch are turned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitreous.arguments import Range, check_fields
from vitreous.errors import UserError


@dataclass(frozen=True)
class Rope:
    """Rotary positions along two axes. The defaults are DINOv3's.

    Half of each head's pairs of numbers are turned by the patch's row, half by its column: pair k by the angle
    p * base^(-4 k / d), with p the place along the axis and d the length of a head.
    """

    base: Annotated[float, Range(1, 1e12)] = 100.0
    coordinates: Literal["centres", "cells"] = "centres"
    """What p is: 2 pi times the cell's centre, from -1 to 1 across the image (DINOv3), or the cell's number from 0."""
    reference: tuple[int, int] | None = None
    """Rows and columns that cells are counted on, whatever the grid (EVA-02); None for the grid's own."""
    offset: float = 0.0  # added to the cell's number (1 in Perception Encoder)
    columns_first: bool = False  # whether the column turns the first half of the pairs (Perception Encoder)
    interleaved: bool = False  # whether pair k is (2 k, 2 k + 1), and not (k, k + d/2)
    bfloat16: bool = False  # whether the periods base^(4 k / d) are rounded to bfloat16, as in Meta's files

    def __post_init__(self) -> None:
        check_fields(self)
        if self.reference is not None and min(self.reference) < 1:
            raise UserError(f"reference={self.reference}: must be at least 1 on both sides.")
        if self.coordinates == "centres" and (self.reference is not None or self.offset):
            raise UserError("coordinates='centres': reference and offset are for coordinates='cells'; leave them out.")
