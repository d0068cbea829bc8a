"""OpenVINO: a network's graph converted, computed on the processor by one stream for each core, and quantized by NNCF.

Whatever is imported from openvino and nncf is imported when it is needed: they are an extra.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram

from vitreous.arguments import Precision
from vitreous.callbacks import Callbacks, NamedProgress
from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.inference.engine import LOGITS, GraphEngine
from vitreous.inference.graph import INPUT, quiet_converters
from vitreous.model.precision import INSTRUCTIONS, amx_allowed, amx_works, avoid_broken_amx
from vitreous.model.predictions import predicted_class

log = logging.getLogger("vitreous")

XML, BIN = "model.xml", "model.bin"
_CORE_LOCK = Lock()
IMAGES_PER_STREAM = 4
"""That one stream computes at once: their activations stay in a core's cache, and products are large."""


def convert(program: ExportedProgram, names: Sequence[str], metadata: Mapping[str, str]) -> Any:
    """The graph as OpenVINO's model. names: of its outputs; metadata: what the model says of itself."""
    import openvino as ov

    avoid_broken_amx()
    size = program.example_inputs[0][0].shape[1:]
    with quiet_converters(), torch.no_grad():
        model = ov.convert_model(program)
    model.reshape([-1, *size])
    model.inputs[0].get_tensor().set_names({INPUT})
    for output, name in zip(model.outputs, names, strict=True):
        output.get_tensor().set_names({name})
    for name, text in metadata.items():
        model.set_rt_info(text, ["vitreous", name])
    return model


def write(model: Any, folder: Path) -> None:
    """Two files: the graph, and its numbers in full precision."""
    import openvino as ov

    try:
        ov.save_model(model, folder / XML, compress_to_fp16=False)
    except RuntimeError:  # "basic_ios::clear: iostream error", whatever was wrong: the system says what
        for name in (XML, BIN):
            with (folder / name).open("ab") as file:
                file.write(bytes(2**16))
        raise


def read(folder: Path) -> Any:
    try:
        return _core().read_model(folder / XML)
    except RuntimeError as error:
        raise UserError(
            f"{folder / XML}: OpenVINO cannot read it ({str(error).splitlines()[-1]}); export the model again."
        ) from None


def intermediate(model: Any, images: Tensor) -> dict[str, NDArray[Any]]:
    """What the nodes of the graph give for the images, each under the name that it had in the traced graph."""
    exposed = model.clone()
    last: dict[str, Any] = {}
    for node in exposed.get_ordered_ops():
        if node.get_type_name() not in ("Constant", "Parameter", "Result") and node.get_output_size() == 1:
            last[node.get_friendly_name().partition("/")[0]] = node  # of those that one became, the last
    exposed.add_outputs([node.output(0) for node in last.values()])
    friendly = {node.get_friendly_name(): name for name, node in last.items()}
    producers = [result.input_value(0).get_node().get_friendly_name() for result in exposed.get_results()]
    outputs = _compile(exposed, 1, 1)(images.numpy())
    return {friendly[name]: outputs[number] for number, name in enumerate(producers) if name in friendly}


class OpenVinoEngine(GraphEngine):
    """A model in OpenVINO. It is compiled at the first call."""

    name: str = "openvino"
    max_concurrency = 2  # while the last images of one batch are computed, streams that are done with it begin the next

    def __init__(self, graph: Any, preprocess: Preprocess, precision: Precision, *, path: Path | None = None) -> None:
        if precision == "int8":
            check_int8()
        super().__init__(graph, preprocess, precision, path=path)
        self.threads = torch.get_num_threads()
        self._outputs = {
            name: (number, output.get_partial_shape()[1].get_length())
            for number, output in enumerate(graph.outputs)
            for name in output.names
        }
        self._opened: dict[int, _Streams] = {}
        self._lock = Lock()

    @property
    def classes(self) -> int:
        return self._outputs[LOGITS][1] if LOGITS in self._outputs else 0

    @property
    def batch_size(self) -> int:
        """No stream waits for the last chunk of the others for long."""
        return IMAGES_PER_STREAM * self.threads * 4

    def _compute(self, images: Tensor, outputs: Sequence[str]) -> list[Tensor]:
        numbers, widths = zip(*(self._outputs[output] for output in outputs), strict=True)
        found = [np.empty((len(images), width), dtype=np.float32) for width in widths]
        given = np.ascontiguousarray(images.numpy())
        streams = self._streams(IMAGES_PER_STREAM if len(given) > 1 else 1)
        chunks = [(rows, streams.submit(chunk, numbers)) for rows, chunk in split_chunks(given, IMAGES_PER_STREAM)]
        for rows, future in chunks:
            for values, part in zip(found, future.result(), strict=True):
                values[rows] = part[: rows.stop - rows.start]
        return [torch.from_numpy(values) for values in found]

    def _streams(self, size: int) -> _Streams:
        """For `size` images at once: a stream for each core, and a request that waits; for one image, all cores."""
        with self._lock:
            if size not in self._opened:
                model = self.graph.clone()
                sides = list(model.inputs[0].get_partial_shape())[1:]
                model.reshape([size, *(side.get_length() for side in sides)])
                count = self.threads if size > 1 else 1
                self._opened[size] = _Streams(_compile(model, self.threads, count), count + 1)
            return self._opened[size]


