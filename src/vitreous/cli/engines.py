"""How verbs that ask a model name what computes its answers."""

from __future__ import annotations

from typing import Annotated

from vitreous.cli.terminal import option
from vitreous.config.engine import EngineChoice, Precision

EngineOption = Annotated[EngineChoice, option("auto|torch|openvino|onnx")]
PrecisionOption = Annotated[Precision | None, option("fp32|int8")]
