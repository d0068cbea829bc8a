"""What a training step takes on each of several GPUs, and so how to divide a training among them.

Counted from the configuration: float32 weights, gradients and AdamW's two moments; activations as autocast to bfloat16
keeps them. Two things can be divided or saved: with `--shard` (FSDP2) each GPU holds its share of weights, gradients
and moments, and whole blocks only while they are computed; with
`activation_checkpointing` a block keeps its input only, and the backward pass computes the rest again, for about a
third more time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.model.cost import count_checkpointed_bytes
from vitreous.model.family import count_activation_bytes, count_forward_bytes, count_parameters

FLOAT, HALF = 4, 2
"""Bytes of a number in float32 and in bfloat16."""
RESERVE = 0.1
"""The share of a GPU's memory that is left for CUDA itself and for gaps between tensors."""
ENOUGH = 32
"""Images per GPU with which it is well used, about."""


@dataclass(frozen=True)
class Parallelism:
    """A way to divide a training among GPUs."""

    shard: bool = False
    activation_checkpointing: bool = False

    def __str__(self) -> str:
        return ("shard" if self.shard else "DDP") + (
            ", activation_checkpointing" if self.activation_checkpointing else ""
        )


WAYS = tuple(
    Parallelism(shard, activation_checkpointing)
    for activation_checkpointing in (False, True)
    for shard in (False, True)
)
"""From the fastest on, as a rule: what sharding sends can pass while something is computed, computing twice cannot."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes on each GPU in a training step."""

    weights: float
    gradients: float
    optimizer: float
    copies: float
    """What is there besides for a while: weights in bfloat16, and with `--shard` whole blocks and their gradients."""
    activations: float
    """Of one image, this and the next two: what the forward pass keeps for the backward pass."""
    passing: float
    """What passes through the widest layer meanwhile."""
    pixels: float

    @property
    def image(self) -> float:
        """All that one more image takes."""
        return self.activations + self.passing + self.pixels

    @property
    def fixed(self) -> float:
        """Whatever the batch."""
        return self.weights + self.gradients + self.optimizer + self.copies

    def total(self, batch: int) -> float:
        """With so many images at once."""
        return self.fixed + batch * self.image

    def largest_batch(self, memory: float) -> int:
        """How many images at once fit into so many bytes, the reserve taken off; 0 if not even one does."""
        return max(0, math.floor(((1 - RESERVE) * memory - self.fixed) / self.image))


def step_memory(
    config: ModelConfig, way: Parallelism, gpus: int, *, mixed: bool = True, in_parts: bool = False
) -> StepMemory | None:
    """What a step takes on each of so many GPUs; None where a network has no blocks to activation_checkpointing.

    mixed: matrix products in bfloat16 (autocast), as on a GPU; else all in float32.
    in_parts: the images of a step are gone through in several parts (`accumulate`).
    """
    sizes = _Sizes(config, mixed)
    if way.activation_checkpointing and not isinstance(config, ViTConfig):
        return None
    share = gpus if way.shard else 1
    weights = gradients = FLOAT * sizes.parameters / share
    if way.shard and in_parts:  # they are divided after the last part only
        gradients += FLOAT * sizes.parameters
    copies = float(HALF * sizes.parameters if mixed else 0)
    if way.shard:  # what is not in a block stays; of the blocks, one is computed and the next fetched
        blocks, rest = sizes.block_parameters, sizes.parameters - sizes.blocks * sizes.block_parameters
        copies = FLOAT * (rest + 2 * blocks) + FLOAT * max(rest, blocks) + (HALF * (rest + blocks) if mixed else 0)
    kept = sizes.recomputed if way.activation_checkpointing else sizes.activations
    return StepMemory(weights, gradients, 2 * weights, copies, kept, sizes.passing, sizes.pixels)


