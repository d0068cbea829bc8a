"""Where a patch is: the position embeddings that the paper compares (appendix D.4), and how they move to another grid.

A grid is (rows, columns). A table lists a grid's cells row by row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
