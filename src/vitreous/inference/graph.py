"""A network as one graph that other runtimes can compute: uint8 images in, all outputs of an engine out.

B images, C channels, H x W pixels, K classes, D numbers of a representation.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, Node

from vitreous.config.data import Preprocess
from vitreous.data.augment import scale_and_shift
from vitreous.inference.engine import LOGITS, REPRESENTATION
from vitreous.model.network import Network, evaluating
from vitreous.model.predictions import class_probabilities

INPUT = "images"
MAX_BATCH_SIZE = 4096  # A dynamic shape needs an upper bound
NOISY_LOGGERS = ("nncf", "torch.onnx", "onnxscript", "onnx_ir")


def output_names(network: Network) -> tuple[str, ...]:
    """The outputs of the graph, in this order; a network without a classifier has only its representation."""
    return ("probabilities", LOGITS, REPRESENTATION) if network.config.classes else (REPRESENTATION,)


class InferenceGraph(nn.Module):
    """A network between its normalisation and its softmax."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: Network, preprocess: Preprocess) -> None:
        super().__init__()
        self.network = network
        scale, shift = scale_and_shift(preprocess)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images (B, C, H, W) uint8 to what `output_names` says: (B, K), (B, K), (B, D) float32, or the last alone.

        The network is called twice; `trace_graph` has what both calls share computed once.
        """
        normalised = images.float() * self.scale + self.shift
        representation = self.network.representation(normalised)
        if not self.network.config.classes:
            return (representation,)
        logits = self.network(normalised)
        return class_probabilities(logits), logits, representation


def trace_graph(network: Network, preprocess: Preprocess) -> ExportedProgram:
    """The network's graph for images of the preprocessing's size, any number at once, with positions resized to it.

    It shares the network's weights.
    """
    height, width = preprocess.size
    images = torch.zeros(2, preprocess.channels, height, width, dtype=torch.uint8)
    batch = Dim("batch", min=1, max=MAX_BATCH_SIZE)
    with evaluating(network), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own parts
        graph = InferenceGraph(network, preprocess).eval()
        traced = torch.export.export(graph, (images,), dynamic_shapes=({0: batch},))
        split_qkv(traced.graph)
        # replaces operations in place, leaves all others whole, and gives nodes the names that they keep in a runtime
        program: ExportedProgram = traced.run_decompositions({})
    view_to_reshape(program.graph)
    eliminate_common_subexpressions(program.graph)
    return program


def view_to_reshape(graph: Graph) -> None:
    """Let every view be a copy if need be: the strides of the traced tensors bind no other runtime."""
    for node in graph.nodes:
        if node.target == torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


def eliminate_common_subexpressions(graph: Graph) -> None:
    """Of nodes that compute the same from the same, keep the first. No operation may be in place."""
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def split_qkv(graph: Graph) -> None:
    """Compute queries, keys and values, or other equal chunks of one linear layer's output, by a layer each.

    Runtimes then need not copy the chunks: in OpenVINO that is 3 % of a ViT-Ti/16's time, in int8 7 %.
    """
    for node in list(graph.nodes):
        if node.target != torch.ops.aten.linear.default or len(node.users) != 1:
            continue
        (cut,) = node.users
        if cut.target != torch.ops.aten.chunk.default or any(part.target is not getitem for part in cut.users):
            continue
        (x, *factors), shape = node.args, node.meta["val"].shape
        if len(cut.args) != 3 or cut.args[2] not in (-1, len(shape) - 1) or shape[-1] % cut.args[1] or None in factors:
            continue
        width = shape[-1] // cut.args[1]
        for part in list(cut.users):
            rows = slice(part.args[1] * width, (part.args[1] + 1) * width)
            with graph.inserting_before(node):
                product = graph.call_function(node.target, (x, *(_rows_of(graph, one, rows) for one in factors)))
            product.meta = {**node.meta, "val": part.meta["val"]}
            part.replace_all_uses_with(product)
            graph.erase_node(part)
        graph.erase_node(cut)
        graph.erase_node(node)


def _rows_of(graph: Graph, factor: Node, rows: slice) -> Node:
    """Some rows of a weight or bias: a constant, which is sliced once and for all."""
    found = graph.call_function(torch.ops.aten.slice.Tensor, (factor, 0, rows.start, rows.stop))
    found.meta["val"] = factor.meta["val"][rows]
    return found


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(one) for one in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(one)) for name, one in sorted(value.items()))
    return (type(value), value)  # 1, 1.0 and True are equal, but not the same argument


@contextmanager
def quiet_converters() -> Iterator[None]:
    """Within, nothing is printed, warned of or logged by NNCF, ONNX and the like."""
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
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
