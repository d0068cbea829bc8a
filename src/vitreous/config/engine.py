"""What computes a model's answers, by name."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["torch", "openvino", "onnx"]
EngineChoice = Literal["auto", "torch", "openvino", "onnx"]
"""auto: the fastest that was verified for the model on this machine."""
Precision = Literal["fp32", "int8"]
"""In what numbers the large products are computed."""
