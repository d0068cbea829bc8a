"""Complete ways to learn without labels, by name: for small pictures on few cores, and for photographs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.pretrain import Dino, Mae, Method
from vitreous.config.train import Optimizer, Training
from vitreous.errors import UserError
from vitreous.recipes.supervised import SMALL_SIDE, Situation

MUON = Optimizer(name="muon", rate=1e-3, muon_rate=0.02, weight_decay=0.05, warmup=0.05)


def mae(s: Situation) -> tuple[Training, Mae]:
    """A masked autoencoder: three quarters of the patches are hidden, and a decoder of a block or two rebuilds them.

    The features are the mean of the patches' tokens; a class token would learn nothing of its own here.
    """
    model, preprocess = _built(s, {"pool": "mean", "class_token": False, "position": "sincos-2d"}, "N", "Ti/16@160")
    small = _is_small(model)
    training = Training(
        model=model,
        preprocess=preprocess,
        augment=Augment(crop_scale=(0.4, 1.0) if small else (0.2, 1.0)),
        optimizer=MUON,
        epochs=30 if small else 100,
        batch_size=256 if small else 64,
    )
    width = max(64, model.width // 2 // 32 * 32)
    return training, Mae(decoder_width=width, decoder_depth=1 if small else 2, decoder_heads=width // 32)


def dino(s: Situation) -> tuple[Training, Dino]:
    """Self-distillation for few cores and small batches.

    What makes it affordable: small views at a quarter of the tokens, a student that sees half of each large view, few
    prototypes, and Muon. What keeps it from collapsing in small batches: a faster teacher and slower sharpening.
    """
    model, preprocess = _built(s, {"position": "sincos-2d"}, "P", "Ti/16@160")
    small = _is_small(model)
    side = model.image_size[0]
    near = 2 * model.patch if small else 4 * model.patch  # small views have at least so many pixels a side
    crops = MultiCrop(
        global_scale=(0.4, 1.0),
        local_views=4 if small else 6,
        local_scale=(0.15, 0.4) if small else (0.05, 0.4),
        local_size=(max(near, side // 2 // model.patch * model.patch),) * 2,
    )
    training = Training(
        model=model,
        preprocess=preprocess,
        augment=Augment(jitter=0.4, grey=0.2),
        optimizer=replace(MUON, weight_decay=0.04, weight_decay_end=0.2, warmup=0.1, clip=3.0),
        epochs=30 if small else 100,
        batch_size=128 if small else 64,
    )
    method = Dino(
        crops=crops,
        hidden=256 if small else 1024,
        bottleneck=64 if small else 256,
        prototypes=512 if small else 4096,
        momentum=0.98 if small else 0.99,
        teacher_temperature=(0.02, 0.04) if small else (0.04, 0.06),
        frozen=0.02,
        keep=0.5,
    )
    return training, method


def dinov2(s: Situation) -> tuple[Training, Dino]:
    """DINO with what DINOv2 adds: registers, the spread of features (KoLeo), and masked patches (iBOT)."""
    training, method = dino(s)
    model = replace(training.model, registers=4)
    return replace(training, model=model), replace(method, keep=1.0, koleo=0.1, masked=1.0)


PRETRAINING: dict[str, Callable[[Situation], tuple[Training, Method]]] = {"mae": mae, "dino": dino, "dinov2": dinov2}


def _built(s: Situation, changes: dict[str, object], size: str, photographs: str) -> tuple[ViTConfig, Preprocess]:
    """The model: the one that was asked for, or for small pictures `size` in patches of 4, else `photographs`."""
    if s.model is None and s.side <= SMALL_SIDE:
        side = min(SMALL_SIDE, max(8, 4 * round(s.side / 4))) if s.image_size is None else s.image_size
        if side % 4 or side < 8:
            raise UserError(f"--image-size {side}: for small pictures give a multiple of 4, from 8, such as 28 or 32.")
        photographs = f"{size}/4@{side}"
    model, preprocess = s.built(photographs, **changes)
    if model.image_size[0] < 2 * model.patch:
        raise UserError(f"--image-size {model.image_size[0]}: gives one patch of {model.patch} pixels; give more.")
    return model, preprocess


def _is_small(model: ViTConfig) -> bool:
    return max(model.image_size) <= SMALL_SIDE
