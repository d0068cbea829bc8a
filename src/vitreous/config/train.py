"""How a model is trained: everything that a run needs to be repeated, and nothing about the machine it runs on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from vitreous.arguments import Range, Seed, check_fields
from vitreous.config.data import Augment, Preprocess
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.config.objective import ObjectiveConfig, Supervised
from vitreous.errors import UserError

OptimizerName = Literal["adamw", "sgd", "muon"]
Decay = Literal["cosine", "linear", "steps", "constant"]


@dataclass(frozen=True)
class Optimizer:
    """Which steps are taken. Biases, norms, tokens and positions are never decayed."""

    name: OptimizerName = "adamw"  # muon: Muon for the matrices of the blocks, AdamW for the rest
    learning_rate: float = 1e-3  # at its peak; with muon, of what AdamW takes
    muon_learning_rate: float = 0.02
    weight_decay: Annotated[float, Range(0)] = 0.05
    weight_decay_end: Annotated[float, Range(0)] | None = None
    """Where the weight decay goes to, along half a cosine; None: it stays."""
    momentum: float = 0.9  # of SGD
    layer_decay: float = 1.0  # each block learns this much slower than the block after it
    clip: float | None = 1.0  # gradients are scaled down to at most this norm
    warmup: float = 0.05  # share of the steps in which the learning rate rises from 0
    decay: Decay = "cosine"
    """How the learning rate then falls: to 0, or in steps, each to a tenth."""
    decay_at: tuple[float, ...] = (0.3, 0.6, 0.9)
    """Shares of the training after which a learning rate that falls in steps does: BiT's."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("learning_rate", "muon_learning_rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name)}: must be above 0.")
        if not 0 < self.layer_decay <= 1:
            raise UserError(f"layer_decay={self.layer_decay}: must be above 0 and at most 1.")
        if not 0 <= self.warmup < 1:
            raise UserError(f"warmup={self.warmup}: must be at least 0 and below 1.")
        if self.clip is not None and not self.clip > 0:
            raise UserError(f"clip={self.clip}: must be above 0, or None for no clipping.")


@dataclass(frozen=True)
class Training:
    """One complete training."""

    model: ModelConfig
    preprocess: Preprocess
    objective: ObjectiveConfig = field(default_factory=Supervised)
    augment: Augment = field(default_factory=Augment)
    optimizer: Optimizer = field(default_factory=Optimizer)

    epochs: float = 10  # 0 only where a budget leaves no time for steps after a classifier on frozen features
    batch_size: int = 64
    accumulate: int = 1  # a batch is worked through in this many parts, to save memory
    activation_checkpointing: bool = False
    """Save memory by computing the activations of each block once more on the way back (activation checkpointing)."""
    ema: float | None = None  # also keep an exponential average of the weights, and use that in the end
    wise_ft_alpha: float = 1.0
    """Where the result lies on the way from the weights at the start (0) to the trained ones (1). Half-way between good
    weights and what few images taught is often better than both (WiSE-FT, Wortsman et al. 2022). Not with lora."""

    whiten: bool = False  # from scratch: start with a patch projection that makes the pixels of a patch uncorrelated
    probe: bool = False
    """First fit the classifier to features of the frozen model, by L-BFGS; then train all from there."""
    freeze: int = 0  # how many of the first layers stay as they are, and with them the embedding
    lora: int = 0
    """Rank of a low-rank change (LoRA), of a ViT's q, k and v, learned instead of the layers' weights; 0 for none."""

    validation: float = 0.1
    """Share of the training images set aside to find the best weights, where the data have no validation split; 0 for
    none: then the last weights are kept."""
    split_seed: Seed | None = None
    """Seed by which those are chosen; None: the training's own. Trainings with one split_seed have one val split."""
    share: Annotated[float, Range(above=0, most=1)] = 1.0
    """Share of the training images that is trained on, of each class alike; the seed chooses which. With one seed, a
    smaller share is part of every larger one."""
    evaluations: int = 10  # how often the validation split is looked at; the best is kept
    seed: Seed = 0
    compile: bool = False
    save_seconds: float = 60.0
    """How often a checkpoint is saved. It changes no result, only how much an interruption can cost."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.save_seconds >= 0:
            raise UserError(f"save_seconds={self.save_seconds}: must be 0 (after every step) or more.")
        if not 0 <= self.validation < 1:
            raise UserError(f"validation={self.validation}: must be at least 0 and below 1.")
        for name in ("batch_size", "accumulate", "evaluations"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: must be at least 1.")
        if not 0 <= self.epochs < 1e9:
            raise UserError(f"epochs={self.epochs}: must be above 0, and finite.")
        if self.accumulate > 1 and (joined := self.objective.whole_batch) is not None:
            raise UserError(
                f"accumulate={self.accumulate}: {joined} compares the images of a batch with each other, so a batch "
                f"cannot be worked through in parts; set accumulate=1 with a smaller batch_size, or {joined}=0."
            )
        if self.activation_checkpointing and (not isinstance(self.model, ViTConfig) or self.model.merge):
            raise UserError(
                "activation_checkpointing=true: works with Vision Transformers that merge no tokens; set it to false."
            )
        if self.augment.mixtoken and not isinstance(self.model, ViTConfig):
            raise UserError(
                f"mixtoken={self.augment.mixtoken}: exchanges patches of two images, and a network of the family "
                f"{self.model.family!r} has none; set cutmix instead."
            )
        if self.ema is not None and not 0 < self.ema < 1:
            raise UserError(f"ema={self.ema}: must be between 0 and 1.")
        if not 0 < self.wise_ft_alpha <= 1:
            raise UserError(f"wise_ft_alpha={self.wise_ft_alpha}: must be above 0 and at most 1.")
        if not 0 <= self.freeze <= self.model.layers:
            raise UserError(f"freeze={self.freeze}: the model has {self.model.layers} layers.")
        if self.lora < 0:
            raise UserError(f"lora={self.lora}: must be 0 or more.")
        if self.preprocess.size != self.model.image_size or self.preprocess.channels != self.model.channels:
            raise UserError(
                f"preprocess.size={self.preprocess.size}, {self.preprocess.channels} channels: must be the model's, "
                f"{self.model.image_size}, {self.model.channels}."
            )
