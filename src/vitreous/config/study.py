"""Choices of a study, by name."""

from __future__ import annotations

from typing import Literal

Equal = Literal["time", "flops"]  # what the trainings of all models of a comparison have the same of
Protocol = Literal["vtab-1k", "full", "linear", "knn", "fewshot-5"]  # how a model is transferred to a task
