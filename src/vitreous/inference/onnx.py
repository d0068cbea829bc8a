"""ONNX: a network's graph as a file that many programs open, computed here by ONNX Runtime.

Whatever is imported from onnx and onnxruntime is imported when it is needed: they are an extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.fx import Graph

from vitreous.arguments import Precision
from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.inference.engine import LOGITS, GraphEngine
from vitreous.inference.graph import INPUT, MAX_BATCH_SIZE, quiet_converters

FILE = "model.onnx"
OPSET = 23  # the first version of ONNX that has attention as one operation
MAX_WEIGHT_BYTES = 2**31 - 2**24  # that one file can hold beside its graph


def convert(program: ExportedProgram, names: Sequence[str], metadata: Mapping[str, str]) -> Any:
    """The graph as an `onnx.ModelProto`. names: of its outputs; metadata: what the file says of itself."""
    if sum(tensor.nbytes for tensor in program.state_dict.values()) >= MAX_WEIGHT_BYTES:
        raise UserError("onnx: the model has more than 2 GB, the most that one ONNX file holds; export to openvino.")
    separate_padding_from_pool(program.graph)
    # No gradients, as it was traced: with them, attention lays its result out otherwise.
    with quiet_converters(), torch.no_grad():
        exported = torch.onnx.export(
            program,
            tuple(program.example_inputs[0]),
            input_names=[INPUT],
            output_names=list(names),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            dynamic_shapes=({0: Dim("batch", min=1, max=MAX_BATCH_SIZE)},),
        )
    assert exported is not None
    exported.model.metadata_props.update(metadata)
    return exported.model_proto


def separate_padding_from_pool(graph: Graph) -> None:
    """Put something between zeros around a tensor and a pooling by maximum, as in BiT.

    ONNX Runtime (1.31) would make them one, and then negative numbers win at the edge: a pooling's own padding is less
    than any number. The operation between them changes nothing.
    """
    for pool in list(graph.nodes):
        if pool.target != torch.ops.aten.max_pool2d.default or pool.args[0].target != torch.ops.aten.pad.default:
            continue
        padded = pool.args[0]
        with graph.inserting_after(padded):
            same = graph.call_function(torch.ops.aten.clamp.default, (padded, torch.finfo(torch.float32).min))
        same.meta = dict(padded.meta)
        pool.replace_input_with(padded, same)


def write(model: Any, folder: Path) -> None:
    (folder / FILE).write_bytes(model.SerializeToString())


def read(folder: Path) -> Any:
    return (folder / FILE).read_bytes()


def intermediate(model: Any, images: Tensor) -> dict[str, NDArray[Any]]:
    """What each node of the graph gives for the images, under the name that it had in the traced graph."""
    import onnx

    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    known = {output.name for output in exposed.graph.output}
    names = [name for node in exposed.graph.node for name in node.output if name and name not in known]
    exposed.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = _session(exposed.SerializeToString(), 1)
    return dict(zip(names, _run(session, names, images), strict=True))


class OnnxEngine(GraphEngine):
    """A model in ONNX Runtime, on the processor. Its session is opened at the first call."""

    name: str = "onnx"
    batch_size = 8  # more gain nothing on a processor

    def __init__(self, graph: Any, preprocess: Preprocess, precision: Precision, *, path: Path | None = None) -> None:
        """graph: an `onnx.ModelProto`, or its bytes."""
        super().__init__(graph, preprocess, precision, path=path)
        self._opened: Any = None
        self._lock = Lock()

    @property
    def classes(self) -> int:
        return next((output.shape[1] for output in self._session().get_outputs() if output.name == LOGITS), 0)

    def _compute(self, images: Tensor, outputs: Sequence[str]) -> list[Tensor]:
        return [torch.from_numpy(values) for values in _run(self._session(), list(outputs), images)]

    def _session(self) -> Any:
        with self._lock:
            if self._opened is None:
                content = self.graph if isinstance(self.graph, bytes) else self.graph.SerializeToString()
                try:
                    self._opened = _session(content, torch.get_num_threads())
                except RuntimeError as error:
                    if self.path is None:  # it is just being made
                        raise
                    raise UserError(f"{self.path}: ONNX Runtime cannot open it ({error}); export it again.") from None
        return self._opened


def _session(content: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised
    with _runtime_errors():
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _run(session: Any, names: list[str], images: Tensor) -> list[NDArray[Any]]:
    with _runtime_errors():
        found: list[NDArray[Any]] = session.run(names, {INPUT: images.numpy()})
    return found


@contextmanager
def _runtime_errors() -> Iterator[None]:
    """Within, errors of ONNX Runtime, which have no class in common but `Exception`, are RuntimeErrors of one line."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise RuntimeError(str(error).splitlines()[0]) from error
