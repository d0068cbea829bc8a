"""Recipes of the known kinds that take no time, and images that are bright at the left or at the right."""

from dataclasses import replace

import numpy as np

from vitreous import ViTConfig
from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.config.objective import Dino, Mae, MaskedPatch
from vitreous.config.train import Optimizer, Training
from vitreous.verbs.fit import pretrain

TRAINING = Training(
    model=ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=2, image_size=(8, 8), classes=0, drop_path=0.1),
    preprocess=Preprocess(size=(8, 8)),
    augment=Augment(jitter=0.2, grey=0.2),
    optimizer=Optimizer(name="muon", learning_rate=1e-3, weight_decay=0.04, weight_decay_end=0.2),
    batch_size=12,
    evaluations=3,
)
CROPS = MultiCrop(local_views=2, local_size=(4, 4))
DINO = Dino(crops=CROPS, hidden=16, bottleneck=8, prototypes=16, momentum=0.9)
TINY = {
    "mae": replace(TRAINING, objective=Mae(decoder_width=16, decoder_depth=1, decoder_heads=2)),
    "dino": replace(TRAINING, objective=replace(DINO, keep=0.5, freeze_last_layer=0.2)),
    "dinov2": replace(
        TRAINING,
        model=replace(TRAINING.model, registers=2),
        objective=replace(DINO, koleo_weight=0.1, ibot_weight=1.0),
    ),
    "masked-patch": replace(TRAINING, objective=MaskedPatch()),
}
KEPT = {"mae": {"decoder"}, "masked-patch": {"colours"}}
"""What a run keeps beside the network, by method."""
LIVE = {"mae": "loss", "masked-patch": "loss"}
"""The live metric without labels, where it is not the information."""


def draw(count=40, seed=0):
    """(n, 8, 8, 3) uint8: noise, bright at the left or at the right, and which."""
    chance = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = chance.integers(0, 100, (count, 8, 8, 3))
    for image, label in zip(images, labels, strict=True):
        image[:, 4 * label : 4 * label + 4] += 120
    return images.astype(np.uint8), labels


def quick_pretrain(data, out, method="mae", **more):
    return pretrain(data, method=method, epochs=2, out=out, workers=0, **more)


def last_checkpoint(run):
    return sorted((run / "checkpoints").glob("step-*"))[-1]
