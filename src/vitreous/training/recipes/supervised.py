"""Recipes: complete ways to train with labels, chosen by what is known of the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from vitreous.config.bit import BiTConfig
from vitreous.config.data import Augment, Preprocess
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.config.objective import Supervised
from vitreous.config.train import Optimizer, Training
from vitreous.errors import UserError
from vitreous.model.family import count_flops, named_config

SMALL_SIDE = 64  # images up to this side are looked at as they are, in patches of 4 pixels
LARGE_DATASET_IMAGES = 10_000
"""Images that are many: enough for a whitened start, which does harm with few, and to trust what they teach
(docs/log.md)."""


Schedule = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class DatasetStats:
    """What is known before a training: the data, the weights to start from, and what the person asked for."""

    classes: int
    images: int  # in the train split
    side: int  # the typical short side of an image, in pixels
    channels: int
    base: ModelConfig | None = None  # the model that the given weights belong to; None when training from scratch
    base_preprocess: Preprocess | None = None
    model: str | None = None
    image_size: int | None = None
    tested: bool = False  # whether the data have a test split
    affordable: float = 0.0
    """Floating-point operations that a training may take of itself; 0 where a person has said how long it takes."""

    def model_and_preprocess(self, default: str, **overrides: object) -> tuple[ModelConfig, Preprocess]:
        """The model to train and what its images go through first: the weights' own, or a preset's. overrides: fields
        to set, those that a model of this family has."""
        if self.base is not None and self.base_preprocess is not None:
            size = self.base.image_size if self.image_size is None else (self.image_size, self.image_size)
            config, preprocess = self.base.for_classes(self.classes), replace(self.base_preprocess, size=size)
        else:
            config = named_config(self.model or default, classes=self.classes, channels=self.channels)
            size = config.image_size if self.image_size is None else (self.image_size, self.image_size)
            config = with_fields(config, image_size=size)
            grey = (0.5,) * self.channels
            preprocess = Preprocess(size=size, mean=grey, std=grey)
        if size != config.image_size:
            config = config.for_size(size)
        return with_fields(config, **overrides), preprocess


def with_fields(config: ModelConfig, **overrides: object) -> ModelConfig:
    known = {field.name for field in fields(config)}
    return replace(config, **{name: new for name, new in overrides.items() if name in known})


def labelled(model: ModelConfig, schedule: Schedule = (), smoothing: float = 0.0) -> Supervised:
    return Supervised(smoothing, keep_schedule=schedule if starts_with_patches(model) else ())


def starts_with_patches(model: ModelConfig) -> bool:
    """Whether pixels enter as patches: some can then be left out, and their projection can start whitened."""
    return isinstance(model, ViTConfig) and model.stem is None


def published_side(base: ModelConfig | None) -> int:
    """The side at which the paper fine-tunes, 384 pixels, or the whole patches in that."""
    patch = base.patch if isinstance(base, ViTConfig) else 1
    return 384 // patch * patch


def small_side(s: DatasetStats) -> int:
    """The side at which small images are looked at, in whole patches of 4."""
    if s.image_size is None:
        return min(SMALL_SIDE, max(8, 4 * round(s.side / 4)))
    if s.image_size % 4 or s.image_size < 8:
        raise UserError(
            f"image size {s.image_size}: for small images give a multiple of 4, at least 8, such as 28 or 32."
        )
    return s.image_size


def notebook(s: DatasetStats) -> Training:
    """The lecture notes' experiment: AdamW 2e-4 falling linearly, batch 16, 4 epochs, on all training images."""
    model, preprocess = s.model_and_preprocess("Ti/16")
    return Training(
        model=model,
        preprocess=preprocess,
        augment=Augment(crop_scale=(0.08, 1.0)),
        optimizer=Optimizer(learning_rate=2e-4, weight_decay=0.01, warmup=0.0, decay="linear", clip=None),
        epochs=4,
        batch_size=16,
        validation=0.0,
    )