@dataclass(frozen=True)
class _Sizes:
    """Of a network and one image."""

    config: ModelConfig
    mixed: bool

    @cached_property
    def parameters(self) -> int:
        return count_parameters(self.config)

    @property
    def blocks(self) -> int:
        return self.config.depth if isinstance(self.config, ViTConfig) else 1

    @cached_property
    def block_parameters(self) -> int:
        if not isinstance(self.config, ViTConfig):
            return self.parameters
        return count_parameters(_deeper(self.config)) - self.parameters

    @cached_property
    def activations(self) -> float:
        """Bytes that are kept for the backward pass."""
        return self._kept(self.config)

    @cached_property
    def recomputed(self) -> float:
        """The same where each block keeps its input only, with the one block that is being computed again."""
        assert isinstance(self.config, ViTConfig)
        plain = replace(self.config, merge=0)  # a first block has all tokens
        # What passes from block to block is in float32; this counts patches so too, which autocast keeps in bfloat16.
        return count_checkpointed_bytes(self.config) + self._kept(_deeper(plain)) - self._kept(plain)

    @property
    def passing(self) -> float:
        """Bytes of the gradients that pass through the widest layer."""
        return count_forward_bytes(self.config) * (HALF / FLOAT if self.mixed else 1)

    @property
    def pixels(self) -> int:
        return FLOAT * self.config.channels * math.prod(self.config.image_size)

    def _kept(self, config: ModelConfig) -> float:
        whole = count_activation_bytes(config)
        if not self.mixed:
            return whole
        # Each of a block's two norms keeps its input, the residual stream, in float32; all else is in bfloat16.
        in_full = 2 * config.depth * FLOAT * _stream(config) if isinstance(config, ViTConfig) else 0
        return (whole + in_full) * HALF / FLOAT


def _deeper(config: ViTConfig) -> ViTConfig:
    """The network with one block more, which tells what a block takes."""
    return replace(config, depth=config.depth + 1)


def _stream(config: ViTConfig) -> int:
    """Numbers of one image that pass from block to block."""
    return (config.prefix + config.patches) * config.width


@dataclass(frozen=True)
class GpuPlan:
    """Whether a model can be trained on these GPUs, and how."""

    gpus: int
    memory: int
    """Bytes of each."""
    weights: int
    """Bytes of the whole model; gradients take as many again, and AdamW's moments twice as many."""
    image: int
    """Bytes of one image's activations, in mixed precision."""
    image_recomputed: int | None
    """The same where blocks are computed again; None for a network that has no blocks."""
    largest_batch: dict[str, int]
    """Of each way, images per GPU at once, at most: of a whole step, or of a part where a step needs several."""
    choice: str | None
    """Which way to take; None if not even one image fits."""
    accumulate: int
    """In how many parts each GPU then goes through its images of a step."""


def fit_on(config: ModelConfig, gpus: int, memory: int, batch_size: int | None = None) -> GpuPlan:
    """What fits on so many GPUs with so many bytes each.

    batch_size: of all GPUs together; None for as many as fit.
    """
    plain = step_memory(config, Parallelism(), gpus)
    saving = step_memory(config, Parallelism(activation_checkpointing=True), gpus)
    assert plain is not None
    wanted = ENOUGH if batch_size is None else math.ceil(batch_size / gpus)
    largest = {}
    for way in WAYS:
        whole, part = (step_memory(config, way, gpus, in_parts=in_parts) for in_parts in (False, True))
        if whole is None or part is None:
            continue
        at_once = whole.largest_batch(memory)
        largest[way] = at_once if batch_size is None or at_once >= wanted else part.largest_batch(memory)
    # Taking a step in several parts costs less than computing blocks twice, as long as a part keeps a GPU busy.
    enough = [way for way, most in largest.items() if most >= min(wanted, ENOUGH)]
    chosen = enough[0] if enough else max(largest, key=largest.__getitem__)
    most = largest[chosen]
    return GpuPlan(
        gpus=gpus,
        memory=memory,
        weights=FLOAT * count_parameters(config),
        image=round(plain.image),
        image_recomputed=None if saving is None else round(saving.image),
        largest_batch={str(way): most for way, most in largest.items()},
        choice=str(chosen) if most else None,
        accumulate=math.ceil(wanted / most) if most and batch_size is not None else 1,
    )
