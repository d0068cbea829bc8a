"""An OpenVINO model in int8, by NNCF: all large products, or with the operations that cost most accuracy in float32.

Whatever is imported from openvino and nncf is imported when it is needed: they are an extra.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.inference.graph import LOGITS, quiet_converters

log = logging.getLogger("vitreous")

SEARCH_SECONDS = 600.0
"""About how long the search for the operations that cost int8 most of its accuracy may take."""
MAX_RANKING_IMAGES = 100
"""Those that int8 changes most; more change the ranking of operations little."""


def quantize(model: Any, images: Tensor, *, transformer: bool) -> Any:
    """The model with its large products in int8, by NNCF's post-training quantization.

    images: (n, C, H, W) uint8, from which the ranges of activations are read; transformer: it has attention.
    """
    import nncf

    with quiet_converters():
        return nncf.quantize(
            model,
            _dataset(images),
            advanced_parameters=_for_this_processor(),
            **_settings(images, transformer),
        )


def quantize_with_accuracy_control(
    model: Any, images: Tensor, *, transformer: bool, control: Tensor, labels: Tensor, max_drop: float
) -> Any:
    """The same, with as many operations left in float32 as it takes to lose at most `max_drop` points of accuracy.

    control, labels: images (n, C, H, W) uint8 and their classes (n,), on which accuracy is measured.
    """
    import nncf

    search = plan_search(_count_products(model), len(control), _seconds_per_image(model, control[:1]))
    minutes = math.ceil(search.seconds / 60)
    log.info(f"int8: looking for the operations that cost most accuracy, which takes up to {minutes} min.")
    with quiet_converters():
        return nncf.quantize_with_accuracy_control(
            model,
            calibration_dataset=_dataset(images),
            validation_dataset=nncf.Dataset(
                [(image[None].numpy(), int(label)) for image, label in zip(control, labels, strict=True)],
                lambda item: item[0],
            ),
            validation_fn=measure_accuracy,
            max_drop=max_drop / 100,
            drop_type=nncf.DropType.ABSOLUTE,
            advanced_quantization_parameters=_for_this_processor(),
            advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
                max_num_iterations=search.returned, ranking_subset_size=search.ranked
            ),
            **_settings(images, transformer),
        )


class Search(NamedTuple):
    """How thoroughly the costliest operations are looked for."""

    ranked: int
    """Images by which each operation is ranked."""
    returned: int
    """Operations, at most, that are returned to float32, one after the other until it is enough."""
    seconds: float
    """What that takes, at most."""


def plan_search(operations: int, control: int, seconds: float) -> Search:
    """A search through a number of operations that ends in about `SEARCH_SECONDS`.

    control: images on which accuracy is measured after each step; seconds: per image.
    """
    half = SEARCH_SECONDS / 2 / seconds  # images in half of the time
    ranked = min(MAX_RANKING_IMAGES, max(1, int(half / operations)))
    returned = min(operations, max(1, int(half / control)))
    images = ranked * operations + (returned + 4) * control  # both models see all twice before it begins
    return Search(ranked, returned, images * seconds)


def _count_products(model: Any) -> int:
    return sum(op.get_type_name() in ("MatMul", "Convolution", "GroupConvolution") for op in model.get_ops()) or 1


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
    return float(np.mean([int(compiled(image)[output].argmax()) == label for image, label in items]))


def _dataset(images: Tensor) -> Any:
    import nncf

    return nncf.Dataset([image[None].numpy() for image in images])


def _settings(images: Tensor, transformer: bool) -> dict[str, Any]:
    import nncf

    return {"subset_size": len(images), "model_type": nncf.ModelType.TRANSFORMER if transformer else None}


def _for_this_processor() -> Any:
    """Half of the range for weights on a processor without VNNI, where products of bytes are summed in 16 bits.

    NNCF by default does so in the first layer only, which is enough for a convolutional network and not for a ViT.
    """
    import nncf

    has = torch.cpu.get_capabilities()
    in_16_bits = has.get("avx2", False) and not any(has.get(name, False) for name in ("avx512_vnni", "avx_vnni"))
    fix = nncf.OverflowFix.ENABLE if in_16_bits else nncf.OverflowFix.FIRST_LAYER
    return nncf.AdvancedQuantizationParameters(overflow_fix=fix)
