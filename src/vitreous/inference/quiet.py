"""Converters print, warn and log about themselves; none of it concerns whoever asked for a conversion."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

_LOUD = ("nncf", "torch.onnx", "onnxscript", "onnx_ir")


@contextmanager
def quiet() -> Iterator[None]:
    """Within, nothing is printed, warned of or logged by those who convert."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
