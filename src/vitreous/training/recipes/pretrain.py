"""Complete ways to learn without labels, by name: for small images on few cores, and for photographs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.objective import Dino, Mae, MaskedPatch
from vitreous.config.train import Optimizer, Training
from vitreous.errors import UserError
from vitreous.training.recipes.supervised import (
    LARGE_DATASET_IMAGES,
    SMALL_SIDE,
    DatasetStats,
    small_side,
    starts_with_patches,
    with_fields,
)

MEAN_POOL: dict[str, Any] = {"pool": "mean", "class_token": False}  # features that are the mean of the patches' tokens
MUON = Optimizer(name="muon", weight_decay=0.05, warmup=0.05)


def mae(s: DatasetStats) -> Training:
    """A masked autoencoder: three quarters of the patches are hidden, and a decoder of a block or two rebuilds them.
    The features are the mean of the patches' tokens; a class token would learn nothing of its own here."""
    model, preprocess = _model_and_preprocess(s)
    model = replace(model, **MEAN_POOL)
    small = _is_small(model)
    width = max(64, model.width // 2 // 32 * 32)
    return Training(
        model=model,
        preprocess=preprocess,
        objective=Mae(decoder_width=width, decoder_depth=1 if small else 2, decoder_heads=width // 32),
        augment=Augment(crop_scale=(0.4, 1.0) if small else (0.2, 1.0)),
        optimizer=MUON,
        epochs=30 if small else 100,
        batch_size=256 if small else 64,
        whiten=s.images >= LARGE_DATASET_IMAGES and starts_with_patches(model),
    )


def dino(s: DatasetStats) -> Training:
    """Self-distillation for few cores and small batches.

    What makes it affordable: views of few tokens, a student that sees half of each large one, few prototypes, and Muon.
    What makes it learn from the first steps, where a centre only keeps it from collapsing: answers that are balanced in
    each batch and sharp, a fast teacher, a whitened start, and colours that say little (docs/log.md).
    """
    model, preprocess = _model_and_preprocess(s)
    if small := _is_small(model):
        model = replace(model, **MEAN_POOL)
    crops = MultiCrop(
        global_scale=(0.4, 1.0),
        global_size=_side(model, 0.75) if small else None,
        local_views=4 if small else 6,
        local_scale=(0.1, 0.35) if small else (0.05, 0.4),
        local_size=_side(model, 0.375 if small else 0.5),
    )
    objective = Dino(
        crops=crops,
        hidden=512 if small else 1024,
        bottleneck=128 if small else 256,
        prototypes=512 if small else 4096,
        momentum=0.9 if small else 0.98,
        sinkhorn_iterations=3,
        teacher_temperature=(0.01, 0.01) if small else (0.02, 0.02),
        freeze_last_layer=0.02,
        keep=0.5 if starts_with_patches(model) else 1.0,
    )
    return Training(
        model=model,
        preprocess=preprocess,
        objective=objective,
        augment=Augment(jitter=0.4, tint=0.5, grey=0.2),
        optimizer=replace(MUON, muon_learning_rate=0.015, weight_decay=0.04, warmup=0.1, clip=3.0),
        epochs=30 if small else 100,
        batch_size=128 if small else 64,
        whiten=s.images >= LARGE_DATASET_IMAGES and starts_with_patches(model),
    )


def dinov2(s: DatasetStats) -> Training:
    """DINO with what DINOv2 adds: registers, the spread of features (KoLeo), and masked patches (iBOT)."""
    training = dino(s)
    assert isinstance(training.objective, Dino)
    objective = replace(training.objective, keep=1.0, koleo_weight=0.1, ibot_weight=1.0)
    return replace(training, model=with_fields(training.model, registers=4), objective=objective)


def masked_patch(s: DatasetStats) -> Training:
    """The paper's own self-supervision: half of the patches are corrupted, and their mean colours are predicted.

    Corruption and targets are the paper's. Its Adam (2e-4, batches of 4096, 1 % of the steps to warm up) is for a
    million steps on 300 million images; here the rest is as for `mae`: Muon, a cosine too, the mean of the patches'
    tokens, which alone learn, and crops whose colours are left as they are. Smaller batches, for no patch is left out.
    """
    training = mae(s)
    return replace(training, objective=MaskedPatch(), batch_size=min(128, training.batch_size))


PRETRAINING: dict[str, Callable[[DatasetStats], Training]] = {
    "mae": mae,
    "dino": dino,
    "dinov2": dinov2,
    "masked-patch": masked_patch,
}


def _model_and_preprocess(s: DatasetStats) -> tuple[ViTConfig, Preprocess]:
    """The model: the one that was asked for, or for small images F in patches of 4, else Ti/16 at 160 pixels."""
    small = s.model is None and s.side <= SMALL_SIDE
    model, preprocess = s.model_and_preprocess(f"F/4@{small_side(s)}" if small else "Ti/16@160", position="sincos-2d")
    if not isinstance(model, ViTConfig):
        raise UserError(f"model {s.model}: these recipes are for Vision Transformers; give one such as S/16.")
    if model.image_size[0] < 2 * model.patch:
        raise UserError(f"image size {model.image_size[0]}: gives one patch of {model.patch} pixels; give more.")
    return model, preprocess


def _side(model: ViTConfig, fraction: float) -> tuple[int, int]:
    """A view of about this fraction of the input's side: whole patches, two at least each way."""
    side = model.patch * max(2, round(fraction * model.image_size[0] / model.patch))
    return side, side


def _is_small(model: ViTConfig) -> bool:
    return max(model.image_size) <= SMALL_SIDE
