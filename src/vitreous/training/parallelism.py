"""The memory of a training step on each of several GPUs, and so how to divide a training among them.

Counted from the configuration: float32 weights, gradients and AdamW's two moments; activations as autocast to bfloat16
keeps them. Two things save memory: with `--fsdp` (FSDP2) each GPU holds an equal part of weights, gradients and
moments, and whole blocks only while they are computed; with `activation_checkpointing` a block keeps only its input,
and the backward pass computes the rest again, which takes about a third more time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.model.family import count_activation_bytes, count_forward_bytes, count_parameters
from vitreous.model.vit_cost import count_checkpointed_bytes

FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2
RESERVED_FRACTION = 0.1  # of a GPU's memory, for CUDA itself and for gaps between tensors
EFFICIENT_BATCH = 32  # images per GPU with which it is well used, about


@dataclass(frozen=True)
class Parallelism:
    """How a training is divided among GPUs, and whether it saves activations."""

    shard: bool = False
    activation_checkpointing: bool = False

    def __str__(self) -> str:
        checkpointing = ", activation_checkpointing" if self.activation_checkpointing else ""
        return ("shard" if self.shard else "DDP") + checkpointing


PARALLELISMS = tuple(Parallelism(shard, checkpointing) for checkpointing in (False, True) for shard in (False, True))
"""The fastest first, as a rule: communication overlaps with computation, and computing twice cannot."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes on each GPU in a training step."""

    weights: float
    gradients: float
    optimizer: float
    temporary: float  # weights in bfloat16, and with `--fsdp` whole blocks and their gradients
    activations: float  # per image, like the next two: what the forward pass keeps for the backward pass
    gradient_flow: float  # gradients of activations at the widest layer
    pixels: float

    @property
    def image(self) -> float:
        return self.activations + self.gradient_flow + self.pixels

    @property
    def fixed(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.temporary

    def total(self, batch: int) -> float:
        return self.fixed + batch * self.image

    def largest_batch(self, memory: float) -> int:
        """How many images at once fit into a memory of this many bytes; 0 if not even one does."""
        return max(0, math.floor(((1 - RESERVED_FRACTION) * memory - self.fixed) / self.image))


def step_memory(
    config: ModelConfig, parallelism: Parallelism, gpus: int, *, mixed: bool = True, accumulates: bool = False
) -> StepMemory | None:
    """The memory of a step on each GPU; None for activation checkpointing of a network without blocks. mixed: matrix
    products in bfloat16 (autocast), as on a GPU; else all in float32. accumulates: the images of a step are processed
    in several parts (`micro_batch`)."""
    if parallelism.activation_checkpointing and not isinstance(config, ViTConfig):
        return None
    parameters = count_parameters(config)
    half = BFLOAT16_BYTES if mixed else 0
    weights = gradients = FLOAT32_BYTES * parameters / (gpus if parallelism.shard else 1)
    temporary: float = half * parameters
    if parallelism.shard:  # the rest stays gathered; one block is computed while the next is fetched
        block = block_parameters(config)
        rest = parameters - block * (config.depth if isinstance(config, ViTConfig) else 1)
        temporary = FLOAT32_BYTES * (rest + 2 * block) + FLOAT32_BYTES * max(rest, block) + half * (rest + block)
        if accumulates:  # gradients are divided only after the last part
            gradients += FLOAT32_BYTES * parameters
    checkpointing = parallelism.activation_checkpointing
    return StepMemory(
        weights,
        gradients,
        2 * weights,
        temporary,
        activations=checkpointed_bytes(config, mixed) if checkpointing else activation_bytes(config, mixed),
        gradient_flow=count_forward_bytes(config) * (BFLOAT16_BYTES / FLOAT32_BYTES if mixed else 1),
        pixels=FLOAT32_BYTES * config.channels * math.prod(config.image_size),
    )


def block_parameters(config: ModelConfig) -> int:
    """Parameters of one block; of a network without blocks, all."""
    parameters = count_parameters(config)
    return count_parameters(_deeper(config)) - parameters if isinstance(config, ViTConfig) else parameters


def activation_bytes(config: ModelConfig, mixed: bool) -> float:
    in_float32 = count_activation_bytes(config)
    if not mixed:
        return in_float32
    residual = 0  # each of a block's two norms keeps its input, the residual stream, in float32; all else is bfloat16
    if isinstance(config, ViTConfig):
        residual = 2 * config.depth * FLOAT32_BYTES * (config.prefix + config.patches) * config.width
    return (in_float32 + residual) * BFLOAT16_BYTES / FLOAT32_BYTES


def checkpointed_bytes(config: ModelConfig, mixed: bool) -> float:
    """The same if each block keeps only its input, plus the one block that is being computed again."""
    assert isinstance(config, ViTConfig)
    plain = replace(config, merge=0)  # a first block has all tokens
    # Inputs of blocks are in float32; this counts patches so too, which autocast keeps in bfloat16.
    block = activation_bytes(_deeper(plain), mixed) - activation_bytes(plain, mixed)
    return count_checkpointed_bytes(config) + block


def _deeper(config: ViTConfig) -> ViTConfig:
    """The network with one block more: the difference is what a block takes."""
    return replace(config, depth=config.depth + 1)


@dataclass(frozen=True)
class GpuPlan:
    """Whether a model can be trained on these GPUs, and how."""

    gpus: int
    memory: int  # bytes of each
    weights: int  # bytes of the whole model; gradients take as many again, and AdamW's moments twice as many
    image: int  # bytes of one image's activations, in mixed precision
    image_checkpointed: int | None  # the same with activation checkpointing; None for a network without blocks
    largest_batch: dict[str, int]
    """By parallelism, how many images per GPU fit at once: of a whole step, or of a part if a step needs several."""
    choice: str | None  # the parallelism to take; None if not even one image fits
    micro_batch: int | None  # images that each GPU then processes at once; None: all of a step


def fit_on_gpus(config: ModelConfig, gpus: int, memory: int, batch_size: int | None = None) -> GpuPlan:
    """How a model can be trained on GPUs with this many bytes each. batch_size: of all GPUs together; None for as many
    images as fit."""
    plain = step_memory(config, Parallelism(), gpus)
    checkpointed = step_memory(config, Parallelism(activation_checkpointing=True), gpus)
    assert plain is not None
    wanted = EFFICIENT_BATCH if batch_size is None else math.ceil(batch_size / gpus)
    largest = {}
    for one in PARALLELISMS:
        whole, part = (step_memory(config, one, gpus, accumulates=accumulates) for accumulates in (False, True))
        if whole is not None and part is not None:
            at_once = whole.largest_batch(memory)
            largest[one] = at_once if batch_size is None or at_once >= wanted else part.largest_batch(memory)
    # Accumulating costs less than computing blocks twice, as long as a part keeps a GPU busy.
    efficient = [one for one, batch in largest.items() if batch >= min(wanted, EFFICIENT_BATCH)]
    chosen = efficient[0] if efficient else max(largest, key=largest.__getitem__)
    batch = largest[chosen]
    return GpuPlan(
        gpus=gpus,
        memory=memory,
        weights=FLOAT32_BYTES * count_parameters(config),
        image=round(plain.image),
        image_checkpointed=None if checkpointed is None else round(checkpointed.image),
        largest_batch={str(one): batch for one, batch in largest.items()},
        choice=str(chosen) if batch else None,
        micro_batch=batch if batch_size is not None and 0 < batch < wanted else None,
    )
