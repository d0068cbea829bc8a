"""How a model is trained: everything that a run needs to be repeated, and nothing about the machine it runs on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from vitreous.arguments import Count, NonNegative, Positive, PositiveFraction, Range, Rate, Seed, check_fields
from vitreous.config.data import Augment, Preprocess
from vitreous.config.model import ModelConfig
from vitreous.config.objective import ObjectiveConfig, Supervised
from vitreous.errors import UserError

OptimizerName = Literal["adamw", "sgd", "muon"]
Decay = Literal["cosine", "linear", "steps", "constant"]


@dataclass(frozen=True)
class Optimizer:
    """Which steps are taken. Biases, norms, tokens and positions are never decayed."""

    name: OptimizerName = "adamw"  # muon: Muon for the matrices of the blocks, AdamW for the rest
    learning_rate: Positive = 1e-3  # at its peak; with muon, of what AdamW takes
    muon_learning_rate: Positive = 0.02
    weight_decay: NonNegative = 0.05
    weight_decay_end: NonNegative | None = None
    """Where the weight decay goes to, along half a cosine; None: it stays."""
    muon_weight_decay: NonNegative | None = None  # of what Muon takes, constant; None: as of the rest
    momentum: float = 0.9  # of SGD
    betas: tuple[Rate, Rate] = (0.9, 0.999)  # of AdamW: decay of the means of gradients and of their squares
    layer_decay: PositiveFraction = 1.0  # each block learns this much slower than the block after it
    clip: Positive | None = 1.0  # gradients are scaled down to at most this norm
    warmup: Rate = 0.05  # share of the steps in which the learning rate rises from 0
    decay: Decay = "cosine"
    """How the learning rate then falls: to 0, or in steps, each to a tenth."""
    decay_at: tuple[float, ...] = (0.3, 0.6, 0.9)
    """Shares of the training after which a learning rate that falls in steps does: BiT's."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Training:
    """One complete training."""

    model: ModelConfig
    preprocess: Preprocess
    objective: ObjectiveConfig = field(default_factory=Supervised)
    augment: Augment = field(default_factory=Augment)
    optimizer: Optimizer = field(default_factory=Optimizer)

    epochs: Annotated[float, Range(0, lt=1e9)] = (
        10  # 0 only where a budget leaves no time for steps after a classifier on frozen features
    )
    batch_size: Count = 64
    micro_batch: Count | None = None
    """Images that a process works through at once, to save memory: the gradient of a batch is added up from parts of at
    most this size; None: all its images of a batch."""
    activation_checkpointing: bool = False
    """Save memory by computing the activations of each block once more on the way back (activation checkpointing)."""
    ema: Annotated[float, Range(gt=0, lt=1)] | None = (
        None  # also keep an exponential average of the weights, and use that in the end
    )
    wise_ft_alpha: PositiveFraction = 1.0
    """Where the result lies on the way from the weights at the start (0) to the trained ones (1). Half-way between good
    weights and what few images taught is often better than both (WiSE-FT, Wortsman et al. 2022). Not with lora."""

    whiten: bool = False  # from scratch: start with a patch projection that makes the pixels of a patch uncorrelated
    probe: bool = False
    """First fit the classifier to features of the frozen model, by L-BFGS; then train all from there."""
    freeze: int = 0  # how many of the first layers stay as they are, and with them the embedding
    lora: Annotated[int, Range(0)] = 0
    """Rank of a low-rank change (LoRA), of a ViT's q, k and v, learned instead of the layers' weights; 0 for none."""

    validation: Rate = 0.1
    """Share of the training images set aside to find the best weights, where the data have no validation split; 0 for
    none: then the last weights are kept."""
    split_seed: Seed | None = None
    """Seed by which those are chosen; None: the training's own. Trainings with one split_seed have one val split."""
    share: PositiveFraction = 1.0
    """Share of the training images that is trained on, of each class alike; the seed chooses which. With one seed, a
    smaller share is part of every larger one."""
    evaluations: Count = 10  # how often the validation split is looked at; the best is kept
    seed: Seed = 0
    compile: bool = False
    save_seconds: NonNegative = 60.0
    """How often a checkpoint is saved. It changes no result, only how much an interruption can cost."""

    def __post_init__(self) -> None:
        check_fields(self)
        joined = self.objective.whole_batch
        if joined is not None and self.micro_batch is not None and self.micro_batch < self.batch_size:
            raise UserError(
                f"micro_batch={self.micro_batch}: {joined} compares the images of a batch with each other, so a batch "
                f"cannot be worked through in parts; set a smaller batch_size instead, or {joined}=0."
            )
        if self.activation_checkpointing and not self.model.can_checkpoint:
            raise UserError(
                "activation_checkpointing=true: works with Vision Transformers that merge no tokens; set it to false."
            )
        if self.augment.mixtoken and not self.model.has_patches:
            raise UserError(
                f"mixtoken={self.augment.mixtoken}: exchanges patches of two images, and a network of the family "
                f"{self.model.family!r} has none; set cutmix instead."
            )
        if not 0 <= self.freeze <= self.model.layers:
            raise UserError(f"freeze={self.freeze}: the model has {self.model.layers} layers.")
        if self.preprocess.size != self.model.image_size or self.preprocess.channels != self.model.channels:
            raise UserError(
                f"preprocess.size={self.preprocess.size}, {self.preprocess.channels} channels: must be the model's, "
                f"{self.model.image_size}, {self.model.channels}."
            )