class _Streams:
    """A compiled model that several threads call, so that no stream of it waits for the next images."""

    def __init__(self, compiled: Any, requests: int) -> None:
        self._idle = SimpleQueue[Any]()
        for _ in range(requests):
            self._idle.put(compiled.create_infer_request())
        self._pool = ThreadPoolExecutor(requests, thread_name_prefix="openvino")

    def submit(self, images: NDArray[np.uint8], outputs: Sequence[int]) -> Future[list[NDArray[np.float32]]]:
        return self._pool.submit(self._infer, images, outputs)

    def _infer(self, images: NDArray[np.uint8], outputs: Sequence[int]) -> list[NDArray[np.float32]]:
        request = self._idle.get()
        try:
            request.start_async({0: images})
            request.wait()
            return [request.get_output_tensor(output).data.copy() for output in outputs]
        finally:
            self._idle.put(request)


def check_int8() -> None:
    """Refuse int8 where AMX is announced, cannot be used, and oneDNN may: the first product would end the process."""
    if torch.cpu.get_capabilities().get("amx_int8", False) and amx_allowed() and not amx_works():
        raise UserError(
            f"int8: this machine announces AMX and dies of its instructions, which {INSTRUCTIONS} allows; unset it."
        )


def split_chunks(images: NDArray[np.uint8], chunk: int) -> Iterator[tuple[slice, NDArray[np.uint8]]]:
    """Rows of images (n, ...) and these images, chunk by chunk; the last is padded, unless there is one image only."""
    for start in range(0, len(images), chunk):
        rows = slice(start, min(start + chunk, len(images)))
        missing = start + chunk - rows.stop if len(images) > 1 else 0
        some = images[rows]
        yield rows, np.concatenate([some, np.zeros((missing, *some.shape[1:]), np.uint8)]) if missing else some


def _core() -> Any:
    with _CORE_LOCK:
        return _open_core()


@lru_cache(maxsize=1)
def _open_core() -> Any:
    import openvino as ov

    avoid_broken_amx()
    # The first access to a tensor's data loads OpenVINO's bridge to NumPy. Two threads that do so at once deadlock:
    # one holds Python's lock, the other the C++ library's.
    assert ov.Tensor(np.zeros(1, np.uint8)).data.shape == (1,)
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})  # what was verified is what is computed, whatever becomes of the file
    return core


def _compile(model: Any, threads: int, streams: int) -> Any:
    """The model for this processor, in float32 if it is not quantized: some processors would take bfloat16."""
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT" if streams > 1 else "LATENCY",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return _core().compile_model(model, "CPU", settings)


SEARCH_SECONDS = 600.0  # about how long the search for the operations that cost int8 most of its accuracy may take
MAX_RANKING_IMAGES = 100  # those that int8 changes most; more change the ranking of operations little


def quantize(model: Any, images: Tensor, *, transformer: bool, progress: NamedProgress = Callbacks.progress) -> Any:
    """The model with its large products in int8, by NNCF's post-training quantization.

    images: (n, C, H, W) uint8, from which the ranges of activations are read; transformer: it has attention.
    """
    import nncf

    with quiet_converters():
        return nncf.quantize(
            model, advanced_parameters=_for_this_processor(), **_settings(images, transformer, progress)
        )


