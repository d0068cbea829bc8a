"""The runtimes beside PyTorch: what each can do, one row each in `RUNTIMES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import UserError
from vitreous.inference import int8, onnx, openvino
from vitreous.inference.engine import Engine


@dataclass(frozen=True)
class Backend:
    """What converts, stores and computes a graph. `model` in the functions is the runtime's own type."""

    title: str
    needs: tuple[str, ...]
    """Packages; the extra of vitreous that installs them has the runtime's name."""
    files: tuple[str, ...]
    """What `write` writes into a folder."""
    convert: Callable[..., Any]
    """(program, names of outputs, metadata) to a model."""
    write: Callable[[Any, Path], None]
    read: Callable[[Path], Any]
    engine: Callable[..., Engine]
    """(model, preprocess, precision, path=) to an engine."""
    intermediate: Callable[[Any, Tensor], dict[str, NDArray[Any]]]
    """The outputs of the graph's nodes for images, by the name of the node."""
    quantize: Callable[..., Any] | None = None
    """(model, images, transformer=) to the same in int8; None if it has none."""
    quantize_with_accuracy_control: Callable[..., Any] | None = None
    """The same, losing at most max_drop points on control images: also control=, labels=, max_drop=."""

    @property
    def installed(self) -> bool:
        """Whether it can be used here."""
        return all(find_spec(name) is not None for name in self.needs)


RUNTIMES: dict[str, Backend] = {
    "openvino": Backend(
        title="OpenVINO",
        needs=("openvino", "nncf"),
        files=(openvino.XML, openvino.BIN),
        convert=openvino.convert,
        write=openvino.write,
        read=openvino.read,
        engine=openvino.OpenVinoEngine,
        intermediate=openvino.intermediate,
        quantize=int8.quantize,
        quantize_with_accuracy_control=int8.quantize_with_accuracy_control,
    ),
    "onnx": Backend(
        title="ONNX",
        needs=("onnx", "onnxscript", "onnxruntime"),
        files=(onnx.FILE,),
        convert=onnx.convert,
        write=onnx.write,
        read=onnx.read,
        engine=onnx.OnnxEngine,
        intermediate=onnx.intermediate,
    ),
}


def find_runtime(name: str, argument: str) -> Backend:
    """The runtime of a name, if it is installed. argument: the one that names it, for errors."""
    runtime = RUNTIMES[name]
    if not runtime.installed:
        missing = [package for package in runtime.needs if find_spec(package) is None]
        be = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"{argument}={name!r}: {', '.join(missing)} {be} not installed; pip install 'vitreous[{name}]'."
        )
    return runtime
