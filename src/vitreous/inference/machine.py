"""What a result was computed on and with."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from vitreous import __version__


def machine_features(device: torch.device) -> dict[str, Any]:
    """The device, its processor, and the versions."""
    return {
        "device": device.type,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vitreous": __version__,
    }