def quantize_with_accuracy_control(
    model: Any,
    images: Tensor,
    *,
    transformer: bool,
    control: Tensor,
    labels: Tensor,
    max_drop: float,
    progress: NamedProgress = Callbacks.progress,
) -> Any:
    """The same, with as many operations left in float32 as it takes to lose at most `max_drop` points of accuracy.

    control, labels: images (n, C, H, W) uint8 and their classes (n,), on which accuracy is measured.
    """
    import nncf

    products = sum(op.get_type_name() in ("MatMul", "Convolution", "GroupConvolution") for op in model.get_ops()) or 1
    per_image = _seconds_per_image(model, control[:1])
    search = plan_search(products, len(control), per_image)
    minutes = math.ceil(search.seconds / 60)
    log.info(f"int8: looking for the operations that cost most accuracy, which takes up to {minutes} min.")
    seen, planned = count(1), round(search.seconds / per_image)

    def measure(compiled: Any, items: Iterable[tuple[NDArray[Any], int]]) -> float:
        def counted() -> Iterator[tuple[NDArray[Any], int]]:
            for item in items:
                yield item
                progress("looking for the costliest operations", min(next(seen), planned), planned)

        return measure_accuracy(compiled, counted())

    with quiet_converters():
        return nncf.quantize_with_accuracy_control(
            model,
            validation_dataset=nncf.Dataset(
                [(image[None].numpy(), int(label)) for image, label in zip(control, labels, strict=True)],
                lambda item: item[0],
            ),
            validation_fn=measure,
            max_drop=max_drop / 100,
            drop_type=nncf.DropType.ABSOLUTE,
            advanced_quantization_parameters=_for_this_processor(),
            advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
                max_num_iterations=search.returned, ranking_subset_size=search.ranked
            ),
            **_settings(images, transformer, progress),
        )


class Search(NamedTuple):
    """How thoroughly the costliest operations are looked for."""

    ranked: int  # images by which each operation is ranked
    returned: int  # operations, at most, that are returned to float32, one after the other until it is enough
    seconds: float  # what that takes, at most


def plan_search(operations: int, control: int, seconds: float) -> Search:
    """A search through a number of operations that ends in about `SEARCH_SECONDS`.

    control: images on which accuracy is measured after each step; seconds: per image.
    """
    half = SEARCH_SECONDS / 2 / seconds  # images in half of the time
    ranked = min(MAX_RANKING_IMAGES, max(1, int(half / operations)))
    returned = min(operations, max(1, int(half / control)))
    images = ranked * operations + (returned + 4) * control  # both models see all twice before it begins
    return Search(ranked, returned, images * seconds)


def _seconds_per_image(model: Any, image: Tensor, calls: int = 5) -> float:
    """As NNCF does it: one at a time, with OpenVINO's default settings."""
    import openvino

    compiled, given = openvino.compile_model(model, "CPU"), image.numpy()
    compiled(given)
    start = time.perf_counter()
    for _ in range(calls):
        compiled(given)
    return (time.perf_counter() - start) / calls


def measure_accuracy(compiled: Any, items: Iterable[tuple[NDArray[Any], int]]) -> float:
    """The accuracy of a compiled model on labelled images: on all, or on whichever NNCF chooses."""
    output = compiled.output(LOGITS)
    return float(
        np.mean([int(predicted_class(compiled(image)[output].reshape(-1))) == label for image, label in items])
    )


def _settings(images: Tensor, transformer: bool, progress: NamedProgress) -> dict[str, Any]:
    import nncf

    seen = count(1)

    def as_array(image: Tensor) -> NDArray[Any]:
        progress("calibrating", min(next(seen), len(images)), len(images))
        return image[None].numpy()

    return {
        "calibration_dataset": nncf.Dataset(list(images), as_array),
        "subset_size": len(images),
        "model_type": nncf.ModelType.TRANSFORMER if transformer else None,
    }


def _for_this_processor() -> Any:
    """Half of the range for weights on a processor without VNNI, where products of bytes are summed in 16 bits.

    NNCF by default does so in the first layer only, which is enough for a convolutional network and not for a ViT.
    """
    import nncf

    has = torch.cpu.get_capabilities()
    in_16_bits = has.get("avx2", False) and not any(has.get(name, False) for name in ("avx512_vnni", "avx_vnni"))
    fix = nncf.OverflowFix.ENABLE if in_16_bits else nncf.OverflowFix.FIRST_LAYER
    return nncf.AdvancedQuantizationParameters(overflow_fix=fix)
