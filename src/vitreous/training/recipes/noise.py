"""The noise of a student that learns from its teacher's labels (Xie et al. 2020, section 2): any recipe, made harder.

The teacher labels images as they are; the student has to say the same of images that are varied, by a network of
which parts are left out. So it learns more than its teacher knew.
"""

from __future__ import annotations

from dataclasses import replace

from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.config.model import ModelConfig
from vitreous.config.objective import Supervised
from vitreous.config.train import Training
from vitreous.training.recipes.supervised import with_fields

DROPOUT = 0.1  # of the activations, as the ViT paper trains: a Vision Transformer drops in every block
LAST_DROPOUT = 0.5  # the same of an EfficientNet, which drops only before its classifier: Noisy Student's own number
DROP_PATH = 0.1
"""Stochastic depth, the share of the last layer; Noisy Student's 0.2 is for networks of many more layers."""


def noised(training: Training, *, soft: bool) -> Training:
    """The training with RandAugment, dropout and stochastic depth, each unless the recipe has as much of it already.

    TrivialAugment stays where the recipe has it: it draws from the same overrides. A family that lacks dropout or
    stochastic depth goes without. soft: the labels are probabilities, which say themselves how sure
    they are, so they are not smoothed as well.
    """
    augment, objective = training.augment, training.objective
    if augment.policy == "none":
        augment = replace(augment, policy="randaugment")
    if soft and isinstance(objective, Supervised):
        objective = replace(objective, label_smoothing=0.0)
    return replace(training, model=_noised_model(training.model), augment=augment, objective=objective)


def _noised_model(model: ModelConfig) -> ModelConfig:
    last = isinstance(model, EfficientNetConfig)
    least = {"dropout": LAST_DROPOUT if last else DROPOUT, "drop_path": DROP_PATH}
    return with_fields(model, **{name: max(value, getattr(model, name, 0.0)) for name, value in least.items()})
