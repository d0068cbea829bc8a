"""What computes a model's predictions, by name; each has a row in `vitreous.inference.engines.ENGINES`."""

from __future__ import annotations

from typing import Literal

ConvertedEngine = Literal["openvino", "onnx"]  # what a model can be exported for
EngineName = Literal["torch", ConvertedEngine]
EngineChoice = Literal["auto", EngineName]  # auto: the fastest that was verified for the model on this machine
Precision = Literal["fp32", "int8"]  # of the numbers in the large products
