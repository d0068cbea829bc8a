"""The table of engines: whatever differs between them, one row each in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from numpy.typing import NDArray

from vitreous.arguments import Precision
from vitreous.errors import UserError
from vitreous.inference import onnx, openvino
from vitreous.inference.engine import AUTOCAST, Engine, TorchEngine


def _no_graph(*_: Any, **__: Any) -> Any:
    raise UserError("torch: PyTorch computes the network itself, so nothing is converted; choose another engine.")


@dataclass(frozen=True)
class EngineKind:
    """What an engine can do, and with what. A graph is of the runtime's own type."""

    title: str
    engine: Callable[..., Engine]  # (graph, preprocess, precision, path=); of PyTorch with a network
    needs: tuple[str, ...] = ()  # packages; the extra of vitreous that installs them has the engine's name
    precisions: tuple[Precision, ...] = ("fp32",)
    files: tuple[str, ...] = ()  # that `write` writes into a folder; none where nothing is converted
    open_with: str = ""  # the expression of the runtime's own that opens an exported folder {out}
    convert: Callable[..., Any] = _no_graph  # (program, names of outputs, metadata) to a graph
    write: Callable[..., None] = _no_graph  # (graph, folder)
    read: Callable[..., Any] = _no_graph  # (folder) to a graph
    intermediate: Callable[..., dict[str, NDArray[Any]]] = lambda *_: {}
    """(graph, images) to the outputs of its nodes, by their names in the program; none if the runtime tells none."""
    quantize: Callable[..., Any] = _no_graph  # (graph, images, transformer=) to the same in int8
    quantize_with_accuracy_control: Callable[..., Any] = _no_graph
    """The same, losing at most max_drop points on control images: also control=, labels=, max_drop=."""

    @property
    def missing(self) -> list[str]:
        return [name for name in self.needs if find_spec(name) is None]


ENGINES: dict[str, EngineKind] = {
    "torch": EngineKind("PyTorch", TorchEngine, precisions=("fp32", *AUTOCAST)),
    "openvino": EngineKind(
        "OpenVINO",
        openvino.OpenVinoEngine,
        needs=("openvino", "nncf"),
        precisions=("fp32", "int8"),
        files=(openvino.XML, openvino.BIN),
        open_with='openvino.Core().compile_model("{out}/model.xml")',
        convert=openvino.convert,
        write=openvino.write,
        read=openvino.read,
        intermediate=openvino.intermediate,
        quantize=openvino.quantize,
        quantize_with_accuracy_control=openvino.quantize_with_accuracy_control,
    ),
    "onnx": EngineKind(
        "ONNX",
        onnx.OnnxEngine,
        needs=("onnx", "onnxscript", "onnxruntime"),
        files=(onnx.FILE,),
        open_with='onnxruntime.InferenceSession("{out}/model.onnx")',
        convert=onnx.convert,
        write=onnx.write,
        read=onnx.read,
        intermediate=onnx.intermediate,
    ),
}


class Variant(NamedTuple):
    """One form of a model."""

    engine: str
    precision: Precision

    def __str__(self) -> str:
        return f"{self.engine}-{self.precision}"


TORCH, OPENVINO = Variant("torch", "fp32"), Variant("openvino", "fp32")


def converted_variants() -> list[Variant]:
    """All that a model can be converted to."""
    return [Variant(name, precision) for name, kind in ENGINES.items() if kind.files for precision in kind.precisions]


def find_engine(name: str, argument: str) -> EngineKind:
    """The row of an engine that is installed. argument: the one that names it, for errors."""
    if name not in ENGINES:
        raise UserError(f"{argument}={name!r}: there is no such engine; give one of {', '.join(ENGINES)}.")
    kind = ENGINES[name]
    if missing := kind.missing:
        be = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"{argument}={name!r}: {', '.join(missing)} {be} not installed; pip install 'vitreous[{name}]'."
        )
    return kind