def paper_finetune(s: DatasetStats) -> Training:
    """The paper's fine-tuning (appendix B.1.1): SGD, momentum 0.9, batch 512, no decay; its 500 steps for Pets."""
    model, preprocess = s.model_and_preprocess("B/16@384")
    batch = min(512, s.images)
    return Training(
        model=model,
        preprocess=preprocess,
        augment=Augment(crop_scale=(0.25, 1.0)),
        optimizer=Optimizer("sgd", learning_rate=0.03, weight_decay=0.0, warmup=0.1),
        epochs=500 / (s.images // batch),
        batch_size=batch,
        micro_batch=32,
    )


def vtab(s: DatasetStats) -> Training:
    """The paper's fine-tuning for VTAB-1k (appendix B.1.1, table 4): SGD 0.01, batch 512, 2,500 steps, 384 pixels.

    As in BiT, whose preprocessing it takes, crops are square and of a fixed share of an image that was made square.
    """
    model, preprocess = replace(s, image_size=s.image_size or published_side(s.base)).model_and_preprocess("B/16@384")
    batch, share = min(512, s.images), (480 / 512) ** 2
    return Training(
        model=model,
        preprocess=replace(preprocess, crop=1.0, resize="stretch"),
        augment=Augment(crop_scale=(share, share), crop_ratio=(1.0, 1.0)),
        optimizer=Optimizer("sgd", learning_rate=0.01, weight_decay=0.0, warmup=0.1),
        epochs=2500 / (s.images // batch),
        batch_size=batch,
        micro_batch=32,
    )


def paper_pretrain(s: DatasetStats) -> Training:
    """The paper's pre-training on ImageNet (table 3): Adam 3e-3, batch 4096, decay 0.3, dropout 0.1, a tanh layer."""
    model, preprocess = s.model_and_preprocess("B/16", dropout=0.1)
    batch, epochs = min(4096, s.images), 300
    steps = epochs * (s.images // batch)
    return Training(
        model=with_fields(model, classifier="mlp"),
        preprocess=preprocess,
        augment=Augment(crop_scale=(0.08, 1.0)),
        # the paper's 10,000 steps, but of a shorter training no larger a part than of its own
        optimizer=Optimizer(learning_rate=3e-3, weight_decay=0.3, warmup=min(10_000 / steps, 0.12)),
        epochs=epochs,
        batch_size=batch,
        micro_batch=64,
    )


def bit(s: DatasetStats) -> Training:
    """BiT-HyperRule, how BiT is fine-tuned whatever the data: SGD, batch 512, steps, resolution and MixUp by its size.

    Images under 96 x 96 pixels are looked at with 128, others with 480. Crops are square and of a fixed size, of images
    a little larger (160 and 512); the published ones are of images made square first.
    """
    side, larger = (128, 160) if s.side < 96 else (480, 512)
    model, preprocess = replace(s, image_size=s.image_size or side).model_and_preprocess("bit-r50x1")
    warmup, *falls, steps = next(rule for most, rule in HYPER_RULE.items() if s.images < most)
    batch = min(512, s.images)
    share = (side / larger) ** 2
    return Training(
        model=model,
        preprocess=replace(preprocess, crop=1.0, interpolation="bilinear", resize="stretch"),
        augment=Augment(
            crop_scale=(share, share), crop_ratio=(1.0, 1.0), mixup=0.0 if s.images < BIT_SMALL_IMAGES else 0.1
        ),
        optimizer=Optimizer(
            "sgd",
            learning_rate=0.003 * batch / 512,
            weight_decay=0.0,
            warmup=warmup / steps,
            decay="steps",
            decay_at=tuple(step / steps for step in falls),
            clip=None,
        ),
        epochs=steps / (s.images // batch),
        batch_size=batch,
        micro_batch=16,
    )


BIT_SMALL_IMAGES = 20_000
HYPER_RULE = {
    BIT_SMALL_IMAGES: (100, 200, 300, 400, 500),
    500_000: (500, 3_000, 6_000, 9_000, 10_000),
    math.inf: (500, 6_000, 12_000, 18_000, 20_000),
}
"""Images, fewer than: steps after which the learning rate no longer rises, then falls to a tenth, and the last."""


MAX_PROBE_LOGITS = 2**24  # of all images together, which each of hundreds of gradients computes in double precision


def small_data(s: DatasetStats) -> Training:
    """Good weights, few images: the classifier first, on frozen features; then the upper half of the blocks.

    The lower half stays, and half the patches are left out until the last steps: three times the images a second.
    With a supervised start, the result lies half-way between it and what was trained. Crops make things look larger in
    training; so that they look as large later, the middle of an image is taken, as wide as the mean crop (Touvron et
    al. 2019); a higher resolution sees more of it, a lower one no less. Where a test split tells how good the result
    is, fewer images are set aside to choose the weights. With thousands of classes there is no classifier on frozen
    features, whose fit would take hours and gigabytes.
    """
    model, preprocess = s.model_and_preprocess("Ti/16")
    probe = s.base is not None and s.images * s.classes <= MAX_PROBE_LOGITS
    crops = (0.35, 1.0)
    higher = 1.0 if s.base is None else max(1.0, model.image_size[0] / s.base.image_size[0])
    return Training(
        model=model,
        preprocess=replace(preprocess, crop=min(1.0, round(higher * math.sqrt(sum(crops) / 2), 2))),
        augment=Augment(crop_scale=crops),
        optimizer=Optimizer(learning_rate=2e-4, weight_decay=0.05, layer_decay=0.85, warmup=0.1),
        epochs=8,
        batch_size=32,
        ema=0.99,
        wise_ft_alpha=0.5
        if probe and s.base is not None and s.base.classes and s.images < LARGE_DATASET_IMAGES
        else 1.0,
        objective=labelled(model, ((0.85, 0.5),)),
        freeze=model.layers // 2 if s.base is not None else 0,
        probe=probe,
        validation=0.05 if s.tested else 0.1,
    )


def mae_finetune(s: DatasetStats) -> Training:
    """A masked autoencoder, fine-tuned as in its paper: mean of all tokens, slower early layers, stochastic depth."""
    if s.base is None:
        raise UserError("recipe mae-finetune: needs weights, the run or bundle of a masked autoencoder.")
    model, preprocess = s.model_and_preprocess("Ti/16", pool="mean", drop_path=0.1)
    small = max(model.image_size) <= SMALL_SIDE
    return Training(
        model=model,
        preprocess=preprocess,
        augment=Augment(crop_scale=(0.5, 1.0) if small else (0.2, 1.0)),
        optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.05, layer_decay=0.75, warmup=0.1),
        epochs=30,
        batch_size=64,
        objective=labelled(model, ((0.6, 0.5),) if small else (), smoothing=0.1),
    )


def scratch_small(s: DatasetStats) -> Training:
    """Small images (CIFAR, MNIST) from scratch on few cores: a narrow model, Muon, and few tokens at first.

    In minutes, many cheap steps teach more than few expensive ones. Positions are fixed, and for many images the
    patch projection starts whitened: what need not be learned is worth several points in a short training
    (docs/log.md).
    """
    _refuse_weights(s, "scratch-small")
    side = small_side(s)
    few = s.images < LARGE_DATASET_IMAGES
    name = f"F/{side // 4}@{side}" if few else f"P/4@{side}"
    model, preprocess = s.model_and_preprocess(name, position="sincos-2d", pool="mean", class_token=False)
    return Training(
        model=model,
        preprocess=preprocess,
        augment=Augment(crop_scale=None, pad=1 if few else max(1, side // 8)),
        optimizer=Optimizer(name="muon", weight_decay=0.05, warmup=0.05, decay="linear"),
        epochs=30,
        batch_size=64 if few else 128,
        objective=labelled(model) if few else labelled(model, ((0.6, 0.375), (0.9, 0.625)), smoothing=0.1),
        whiten=not few and starts_with_patches(model),
        validation=0.1 if few else 0.02,
        evaluations=10 if few else 5,
    )


def scratch(s: DatasetStats) -> Training:
    """Photographs from scratch: a small model, strong variation, and few tokens at first."""
    _refuse_weights(s, "scratch")
    model, preprocess = s.model_and_preprocess("Ti/16@160", drop_path=0.05)
    return Training(
        model=model,
        preprocess=preprocess,
        augment=Augment(crop_scale=(0.2, 1.0), policy="trivial", erase=0.1, mixup=0.2),
        optimizer=Optimizer(name="muon", weight_decay=0.05, warmup=0.05),
        epochs=100,
        batch_size=64,
        objective=labelled(model, ((0.4, 0.4), (0.75, 0.65)), smoothing=0.1),
    )


def plain(s: DatasetStats) -> Training:
    """A network of any family from scratch: AdamW, random crops, nothing that only some networks can do."""
    _refuse_weights(s, "plain")
    model, preprocess = s.model_and_preprocess("Ti/16@160")
    small = max(model.image_size) <= SMALL_SIDE
    return Training(
        model=model,
        preprocess=preprocess,
        objective=Supervised(label_smoothing=0.1),
        augment=Augment(crop_scale=None) if small else Augment(crop_scale=(0.2, 1.0), policy="trivial"),
        optimizer=Optimizer(weight_decay=0.05, warmup=0.05),
        epochs=30 if small else 100,
        batch_size=64,
    )


def _refuse_weights(s: DatasetStats, name: str) -> None:
    if s.base is not None:
        raise UserError(
            f"recipe {name}: trains a new model and cannot start from weights; take small-data, notebook or "
            "paper-finetune, or leave the weights out."
        )


def auto(s: DatasetStats) -> Training:
    """The default: what an expert would do with these images and weights."""
    if s.base is not None:
        rule = bit(s) if isinstance(s.base, BiTConfig) else None
        return rule if rule is not None and _work(rule, s.images) <= s.affordable else small_data(s)
    if s.model is not None and not isinstance(named_config(s.model), ViTConfig):
        return plain(s)
    return scratch_small(s) if s.side <= SMALL_SIDE and s.model is None else scratch(s)


def _work(training: Training, images: int) -> float:
    steps = training.epochs * (images // training.batch_size)
    return 3 * count_flops(training.model) * steps * training.batch_size


RECIPES: dict[str, Callable[[DatasetStats], Training]] = {
    "auto": auto,
    "plain": plain,
    "notebook": notebook,
    "paper-finetune": paper_finetune,
    "vtab": vtab,
    "paper-pretrain": paper_pretrain,
    "bit": bit,
    "scratch": scratch,
    "scratch-small": scratch_small,
    "small-data": small_data,
    "mae-finetune": mae_finetune,
}


def recipe(name: str, stats: DatasetStats) -> Training:
    if name not in RECIPES:
        raise UserError(f"recipe {name!r}: choose one of {', '.join(RECIPES)}.")
    return RECIPES[name](stats)
