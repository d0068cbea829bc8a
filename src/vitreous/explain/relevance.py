"""What a prediction rests on: gradient-weighted relevance of attention, and Grad-CAM on tokens or on a feature map.

All follow the gradient of the class's log-odds, so all need a backward pass, but only down to the lowest layer that
they use: the layers below run as in a prediction. Letters in shapes: B images, h heads, T tokens, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from vitreous.explain.attention import as_grid
from vitreous.model.network import HasFeatureMap, TracesAttention
from vitreous.model.predictions import predicted_class
from vitreous.model.trace import Trace


def log_odds(logits: Tensor, targets: Tensor) -> Tensor:
    """(B,) log-odds of each image's target class, log(p / (1 - p)), of logits (B, K).

    Its gradient is that of the class's logit against those of the others, weighted by their probabilities: what all
    classes have in common cancels. Unlike that of log p, it does not vanish where the model is confident.
    """
    own = logits.gather(1, targets[:, None])
    if logits.shape[1] == 1:
        return own[:, 0]
    rivals = logits.scatter(1, targets[:, None], float("-inf"))
    return own[:, 0] - rivals.logsumexp(dim=1)


@torch.inference_mode(False)  # a caller in that mode has gradients all the same
def relevance_maps(
    model: TracesAttention, images: Tensor, targets: Tensor | None, *, layers: Sequence[int]
) -> tuple[dict[int, Tensor], Tensor]:
    """({layer: (B, 1, rows, columns)}, logits (B, K)): gradient-weighted relevance from each layer on.

    As in Chefer, Gur and Wolf, "Generic Attention-model Explainability": each layer's attention A with its gradient G
    propagates relevance by I + mean over heads of max(0, G * A). Only the row of the tokens that the prediction is read
    from is wanted, so it is multiplied from the last layer down during the backward pass: no two layers' gradients are
    held at once.
    targets: (B,) the classes to explain; None for the most probable.
    """
    trace = _Relevance(min(layers), model.config.depth)
    images, targets = _recordable(images), None if targets is None else _recordable(targets)
    try:
        logits, leaf = _forward(model, images, trace)
        start = trace.begin(model)
        torch.autograd.grad(_total_log_odds(logits, targets), leaf)
    finally:
        trace.release()
    maps = {layer: (trace.rows[layer] - start)[:, None, trace.prefix :] for layer in layers}
    return {layer: as_grid(row, trace.grid) for layer, row in maps.items()}, logits.detach()


@torch.inference_mode(False)  # a caller in that mode has gradients all the same
def gradcam_maps(
    model: TracesAttention, images: Tensor, targets: Tensor | None, *, layers: Sequence[int]
) -> tuple[dict[int, Tensor], Tensor]:
    """({layer: (B, 1, rows, columns)}, logits (B, K)): Grad-CAM on the patch tokens that enter each layer.

    max(0, sum over channels of gradient * token), each patch with its own gradient, as in HiResCAM. Grad-CAM's mean of
    the gradients over all patches suits convolutions, whose channels mean the same everywhere; it fails on tokens.
    """
    images, targets = _recordable(images), None if targets is None else _recordable(targets)
    trace = _Graph([layer - 1 for layer in layers if layer], min(layers), attention=False)
    logits, _ = _forward(model, images, trace)
    assert trace.embedded is not None
    entering = [trace.tokens[layer - 1] if layer else trace.embedded for layer in layers]
    gradients = torch.autograd.grad(_total_log_odds(logits, targets), entering)
    maps = {}
    for layer, tokens, gradient in zip(layers, entering, gradients, strict=True):
        found = (gradient * tokens.detach()).sum(dim=2).clamp(min=0)
        maps[layer] = as_grid(found[:, None, trace.prefix :], trace.grid)
    return maps, logits.detach()


@torch.inference_mode(False)  # a caller in that mode has gradients all the same
def feature_map_gradcam(model: HasFeatureMap, images: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
    """((B, h, w), logits (B, K)): Grad-CAM on the last feature map, as Selvaraju et al. have it.

    max(0, sum over channels of weight * channel), where a channel's weight is the mean over all places of the gradient
    of the log-odds with respect to it. targets: (B,) the classes to explain; None for the most probable.
    """
    images, targets = _recordable(images), None if targets is None else _recordable(targets)
    with torch.no_grad():
        features = model.feature_map(images)
    with torch.enable_grad():
        leaf = features.detach().requires_grad_()
        logits = model.classify(leaf)
        (gradient,) = torch.autograd.grad(_total_log_odds(logits, targets), leaf)
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    return (weights * features).sum(dim=1).clamp(min=0), logits.detach()


class _Graph(Trace):
    """Starts the autograd graph at the tokens that enter layer `first_layer`."""

    def __init__(self, layers: Sequence[int], first_layer: int, *, attention: bool) -> None:
        super().__init__(layers, attention=attention)
        self.first_layer = first_layer
        self.leaf: Tensor | None = None

    def record_tokens(self, layer: int, tokens: Tensor) -> None:
        if layer == self.first_layer - 1:
            torch.set_grad_enabled(True)  # the no_grad of `_forward` sets it back
            self.leaf = tokens.requires_grad_()
        super().record_tokens(layer, tokens)


class _Relevance(_Graph):
    """Keeps the relevance (B, T) of all tokens from each layer on, as the backward pass reaches it."""

    def __init__(self, first_layer: int, depth: int) -> None:
        super().__init__(range(max(first_layer - 1, 0), depth), first_layer, attention=True)
        self.depth = depth
        self.rows: dict[int, Tensor] = {}
        self.hooks: list[RemovableHandle] = []

    def explicit(self, layer: int) -> bool:
        return layer >= self.first_layer  # the one below is only where the graph starts

    def record_attention(self, layer: int, attention: Tensor) -> None:
        self._watch(attention, partial(self._carry, layer, attention.detach()))

    def _watch(self, tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
        self.hooks.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Let go of the graph: its hooks hold this trace, which holds the graph, where no collector can see it."""
        for hook in self.hooks:
            hook.remove()

    def begin(self, model: TracesAttention) -> Tensor:
        """Set the row of the tokens that the prediction is read from, before the backward pass; return it.

        It is no relevance yet: with mean pooling, every patch has its part in the mean. The learned query of attention
        pooling is no token, so what it reads is relevance already.
        """
        assert self.embedded is not None
        row = self.embedded.new_zeros(self.embedded.shape[:2])
        config = model.config
        if config.pool.startswith("class"):
            row[:, : 1 + int(config.distilled)] = 1 / (1 + int(config.distilled))
        if config.pool.endswith("mean"):
            row[:, self.prefix :] = 1 / (row.shape[1] - self.prefix)
        if self.pool_attention is not None:
            self._watch(self.pool_attention, partial(self._read, self.pool_attention.detach()))
        self.rows[self.depth] = row
        return row

    def _read(self, attention: Tensor, gradient: Tensor) -> None:
        row = self.rows[self.depth].clone()
        row[:, -attention.shape[3] :] = (gradient * attention).clamp(min=0).mean(dim=1)[:, 0]
        self.rows[self.depth] = row

    def _carry(self, layer: int, attention: Tensor, gradient: Tensor) -> None:
        above = self.rows[layer + 1]
        weighted = (gradient * attention).clamp(min=0).mean(dim=1)
        self.rows[layer] = above + (above[:, None] @ weighted)[:, 0]


def _recordable(tensor: Tensor) -> Tensor:
    """The same numbers, as autograd can record them even if they were made in inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor


def _forward(model: TracesAttention, images: Tensor, trace: _Graph) -> tuple[Tensor, Tensor]:
    """The logits (B, K), with a graph from layer `trace.first_layer` on, and the leaf that it starts from."""
    if trace.first_layer > 0:
        with torch.no_grad():
            logits: Tensor = model(images, trace=trace)
        assert trace.leaf is not None
        return logits, trace.leaf
    with torch.enable_grad():
        leaf = images.detach().requires_grad_()
        return model(leaf, trace=trace), leaf


def _total_log_odds(logits: Tensor, targets: Tensor | None) -> Tensor:
    """The sum over images: its gradient with respect to an image's tokens is that of the image's own log-odds."""
    with torch.enable_grad():
        return log_odds(logits, predicted_class(logits) if targets is None else targets).sum()
